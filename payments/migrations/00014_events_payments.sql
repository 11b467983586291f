-- +goose Up
-- When the provider's books can have what the event is about; NULL: they need not be read for it, or were read since.
ALTER TABLE provider_events ADD COLUMN books_from timestamptz;
CREATE INDEX provider_events_books ON provider_events (books_from) WHERE books_from IS NOT NULL;
-- +goose Down
ALTER TABLE provider_events DROP COLUMN books_from;
