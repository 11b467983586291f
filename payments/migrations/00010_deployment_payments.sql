-- +goose Up
-- Whose payments these are, stored at the first start with a key. It has at most one row.
CREATE TABLE payment_deployment (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    deployment text        NOT NULL,
    mode       text        NOT NULL CHECK (mode IN ('live', 'test')),
    account    text, -- NULL: the key may not read it
    stored_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- What an operator must look at before money that this database does not know is moved.
CREATE TABLE payment_incidents (
    id        uuid        PRIMARY KEY,
    kind      text        NOT NULL CHECK (kind IN ('lost_sessions', 'unclaimed')),
    detail    text        NOT NULL,
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at timestamptz,
    note      text, actor text,
    CHECK ((closed_at IS NULL) = (note IS NULL) AND (note IS NULL) = (actor IS NULL))
);
CREATE UNIQUE INDEX payment_incidents_open ON payment_incidents (kind) WHERE closed_at IS NULL;
-- +goose Down
DROP TABLE payment_incidents, payment_deployment;
