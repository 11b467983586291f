-- +goose NO TRANSACTION
-- +goose Up
-- The index of the oldest rows is for the relay alone. Its predicate holds for all rows, but the planner uses the index only for
-- statements with the predicate. Without it the planner used the index to look up a task, and read all rows of its kind. An
-- interrupted CREATE INDEX CONCURRENTLY leaves an index that no statement uses, so each statement may be repeated.
SET lock_timeout = 0; -- see package migrations
DROP INDEX CONCURRENTLY IF EXISTS outbox_oldest;
CREATE INDEX CONCURRENTLY outbox_oldest ON outbox (kind, created_at) WHERE created_at > '-infinity';
SET lock_timeout = '2s';

-- +goose Down
SET lock_timeout = 0; -- see package migrations
DROP INDEX CONCURRENTLY IF EXISTS outbox_oldest;
CREATE INDEX CONCURRENTLY outbox_oldest ON outbox (kind, created_at);
SET lock_timeout = '2s';
