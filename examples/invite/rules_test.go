package main

import (
	"database/sql"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/timeout"
)

// guests is a store on a database of its own, without a queue.
type guests struct {
	*store
	db    *sql.DB // hides that of the store
	table *timeout.Table
}

func newGuests(t *testing.T) *guests {
	t.Helper()
	db, pool := parttest.OpenDB(t, testenv.Postgres(t), 5)
	table := timeout.NewTable(db, expireKind, rows, slog.New(slog.DiscardHandler))
	return &guests{&store{db: db}, pool, table}
}

func (g *guests) invite(t *testing.T) uuid.UUID {
	t.Helper()
	i, err := g.create(t.Context(), "ada@example.com", time.Minute)
	testenv.Must(t, err)
	return i.ID
}

func (g *guests) status(t *testing.T, id uuid.UUID) string {
	t.Helper()
	i, err := g.get(t.Context(), id)
	testenv.Must(t, err)
	return i.Status
}

// expire times out an invitation as the reconciler does, and returns how many have expired and how many were locked.
func (g *guests) expire(t *testing.T, id uuid.UUID) (done, locked int) {
	t.Helper()
	done, locked, err := g.table.TimeOut(t.Context(), []string{id.String()})
	testenv.Must(t, err)
	return done, locked
}

const (
	pastDeadline = `
		UPDATE invitations SET created_at = now() - interval '1 hour', expires_at = clock_timestamp() WHERE id = $1`
	extended  = `UPDATE invitations SET expires_at = now() + interval '1 hour' WHERE id = $1`
	unchanged = `SELECT FROM invitations WHERE id = $1`
)

// TestInviteOperationsInEachState calls each operation in each state of an invitation, twice.
func TestInviteOperationsInEachState(t *testing.T) {
	g := newGuests(t)
	accept := func(t *testing.T, id uuid.UUID) string {
		i, err := g.accept(t.Context(), id)
		testenv.Must(t, err)
		return i.Status
	}
	expire := func(t *testing.T, id uuid.UUID) string {
		g.expire(t, id)
		return g.status(t, id)
	}
	overdue := func(t *testing.T, id uuid.UUID) { testenv.Exec(t, g.db, pastDeadline, id) }
	for state, test := range map[string]struct {
		prepare                  func(*testing.T, uuid.UUID)
		afterAccept, afterExpire string // the status after each operation
	}{
		"pending":  {func(*testing.T, uuid.UUID) {}, "accepted", "pending"},
		"overdue":  {overdue, "pending", "expired"},
		"accepted": {func(t *testing.T, id uuid.UUID) { accept(t, id) }, "accepted", "accepted"},
		"expired":  {func(t *testing.T, id uuid.UUID) { overdue(t, id); expire(t, id) }, "expired", "expired"},
	} {
		check := func(name, want string, do func(*testing.T, uuid.UUID) string) {
			t.Run(name+" "+state, func(t *testing.T) {
				id := g.invite(t)
				test.prepare(t, id)
				for range 2 {
					if answer, got := do(t, id), g.status(t, id); answer != want || got != want {
						t.Errorf("the answer has the status %s, and the invitation is %s; want %s", answer, got, want)
					}
				}
			})
		}
		check("accept", test.afterAccept, accept)
		check("expire", test.afterExpire, expire)
	}
}

// TestInviteDeadlineMovesDuringLockWait moves the deadline while an acceptance waits for the lock of the invitation.
// The deadline at the time when it gets the lock decides.
func TestInviteDeadlineMovesDuringLockWait(t *testing.T) {
	for name, test := range map[string]struct{ before, move, want string }{
		"it passes":   {unchanged, pastDeadline, "pending"},
		"it is later": {pastDeadline, extended, "accepted"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuests(t)
			id := g.invite(t)
			testenv.Exec(t, g.db, test.before, id)
			tx, err := g.db.BeginTx(t.Context(), nil)
			testenv.Must(t, err)
			defer func() { _ = tx.Rollback() }()
			_, err = tx.ExecContext(t.Context(), `SELECT FROM invitations WHERE id = $1 FOR UPDATE`, id)
			testenv.Must(t, err)
			result := make(chan error, 1)
			go func() {
				_, err := g.accept(t.Context(), id)
				result <- err
			}()
			testenv.AwaitLockWait(t, g.db)
			_, err = tx.ExecContext(t.Context(), test.move, id) // later than the clock that accept could read before
			testenv.Must(t, err)
			testenv.Must(t, tx.Commit())
			testenv.Must(t, <-result)
			if got := g.status(t, id); got != test.want {
				t.Errorf("the invitation is %s, want %s", got, test.want)
			}
		})
	}
}

