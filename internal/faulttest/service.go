package faulttest

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv/parttest"
)

// EnvPrefix is the prefix of the program's environment variables.
const EnvPrefix = app.EnvPrefix + "_"

// Row is one thing that times out.
type Row struct {
	State
	Deadline    time.Time
	CancelledAt time.Time // zero unless it was cancelled, by its customer or by its timeout
}

// Status is the status of a row.
type Status string

// The statuses of a row.
const (
	Absent    Status = "absent" // the row was never created
	Pending   Status = "pending"
	Expired   Status = "expired" // pending past its deadline; the API and the table still show pending
	Confirmed Status = "confirmed"
	Cancelled Status = "cancelled" // by its customer
	TimedOut  Status = "timed out"
)

// Service describes a service under test: its program, its REST API, and its tables.
//
// The tests also rely on what the shared packages give each service: the commands serve, migrate, doctor and reconcile,
// the tables outbox, reconcile_reports and goose_db_version, /readyz, /metrics and the operators' API. The module has
// the settings of PgBouncer in internal/postgres/pgbouncer.ini.
//
// Each deployment checks the description before it has a load, and the error names the field that
// is wrong. Where that cannot show a mistake, the comment of the field says how the tests do.
type Service struct {
	// The program.

	// Program is the binary, its application_name in PostgreSQL, and the prefix of its metrics. With another
	// application_name the fault "out of connections" cannot take the service's connections. With another prefix
	// [RedisDown] waits in vain for publishes.
	Program string
	Module  string   // the directory of the module, seen from the package of the tests
	Source  string   // the directory of the package main, below Module
	Migrate []string // the command that creates the tables, and what the first of Bodies needs for 60 rows
	Kind    string   // of the tasks that time rows out
	// Timeout is the environment variable, without [EnvPrefix], of the time from a row's creation to its deadline.
	Timeout string
	// Extend are the environment variables, without EnvPrefix, of the time by which a customer can extend a deadline,
	// and of how often. nil: customers cannot.
	Extend []string
	// BatchMetric is the histogram of the number of rows that were created in one transaction. "": each row has a
	// transaction of its own. With a wrong name the faults with much competition find no batch of two rows.
	BatchMetric string

	// The REST API.

	// Contract is what each answer must keep. A load reports each answer that breaks it.
	Contract func() (*parttest.Contract, error)
	// SignUp is the path of the request that creates a customer. The answer has the customer's token. "": requests need
	// no token.
	SignUp string
	// Collection is the path below which each row has the path of its id.
	Collection string
	// Actions return the requests that confirm, cancel and extend a row. They get the path of the row, and what Secret
	// selects. [Post] suffices for a request without a body. If an operation is missing, customers confirm the row
	// instead.
	//
	// An action with any other name is an operation of the service's own, which leaves a row as it is, such as a
	// confirmation with a wrong code. If the row is pending and in time, the answer is the row, or a problem that
	// Rejections maps to [RejectedOther]. Otherwise the answer is that to a confirmation of such a row, and if the row
	// is confirmed, that to a cancellation.
	Actions map[Operation]func(row, secret string) Request
	// MostOthers is how often customers may call each of the service's own operations for a row: the next call might
	// end the row.
	MostOthers int
	// Secret selects what a customer needs in order to confirm the row with the id $1, if no answer has it: for instance
	// a code that the service sends by e-mail. "": nothing.
	Secret string
	// Create returns the request that creates a row from a body. The key is a text of letters, digits and hyphens that
	// the column key of Rows shows, or "".
	Create func(body, key string) Request
	// Keyed tells that requests with the same key create one row. Otherwise no customer repeats such a request.
	Keyed bool
	// Bodies are bodies of requests that create rows. The first one can create any number of them. If there are shared
	// rows, the same is true of the first body that needs none of those that the first one needs: "shared row locked"
	// reports its rejections. Neighbours should differ only a little, for instance in a quantity or a note, because a
	// key is used again with the next one or the one before. At least one other body needs a scarce shared row, which a load exhausts. Without it,
	// faults report that no call was rejected because of exhausted shared rows, unless there are rushes.
	Bodies []string
	// Decode reads the body of a successful answer to create, confirm, cancel, get or extend. If it takes a timeout for
	// another end of a row, a load reports histories that no row can have.
	Decode func(body []byte) (Row, error)
	// Rejections maps the type of a problem to the reason that the model knows, whatever the status of the answer is,
	// 4xx or 503. A problem that is not here is reported as unexpected. Customers use a key twice only if
	// [RejectedReuse] is here. The tests expect that a service rejects calls because of overload, of exhausted shared
	// rows or of bounds only if these reasons are here.
	Rejections map[string]Rejection

	// The tables.

	// Table is the table of rows. In its columns, id is the row's id, and status is 'pending' until the row ends.
	Table string
	// Rows selects all rows, with the columns key, id, status (pending, confirmed, cancelled or timed out), deadline,
	// and ended_at, which is NULL until the row ends. If there is a second party, it also has held (whether the row was
	// held at any time) and due (when the row ends unless it is confirmed before: the deadline, or the end of a hold).
	// If customers extend deadlines, it also has extensions (how often the row's customer has done so, at most
	// MaxExtensions). If a row that has timed out has another status here, the faults that block or reject timeouts
	// wait in vain.
	Rows string
	// InsertBatch inserts rows, and selects their ids: $1 is a new UUID, $2 the time until their deadline in seconds,
	// and $3 the number of rows. The tests add the messages to the outbox. If there are shared rows, it also inserts
	// one whose name in Supplies, such as its id, is $1. The rows of the batch need it and no other one: otherwise the
	// good rows of [Stuck] do not time out.
	InsertBatch string

	Shared *SharedRows     // nil: no two rows need the same row of another table
	Bounds *CustomerBounds // nil: a customer can have any number of rows

	// Party starts the service's second party for a deployment, and returns the environment variables with which the
	// processes find it. It may change the deployment's times, plans and kinds. nil: the service has no second party.
	Party func(d *Deployment) (Party, []string)

	program struct { // built once
		once sync.Once
		path string
		err  error
	}
}

