-- +goose Up
-- What the last sweep of each kind found, for whichever process is asked.
CREATE TABLE reconcile_reports (
    kind   text  PRIMARY KEY,
    report jsonb NOT NULL
);

-- +goose Down
DROP TABLE reconcile_reports;