// TestInviteExpirySkipsLockedInvitation expires an invitation whose deadline another session is about to move. The
// expiry does not wait for the lock. After the commit the new deadline decides.
func TestInviteExpirySkipsLockedInvitation(t *testing.T) {
	for name, test := range map[string]struct {
		before, move string
		locked       int // 0: the deadline that the expiry sees has not passed
		want         string
	}{
		"it passes":   {unchanged, pastDeadline, 0, "expired"},
		"it is later": {pastDeadline, extended, 1, "pending"},
		"it stays":    {pastDeadline, unchanged + ` FOR UPDATE`, 1, "expired"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuests(t)
			id := g.invite(t)
			testenv.Exec(t, g.db, test.before, id)
			release := testenv.HoldLock(t, g.db, test.move, id)
			if done, locked := g.expire(t, id); done != 0 || locked != test.locked {
				t.Errorf("%d invitations have expired and %d are locked, want 0 and %d", done, locked, test.locked)
			}
			release()
			g.expire(t, id)
			if got := g.status(t, id); got != test.want {
				t.Errorf("the invitation is %s, want %s", got, test.want)
			}
		})
	}
}

// TestInvitationOwesItsTask checks the outbox row of an invitation.
func TestInvitationOwesItsTask(t *testing.T) {
	g := newGuests(t)
	id := g.invite(t)
	if n := testenv.Query[int](t, g.db, `SELECT count(*) FROM outbox o JOIN invitations i ON o.task_id = i.id::text
		WHERE o.kind = $1 AND i.id = $2 AND o.due_at = i.expires_at`, expireKind, id); n != 1 {
		t.Errorf("the invitation has %d outbox rows with its deadline, want 1", n)
	}
}

// TestInviteSchemaRejectsInvalidRows tries to store states that must not be.
func TestInviteSchemaRejectsInvalidRows(t *testing.T) {
	g := newGuests(t)
	id := g.invite(t)
	for _, set := range []string{
		`status = 'accepted'`,
		`status = 'accepted', ended_at = expires_at`,
		`status = 'expired'`,
		`status = 'expired', ended_at = created_at`,
		`status = 'unknown'`,
		`ended_at = created_at`,
		`expires_at = created_at`,
	} {
		_, err := g.db.ExecContext(t.Context(), `UPDATE invitations SET `+set+` WHERE id = $1`, id)
		if postgres.Classify(err) != postgres.Rejected {
			t.Errorf("%s: error %v, want that of a constraint", set, err)
		}
	}
}

// violations returns the violations of the invariants.
func (g *guests) violations(t *testing.T, full bool) []app.Violation {
	t.Helper()
	found, err := app.FindViolations(t.Context(), g.store.db, full, invariantsSQL, time.Minute.Microseconds(), full)
	testenv.Must(t, err)
	return found
}

// TestInviteInvariantsFindViolations breaks each invariant, also where the constraint excludes that.
func TestInviteInvariantsFindViolations(t *testing.T) {
	g := newGuests(t)
	testenv.DropChecks(t, g.db)
	for set, want := range map[string]struct {
		invariant int  // 0: none is broken
		quick     bool // the quick check finds it, too
	}{
		`status = 'pending'`: {0, true},
		`created_at = now() - interval '2 hours', expires_at = now() - interval '1 hour'`: {1, true},

		`ended_at = created_at`:                                                {2, true},
		`expired_by = 'worker'`:                                                {2, true},
		`status = 'accepted'`:                                                  {2, false},
		`status = 'accepted', ended_at = created_at`:                           {0, false},
		`status = 'expired', expired_by = 'reconciler'`:                        {2, false},
		`status = 'expired', ended_at = expires_at`:                            {2, false},
		`status = 'expired', ended_at = expires_at, expired_by = 'customer'`:   {2, false},
		`status = 'expired', ended_at = expires_at, expired_by = 'reconciler'`: {0, false},
		`status = 'accepted', ended_at = created_at, expired_by = 'worker'`:    {2, false},
		`status = 'unknown', ended_at = created_at`:                            {2, false},

		`status = 'accepted', ended_at = expires_at`:                       {3, false},
		`status = 'expired', ended_at = created_at, expired_by = 'worker'`: {3, false},
	} {
		t.Run(set, func(t *testing.T) {
			id := g.invite(t)
			testenv.Exec(t, g.db, `UPDATE invitations SET `+set+` WHERE id = $1`, id)
			for _, full := range []bool{false, true} {
				violated := map[string]int{}
				if want.invariant > 0 && (full || want.quick) {
					violated["invitation "+id.String()] = want.invariant
				}
				found := g.violations(t, full)
				got := map[string]int{}
				for _, v := range found {
					got[v.Subject] = v.Invariant
				}
				if !maps.Equal(got, violated) || len(found) != len(got) {
					t.Errorf("full check %v: violations %+v, want %v", full, found, violated)
				}
			}
			testenv.Exec(t, g.db, `DELETE FROM invitations WHERE id = $1`, id)
		})
	}
}
