-- +goose Up
-- Bookings take places of a course. A booking is pending until its customer ends it or its deadline passes.

-- The counter: how many of its places nobody has booked. free is stored, and not summed up from the bookings, so that
-- those who change it wait for each other at this row.
CREATE TABLE courses (
    id        uuid        PRIMARY KEY,
    title     text        NOT NULL CHECK (title <> ''),
    capacity  bigint      NOT NULL,
    free      bigint      NOT NULL CHECK (free BETWEEN 0 AND capacity),
    begins_at timestamptz NOT NULL
);
-- The quick check of the invariants reads the courses that have not begun.
CREATE INDEX courses_begins_at ON courses (begins_at);

CREATE TABLE bookings (
    id              uuid        PRIMARY KEY,
    customer_id     uuid        NOT NULL, -- from the customer's token; the service stores nothing else about customers
    course_id       uuid        NOT NULL REFERENCES courses,
    places          bigint      NOT NULL CHECK (places > 0), -- that it has, or has given back
    code            text        NOT NULL, -- with which its customer confirms it
    code_due_at     timestamptz, -- when the code must be sent, or when the claim of a sender ends; NULL: it was sent
    wrong_codes     bigint      NOT NULL DEFAULT 0, -- that its customer has sent
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
            WHEN 'pending' THEN ended_at IS NULL AND ended_by IS NULL
            WHEN 'expired' THEN ended_at >= expires_at AND ended_by IN ('worker', 'reconciler')
            ELSE status IN ('confirmed', 'released', 'refused') AND ended_at < expires_at AND ended_by = 'customer'
        END, false)),
    CONSTRAINT bookings_wrong_codes CHECK (wrong_codes BETWEEN 0 AND 5 AND (wrong_codes = 5) = (status = 'refused')),
    CONSTRAINT bookings_idempotency CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL)),
    CONSTRAINT bookings_idempotency_key UNIQUE (customer_id, idempotency_key)
);
-- The reconciler reads pending rows by these indexes: those with a deadline, and those whose code was not sent. Their
-- size depends on the number of pending rows, not of all rows.
CREATE INDEX bookings_pending_deadline ON bookings (expires_at, id) WHERE status = 'pending';
CREATE INDEX bookings_code_due ON bookings (code_due_at, id) WHERE status = 'pending' AND code_due_at IS NOT NULL;
-- A creation sums up the places in the pending bookings of its customer.
CREATE INDEX bookings_open ON bookings (customer_id) WHERE status = 'pending';
-- The invariants compare the counters with the bookings that have places.
CREATE INDEX bookings_taken ON bookings (course_id) WHERE status IN ('pending', 'confirmed');

-- +goose Down
DROP TABLE bookings;
DROP TABLE courses;
