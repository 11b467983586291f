package delay

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Outbox is the table of messages of one kind that are owed to Redis. Whoever schedules a task writes
// its row in the transaction that makes the task necessary:
//
//	INSERT INTO outbox (kind, task_id, due_at) VALUES (…)
//
// so that after a crash at any moment there is either neither or both.
type Outbox struct {
	db   *sql.DB
	kind string
}

// NewOutbox returns the outbox of a kind.
func NewOutbox(db *sql.DB, kind string) *Outbox {
	return &Outbox{db: db, kind: kind}
}

// Delete removes messages that Redis has. Ids without a row are ignored.
func (o *Outbox) Delete(ctx context.Context, ids []string) error {
	_, err := o.db.ExecContext(ctx, `DELETE FROM outbox WHERE kind = $1 AND task_id = ANY ($2)`, o.kind, ids)
	if err != nil {
		return fmt.Errorf("delete published messages: %w", err)
	}
	return nil
}

// Backlog returns how many messages are owed and the age of the oldest, 0 if there is none.
func (o *Outbox) Backlog(ctx context.Context) (count int64, oldest time.Duration, err error) {
	var us int64
	err = o.db.QueryRowContext(ctx, `
		SELECT count(*), coalesce(extract(epoch FROM clock_timestamp() - min(created_at)) * 1000000, 0)::bigint
		FROM outbox WHERE kind = $1`, o.kind).Scan(&count, &us)
	if err != nil {
		return 0, 0, fmt.Errorf("read the outbox: %w", err)
	}
	return count, fromMicros(us), nil
}

// takeSQL removes the oldest messages that are older than the grace and returns what is left of their
// waits. SKIP LOCKED: any number of relays share the work.
const takeSQL = `
	DELETE FROM outbox o USING (
		SELECT task_id FROM outbox
		WHERE kind = $1 AND created_at <= now() - $2 * interval '1 microsecond'
		ORDER BY created_at LIMIT $3 FOR UPDATE SKIP LOCKED
	) oldest
	WHERE o.kind = $1 AND o.task_id = oldest.task_id
	RETURNING o.task_id, (extract(epoch FROM o.due_at - clock_timestamp()) * 1000000)::bigint`

// take removes up to limit messages older than grace, if publish accepts them: they are gone only once
// it has, and a crash in between leaves them to be published again.
func (o *Outbox) take(ctx context.Context, grace time.Duration, limit int, publish func([]Message) error) (int, error) {
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("begin relay: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit it has nothing to do

	msgs, err := o.query(ctx, tx, grace, limit)
	if err != nil {
		return 0, fmt.Errorf("take from the outbox: %w", err)
	}
	if len(msgs) == 0 {
		return 0, nil
	}
	if err := publish(msgs); err != nil {
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, fmt.Errorf("commit relay: %w", err)
	}
	return len(msgs), nil
}

func (o *Outbox) query(ctx context.Context, tx *sql.Tx, grace time.Duration, limit int) ([]Message, error) {
	rows, err := tx.QueryContext(ctx, takeSQL, o.kind, grace.Microseconds(), limit)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var msgs []Message
	for rows.Next() {
		var id string
		var left int64
		if err := rows.Scan(&id, &left); err != nil {
			return nil, err
		}
		msgs = append(msgs, In(id, fromMicros(left)))
	}
	return msgs, rows.Err()
}