// TimeoutVariable is the environment variable of the time from a row's creation to its deadline.
func (s *Service) TimeoutVariable() string { return EnvPrefix + s.Timeout }

// queue returns the keys of the queue of timeouts, which has one shard except in a cluster.
func (s *Service) queue() queueKeys { return keysOf(s.Kind, 0) }

// SharedRows are rows of another table, such as products, of which the rows under test take units until they end. Each
// has a name, for instance its id.
type SharedRows struct {
	// Units returns how many units of each shared row a row with this body takes. If a number is wrong, a load reports
	// rejections although enough is left, or another number of free units than its rows have left.
	Units func(body string) map[string]int
	// Supplies selects the names of the shared rows, and how many units of each are free.
	Supplies string
	// Stock prepares the migrated database for a load. It adds so much of each shared row, except the scarce one, that
	// no load exhausts it, and the shared rows of the rushes. If it adds too little, "shared row locked" reports
	// rejections.
	Stock string
	// Rush returns the body of the i-th of the eight requests that are sent at the same moment, when many customers want
	// the same shared row. Each rush wants another one, which has fewer units than are wanted: otherwise faults report that
	// no call was rejected because of exhausted shared rows. nil: no shared row is scarce.
	Rush func(rush, i int) string
	// Rushes is the number of rushes for which Stock adds a shared row. A load that has more uses the first again.
	Rushes int
	// Lock locks shared rows, in the order in which the service does: $1 is an array of their names. If creations and
	// timeouts of rows that need them do not wait, "shared row locked" and "deadlocks" wait in vain, and [Stuck]
	// reports that it proves nothing.
	Lock string
}

// CustomerBounds are the bounds on what one customer can have at a time.
type CustomerBounds struct {
	// Env are environment variables of a process that set the bounds that Exceeds knows, so low that a load reaches
	// them. Otherwise the faults with much competition find no call that was rejected because of a bound.
	Env []string
	// Rush are bodies of which one customer sends eight at the same moment, a body in each rush. For each bound one of
	// them should reach it before the others, after at least two rows. nil: the first of [Service.Bodies].
	Rush []string
	// Exceeds reports whether a customer with exactly these rows would exceed a bound with one more. All are given by
	// their bodies. If it is wrong, a load reports rejections because of a bound that the customer does not reach.
	Exceeds func(body string, rows []string) bool
	// Open reads the ids of the customer's rows from a problem that rejects a request because of a bound. They are
	// those that count towards the bound.
	Open func(problem []byte) (ids []string, err error)
	// Exceeded counts the rows after whose creation their customer exceeded a bound. A load fails unless it is 0.
	Exceeded string
}

// has reports whether customers can call an operation of a row.
func (s *Service) has(o Operation) bool { return s.Actions[o] != nil }

// usualRate is how many rows a load creates in a second. The loads of all faults together take much of the suite's
// processor time, so it is as low as the shortest fault allows, which must see enough calls near deadlines. [Chaos]
// varies it.
const usualRate = 24

// competing is the rate of a load under which customers compete.
const competing = usualRate * 5 / 3

