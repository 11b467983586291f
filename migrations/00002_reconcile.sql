-- +goose Up
-- The report of the last sweep of each kind of task. It is in the database so that every process can serve it.
CREATE TABLE reconcile_reports (
    kind   text  PRIMARY KEY,
    report jsonb NOT NULL
);

-- +goose Down
DROP TABLE reconcile_reports;
