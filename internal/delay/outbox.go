package delay

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// OweSQL is the statement that owes a task: $1 its kind, $2 its id, $3 its due time. If the task has a row already, the
// row keeps the earlier due time.
const OweSQL = `
	INSERT INTO outbox (kind, task_id, due_at) VALUES ($1, $2, $3)
	ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)`

// Outbox holds the messages of one kind: the rows of the table outbox that wait to be copied to Redis. A program
// inserts the row of a task, as [OweSQL] does, in the transaction that makes the task necessary. So after a crash
// either both the transaction and its task exist, or neither does.
type Outbox struct {
	db   *sql.DB
	kind string
}

// NewOutbox returns the outbox of a kind.
func NewOutbox(db *sql.DB, kind string) *Outbox {
	return &Outbox{db: db, kind: kind}
}

// deleteSQL removes the rows of messages that are in Redis. A row whose due time is earlier than that of its message
// stays, because a transaction has moved it forward after the message was read. SKIP LOCKED leaves the rows that
// another session is changing, so the statement never waits or deadlocks. The relay publishes the rows that stay.
//
// The lookup of a message must use outbox_pkey. But the planner mostly has the statistics of an empty table, because
// rows live for milliseconds. So each message is looked up in a subquery, which FOR UPDATE keeps from becoming another
// kind of join. The index outbox_oldest cannot serve the lookup, because its predicate is not in the statement.
const deleteSQL = `
	DELETE FROM outbox WHERE ctid = ANY (ARRAY(
		SELECT o.ctid
		FROM unnest($2::text[], $3::timestamptz[]) AS m (task_id, due_at), LATERAL (
			SELECT ctid FROM outbox
			WHERE kind = $1 AND task_id = m.task_id AND due_at >= coalesce(m.due_at, '-infinity')
			FOR UPDATE SKIP LOCKED
		) AS o
	))`

// Delete removes the rows of messages that are in Redis. It leaves a row that is due earlier than a message of [At],
// and a row that another session has locked. It ignores messages without a row.
func (o *Outbox) Delete(ctx context.Context, msgs []Message) error {
	return remove(ctx, o.db, o.kind, msgs)
}

type execer interface {
	ExecContext(ctx context.Context, statement string, args ...any) (sql.Result, error)
}

func remove(ctx context.Context, db execer, kind string, msgs []Message) error {
	ids, dues := make([]string, len(msgs)), make([]*time.Time, len(msgs))
	for i, m := range msgs {
		ids[i] = m.ID
		if !m.rowDue.IsZero() {
			dues[i] = &m.rowDue
		}
	}
	if _, err := db.ExecContext(ctx, deleteSQL, kind, ids, dues); err != nil {
		return fmt.Errorf("delete published messages: %w", err)
	}
	return nil
}

// Backlog returns the number of messages and the age of the oldest one. The age is 0 if there is no message.
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

// Waiting returns how long the messages of tasks have waited in the outbox. A task without a message is not in the map.
func (o *Outbox) Waiting(ctx context.Context, ids []string) (map[string]time.Duration, error) {
	rows, err := o.db.QueryContext(ctx, `
		SELECT task_id, (extract(epoch FROM clock_timestamp() - created_at) * 1000000)::bigint
		FROM outbox WHERE kind = $1 AND task_id = ANY ($2)`, o.kind, ids)
	if err != nil {
		return nil, fmt.Errorf("look for messages in the outbox: %w", err)
	}
	waiting := make(map[string]time.Duration)
	if err := eachTask(rows, func(id string, waited time.Duration) { waiting[id] = waited }); err != nil {
		return nil, fmt.Errorf("look for messages in the outbox: %w", err)
	}
	return waiting, nil
}

// eachTask calls do for each of the rows, which have the id of a task and a duration in microseconds.
func eachTask(rows *sql.Rows, do func(id string, d time.Duration)) error {
	defer rows.Close()
	for rows.Next() {
		var id string
		var us int64
		if err := rows.Scan(&id, &us); err != nil {
			return err
		}
		do(id, fromMicros(us))
	}
	return rows.Err()
}

// takeSQL locks messages that are older than the grace, the oldest first, and returns the time left until each is due.
// SKIP LOCKED lets several relays take different messages at the same time.
//
// The transaction is idle while the messages are published, for longer than other transactions may be.
//
// The condition on infinity is the predicate of the index outbox_oldest.
const takeSQL = `
	WITH setting AS MATERIALIZED (SELECT set_config('idle_in_transaction_session_timeout', '10s', true))
	SELECT task_id, (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint FROM outbox
	WHERE (SELECT count(*) FROM setting) = 1
	  AND kind = $1 AND created_at <= now() - $2 * interval '1 microsecond' AND created_at > '-infinity'
	ORDER BY created_at LIMIT $3 OFFSET $4 FOR UPDATE SKIP LOCKED`

// take passes up to limit messages that are older than grace to publish, after the oldest ones whose number is skip,
// and removes those that publish has published. It commits only then, so a crash in between leaves all of them in the
// outbox. It returns the number of the messages that it has taken, and the error of publish.
func (o *Outbox) take(
	ctx context.Context, grace time.Duration, limit, skip int, publish func([]Message) (published []Message, err error),
) (taken, removed int, err error) {
	tx, err := o.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, 0, fmt.Errorf("begin the transaction of the relay: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // no effect after a commit

	rows, err := tx.QueryContext(ctx, takeSQL, o.kind, grace.Microseconds(), limit, skip)
	if err != nil {
		return 0, 0, fmt.Errorf("take from the outbox: %w", err)
	}
	var msgs []Message
	if err := eachTask(rows, func(id string, left time.Duration) { msgs = append(msgs, In(id, left)) }); err != nil {
		return 0, 0, fmt.Errorf("take from the outbox: %w", err)
	}
	published, publishErr := publish(msgs)
	if len(published) == 0 {
		return len(msgs), 0, publishErr
	}
	if err := remove(ctx, tx, o.kind, published); err != nil {
		return 0, 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, 0, fmt.Errorf("commit the transaction of the relay: %w", err)
	}
	return len(msgs), len(published), publishErr
}
