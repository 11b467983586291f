package faulttest

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
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
// The tests also rely on what the shared packages give each service: the commands serve, migrate, doctor and reconcile, the
// tables outbox and reconcile_reports, /readyz, /metrics and the operators' API. The module has the migrations in migrations,
// and the settings of PgBouncer in internal/postgres/pgbouncer.ini.
type Service struct {
	// The program.

	Program string   // the binary, its application_name in PostgreSQL, and the prefix of its metrics
	Module  string   // the directory of the module, seen from the package of the tests
	Source  string   // the directory of the package main, below Module
	Migrate []string // the command that creates the tables, and the rows that the tests need
	Kind    string   // of the tasks that time rows out
	// Timeout is the environment variable, without [EnvPrefix], of the time from a row's creation to its deadline.
	Timeout string
	// Keep is the environment variable, without EnvPrefix, of the time for which ended rows are kept. "": for ever.
	Keep string
	// BatchMetric is the histogram of the number of rows that were created in one transaction. "": each row has a
	// transaction of its own.
	BatchMetric string

	// The REST API.

	Contract func() (*parttest.Contract, error) // which each answer must keep
	// SignUp is the path of the request that creates a customer. The answer has the customer's token. "": requests need
	// no token.
	SignUp string
	// Collection is the path below which each row has the path of its id.
	Collection string
	// Actions are the last elements of the paths of a customer's calls of confirm, cancel and extend. Customers do not
	// call an operation that is missing. Only customers of a second party extend deadlines.
	Actions map[Operation]string
	// Create returns the request that creates a row from a body. The key is a text of letters, digits and hyphens that
	// the column key of Rows shows, or "".
	Create func(body, key string) Request
	// Keyed tells that requests with the same key create one row. Otherwise no customer repeats such a request.
	Keyed bool
	// Bodies are bodies of requests that create rows. If there are shared rows, each request with the first body
	// creates another row, and at least one of the other bodies needs a scarce shared row, which a load exhausts.
	Bodies []string
	// Decode reads the body of a successful answer to create, confirm, cancel, get or extend.
	Decode func(body []byte) (Row, error)
	// Rejections maps the type of a problem to the reason that the model knows. The tests expect that a service rejects
	// calls because of overload, of exhausted shared rows or of bounds only if these reasons are here.
	Rejections map[string]Rejection

	// The tables.

	// Table is the table of rows. In its columns, id is the row's id, and status is 'pending' until the row ends.
	Table string
	// Batch is a column of Table that can store the batch of InsertBatch.
	Batch string
	// Rows selects all rows, with the columns key, id, status (pending, confirmed, cancelled or timed out), deadline,
	// cancelled_at, held (whether the row was held at any time), extensions (how often its customer has extended
	// its deadline, at most MaxExtensions), and batch.
	Rows string
	// TimedOut is the condition on NEW that holds when an update of the table times a row out.
	TimedOut string
	// TimeoutStatement is a LIKE pattern of the statement that times rows out.
	TimeoutStatement string
	// BlockTimeouts takes locks for which the statement that times rows out waits. It takes them in the service's
	// order.
	BlockTimeouts string
	// InsertBatch inserts rows, and their messages into the outbox: $1 is the batch, a new UUID; $2 the time until
	// their deadline in seconds; $3 the number of rows. If there are shared rows, each batch has one of its own.
	InsertBatch string

	Shared *SharedRows     // nil: no two rows need the same row of another table
	Bounds *CustomerBounds // nil: a customer can have any number of rows

	// Party starts the service's second party for a deployment, and returns the environment variables with which the
	// processes find it. It may change the deployment's times, plans and kinds. nil: the service has no second party.
	Party func(d *Deployment) (Party, []string)

	program, laterProgram built
}

// built is a program that is built once.
type built struct {
	once sync.Once
	path string
	err  error
}

func (b *built) get(build func() (string, error)) (path string, err error) {
	b.once.Do(func() { b.path, b.err = build() })
	return b.path, b.err
}

// TimeoutVariable is the environment variable of the time from a row's creation to its deadline.
func (s *Service) TimeoutVariable() string { return EnvPrefix + s.Timeout }

// path returns the path of a file or a directory of the module.
func (s *Service) path(elem ...string) string {
	return filepath.Join(append([]string{s.Module}, elem...)...)
}

// queue returns the keys of the queue of timeouts.
func (s *Service) queue() queueKeys { return keysOf(s.Kind) }

