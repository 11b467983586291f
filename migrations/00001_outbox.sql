-- +goose Up
-- The outbox holds the tasks that must still be written to Redis. A transaction that needs a task inserts its row. The
-- publisher or the relay deletes the row once Redis has the task. With the primary key, a task has at most one row.
CREATE TABLE outbox (
    kind       text        NOT NULL,
    task_id    text        NOT NULL,
    due_at     timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, task_id)
) WITH (
    -- Rows live for milliseconds, so the table is small and has many dead rows: vacuum by the number of dead rows, not
    -- by their share of the table.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
-- The relay reads the oldest rows of a kind first.
CREATE INDEX outbox_oldest ON outbox (kind, created_at);

-- +goose Down
DROP TABLE outbox;
