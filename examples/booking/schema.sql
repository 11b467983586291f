-- A booking takes seats of a screening. It is pending until its customer confirms it or it expires.
CREATE TABLE IF NOT EXISTS screenings (
    id        uuid        PRIMARY KEY,
    title     text        NOT NULL CHECK (title <> ''),
    starts_at timestamptz NOT NULL
);

CREATE TABLE IF NOT EXISTS bookings (
    id              uuid        PRIMARY KEY,
    customer_id     uuid        NOT NULL, -- from the customer's token; the service stores nothing else about customers
    screening_id    uuid        NOT NULL REFERENCES screenings,
    seats           text[]      NOT NULL CHECK (cardinality(seats) > 0), -- that it has, or has released
    code            text        NOT NULL, -- with which its customer confirms it
    status          text        NOT NULL DEFAULT 'pending',
    idempotency_key text,
    fingerprint     bytea,
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL CHECK (expires_at > created_at),
    ended_at        timestamptz,
    ended_by        text,

    -- No statement can store a late confirmation, an early expiry, or two ends. A CHECK accepts NULL, so coalesce
    -- excludes it.
    CONSTRAINT bookings_status CHECK (coalesce(
        CASE status
            WHEN 'pending'   THEN ended_at IS NULL AND ended_by IS NULL
            WHEN 'confirmed' THEN ended_at < expires_at AND ended_by = 'customer'
            WHEN 'expired'   THEN ended_at >= expires_at AND ended_by IN ('worker', 'reconciler')
        END, false)),
    CONSTRAINT bookings_idempotency CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL)),
    CONSTRAINT bookings_idempotency_key UNIQUE (customer_id, idempotency_key)
);
-- The reconciler reads pending rows by this index. Its size depends on the number of pending rows, not of all rows.
CREATE INDEX IF NOT EXISTS bookings_pending_deadline ON bookings (expires_at, id) WHERE status = 'pending';
-- A creation sums up the seats in the pending bookings of its customer.
CREATE INDEX IF NOT EXISTS bookings_open ON bookings (customer_id) WHERE status = 'pending';
-- The invariants compare the bookings that hold seats with the seats.
CREATE INDEX IF NOT EXISTS bookings_holding ON bookings (screening_id) WHERE status IN ('pending', 'confirmed');

-- The shared rows. A seat refers to its booking, so that it has at most one. The names sort in the order in which a
-- booking of any seats takes them.
CREATE TABLE IF NOT EXISTS seats (
    screening_id uuid NOT NULL REFERENCES screenings,
    seat         text NOT NULL CHECK (seat <> ''),
    booking_id   uuid REFERENCES bookings, -- NULL: the seat is free
    PRIMARY KEY (screening_id, seat)
);
CREATE INDEX IF NOT EXISTS seats_free ON seats (screening_id, seat) WHERE booking_id IS NULL;
CREATE INDEX IF NOT EXISTS seats_taken ON seats (booking_id) WHERE booking_id IS NOT NULL;