// SharedRows are rows of another table, such as products, of which the rows under test take units until they end.
type SharedRows struct {
	// Rush returns the body of the i-th of the requests that are sent at the same moment, when many customers want the
	// same shared row. Each rush wants another one, which has fewer units than are wanted. nil: no shared row is
	// scarce.
	Rush func(rush, i int) string
	// Units returns how many units of each shared row a row with this body takes.
	Units func(body string) map[string]int
	// Supplies selects how many units of each shared row rows can take: shared row, units.
	Supplies string
	// List is the path that lists the shared rows, and available reads from the answer how many more rows the first
	// body can create.
	List      string
	Available func(list []byte) int
	// Stock prepares the migrated database for a load. It adds so much of each shared row, except the scarce one, that
	// no load exhausts it, and the shared rows of the rushes.
	Stock string
	// Restock adds a little to the scarce shared row.
	Restock string
	// LockFirst and LockSecond each lock shared rows. A request with the first body must wait for LockFirst. Some
	// request or timeout needs both, and the service locks them in the order first, second: a test that locks them in
	// the opposite order causes deadlocks. A request with the body Independent needs neither.
	LockFirst, LockSecond string
	Independent           string
	// LockBatch locks the shared row of a batch: $1 is the batch.
	LockBatch string
	// WithdrawBatch changes the shared row of a batch so that each statement that times out its rows fails, and
	// RestoreBatch undoes the change: $1 is the batch. RestoreBatch must also use $2, the number of rows in the batch.
	WithdrawBatch, RestoreBatch string
}

// CustomerBounds are the bounds on what one customer can have at a time.
type CustomerBounds struct {
	// Env are environment variables of a process that set the bounds so low that a load reaches them.
	Env []string
	// Exceeds reports whether a customer with exactly these rows would exceed a bound with one more. All are given by
	// their bodies.
	Exceeds func(body string, rows []string) bool
	// Open reads the ids of the customer's rows from a problem that rejects a request because of a bound. They are
	// those that count towards the bound.
	Open func(problem []byte) (ids []string, err error)
	// Exceeded counts the rows after whose creation their customer exceeded a bound.
	Exceeded string
}

// rushes reports whether some shared row is scarce.
func (s *Service) rushes() bool { return s.Shared != nil && s.Shared.Rush != nil }

// has reports whether customers can call an operation of a row.
func (s *Service) has(o Operation) bool { return s.Actions[o] != "" }

// available returns how many more rows the first body can create, or 0 if rows share no rows.
func (s *Service) available(c *Client) int {
	c.T.Helper()
	if s.Shared == nil {
		return 0
	}
	return s.Shared.Available(c.Get(s.Shared.List).Body)
}

// rejects reports whether the service may reject a request for a reason.
func (s *Service) rejects(why Rejection) bool {
	return slices.Contains(slices.Collect(maps.Values(s.Rejections)), why)
}

// Get returns the request of a customer who looks at a row.
func (s *Service) Get(id string) Request {
	return Request{Method: http.MethodGet, Path: s.Collection + "/" + id}
}

// Confirm and Cancel return the requests of a customer who confirms or cancels a row.
func (s *Service) Confirm(id string) Request { return s.act(Confirm, id) }

// Cancel is described at [Service.Confirm].
func (s *Service) Cancel(id string) Request { return s.act(Cancel, id) }
func (s *Service) extend(id string) Request { return s.act(Extend, id) }

func (s *Service) act(o Operation, id string) Request {
	return Request{Method: http.MethodPost, Path: s.Collection + "/" + id + "/" + s.Actions[o]}
}

// lockPending returns a statement that locks all pending rows.
func (s *Service) lockPending() string {
	return `SELECT FROM ` + s.Table + ` WHERE status = 'pending' ORDER BY id FOR UPDATE`
}

// lockBatchRows returns a statement that locks the rows of a batch: $1 is the batch.
func (s *Service) lockBatchRows() string {
	return `SELECT FROM ` + s.Table + ` WHERE ` + s.Batch + `::text = $1 FOR UPDATE`
}

// rejectTimeouts returns statements that make the database reject the timeouts of the rows for which a condition on NEW
// holds. The database's error contains "rejected".
func (s *Service) rejectTimeouts(condition string) string {
	return `
		CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'rejected'; END $$;
		CREATE TRIGGER reject BEFORE UPDATE ON ` + s.Table + ` FOR EACH ROW
		WHEN (` + s.TimedOut + ` AND ` + condition + `) EXECUTE FUNCTION reject()`
}

// acceptTimeouts undoes rejectTimeouts.
const acceptTimeouts = `DROP FUNCTION reject() CASCADE`

// laterMigration returns a migration of a later version of the service.
func (s *Service) laterMigration() string {
	return fmt.Sprintf(`-- +goose NO TRANSACTION
-- +goose Up
ALTER TABLE %[1]s ADD COLUMN IF NOT EXISTS note text;
DROP INDEX IF EXISTS %[1]s_note;
SET lock_timeout = 0;
CREATE INDEX CONCURRENTLY %[1]s_note ON %[1]s (note) WHERE note IS NOT NULL;
SET lock_timeout = '2s';
`, s.Table)
}
