-- +goose Up
-- The outbox holds the tasks that must still be written to Redis. A transaction that needs a task inserts its row,
-- and the publisher or the relay deletes the row once Redis has the task. With the primary key, a task has at most
-- one row.
CREATE TABLE outbox (
    kind       text        NOT NULL,
    task_id    text        NOT NULL,
    due_at     timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, task_id)
) WITH (
    -- Rows live for milliseconds, so that the table is small and has many dead rows. The number of dead rows therefore
    -- triggers autovacuum, and not their share of the table.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
-- The relay reads the oldest rows of a kind first. The predicate holds for all rows, but the planner uses the index
-- only for statements that have the predicate. Without the predicate, the planner would look up a single task in this
-- index, among all rows of its kind.
CREATE INDEX outbox_oldest ON outbox (kind, created_at) WHERE created_at > '-infinity';

-- The report of the last sweep of each kind of task. It is in the database so that every process can serve it.
CREATE TABLE reconcile_reports (
    kind   text  PRIMARY KEY,
    report jsonb NOT NULL
);

-- +goose Down
DROP TABLE reconcile_reports, outbox;
