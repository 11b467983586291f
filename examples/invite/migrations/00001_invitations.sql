-- +goose Up
-- An invitation is pending until it is accepted or expires.
CREATE TABLE invitations (
    id         uuid        PRIMARY KEY,
    email      text        NOT NULL,
    status     text        NOT NULL DEFAULT 'pending',
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL CHECK (expires_at > created_at),
    ended_at   timestamptz,
    expired_by text, -- the actor, worker or reconciler; NULL: the invitation has not expired

    -- No code path can store a late acceptance or an early expiry. A CHECK accepts NULL, so the branches exclude it.
    CONSTRAINT invitations_status CHECK (
        CASE status
            WHEN 'pending'  THEN ended_at IS NULL
            WHEN 'accepted' THEN ended_at IS NOT NULL AND ended_at < expires_at
            WHEN 'expired'  THEN ended_at IS NOT NULL AND ended_at >= expires_at
            ELSE false
        END)
);
-- The reconciler reads pending rows by this index. Its size depends on the number of pending rows, not of all rows.
CREATE INDEX invitations_pending_deadline ON invitations (expires_at, id) WHERE status = 'pending';

-- +goose Down
DROP TABLE invitations;