// rushBodies returns the bodies of the rushes of one customer: none if the service does not bound what customers have.
func (s *Service) rushBodies() []string {
	switch {
	case s.Bounds == nil:
		return nil
	case s.Bounds.Rush == nil:
		return s.Bodies[:1]
	default:
		return s.Bounds.Rush
	}
}

// rejects reports whether the service may reject a request for a reason.
func (s *Service) rejects(why Rejection) bool {
	return slices.Contains(slices.Collect(maps.Values(s.Rejections)), why)
}

// Get returns the request of a customer who looks at a row.
func (s *Service) Get(id string) Request {
	return Request{Method: http.MethodGet, Path: s.Collection + "/" + id}
}

// Confirm and Cancel return the requests of a customer who confirms or cancels a row. secret is what [Service.Secret]
// selects.
func (s *Service) Confirm(id, secret string) Request { return s.act(Confirm, id, secret) }

// Cancel is described at [Service.Confirm].
func (s *Service) Cancel(id, secret string) Request { return s.act(Cancel, id, secret) }

func (s *Service) act(o Operation, id, secret string) Request {
	return s.Actions[o](s.Collection+"/"+id, secret)
}

// secret returns what a customer needs in order to confirm a row.
func (s *Service) secret(ctx context.Context, db querier, id string) (secret string, err error) {
	if s.Secret != "" {
		err = db.QueryRowContext(ctx, s.Secret, id).Scan(&secret)
	}
	return secret, err
}

// others returns the operations of the service's own.
func (s *Service) others() []Operation {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.Actions)), func(o Operation) bool { return !o.isOther() })
}

// Post returns an action that sends a POST request without a body to a path below that of the row.
func Post(name string) func(row, secret string) Request {
	return func(row, _ string) Request { return Request{Method: http.MethodPost, Path: row + "/" + name} }
}

// rows selects all rows, with the columns that [Service.Rows] may leave out. PostgreSQL looks for a name in the inner
// query first, and then in the outer one, which has the defaults.
func (s *Service) rows() string {
	return `SELECT complete.* FROM (SELECT false AS held, 0 AS extensions, NULL::timestamptz AS due) AS defaults,
		LATERAL (
		SELECT key, id, status, deadline, ended_at, coalesce(due, deadline) AS due, held, extensions
		FROM (` + s.Rows + `) AS given) AS complete`
}

// onTimeout returns statements that make the database execute a statement of PL/pgSQL whenever a row times out for
// which a condition on the columns of [Service.Rows] holds. A condition on the columns of the table would be one more
// thing to describe, so the trigger reads the row as the statement has left it.
func (s *Service) onTimeout(condition, statement string) string {
	return `
		CREATE FUNCTION on_timeout() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF EXISTS (
				SELECT FROM (` + s.rows() + `) AS r WHERE id = NEW.id AND status = 'timed out' AND ` + condition + `
			) THEN
				` + statement + `;
			END IF;
			RETURN NULL;
		END $$;
		CREATE TRIGGER on_timeout AFTER UPDATE ON ` + s.Table + ` FOR EACH ROW
		WHEN (OLD.status = 'pending' AND NEW.status <> 'pending') EXECUTE FUNCTION on_timeout()`
}

// rejectTimeouts makes the database reject the timeouts of the rows for which a condition holds, as a CHECK would. The
// error contains "rejected". The function accept ends that.
func (d *Deployment) rejectTimeouts(condition string) (accept func()) {
	d.T.Helper()
	d.Exec(d.Service.onTimeout(condition, `RAISE 'rejected' USING ERRCODE = 'check_violation'`))
	return func() { d.Exec(noTrigger) }
}

// blockTimeouts makes each statement that times rows out wait for a lock, after it has changed a row.
func (d *Deployment) blockTimeouts() (release func()) {
	d.T.Helper()
	_, unlock := d.Lock(`SELECT pg_advisory_xact_lock(` + blockedTimeouts + `)`)
	d.Exec(d.Service.onTimeout(`true`, `PERFORM pg_advisory_xact_lock_shared(`+blockedTimeouts+`)`))
	return func() {
		unlock()
		d.Exec(noTrigger)
	}
}

const (
	noTrigger       = `DROP FUNCTION on_timeout() CASCADE` // undoes onTimeout
	blockedTimeouts = `7301, 1`                            // the key of an advisory lock that the program does not use
	// waitingTimeouts selects the sessions that wait in order to time rows out, because of blockTimeouts. The program
	// may wait for advisory locks of its own.
	waitingTimeouts = `pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND (classid, objid) = (` +
		blockedTimeouts + `) AND NOT granted)`
)
