-- +goose Up
-- Messages that are owed to Redis. A row is written in the transaction of what it announces and is
-- deleted once Redis has the task; (kind, task_id) makes a second announcement the same row.
CREATE TABLE outbox (
    kind       text        NOT NULL,
    task_id    text        NOT NULL,
    due_at     timestamptz NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, task_id)
) WITH (
    -- Rows live for milliseconds: vacuum by count, not by share of the table.
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000
);
-- The relay takes the oldest first.
CREATE INDEX outbox_oldest ON outbox (kind, created_at);

-- +goose Down
DROP TABLE outbox;
