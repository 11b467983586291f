package e2e

import (
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"example.com/shop/internal/option"
	"example.com/shop/internal/testenv/parttest"
)

// envPrefix is the prefix of the program's environment variables.
const envPrefix = option.EnvPrefix + "_"

// item is one thing that times out.
type item struct {
	state
	deadline    time.Time
	cancelledAt time.Time // zero unless it was cancelled, by its customer or by its timeout
}

// status is the status of an item.
type status string

const (
	absent    status = "absent" // the item was never created
	pending   status = "pending"
	expired   status = "expired" // pending past its deadline; the API and the table still show pending
	confirmed status = "confirmed"
	cancelled status = "cancelled" // by its customer
	timedOut  status = "timed out"
)

// service describes a service under test: its program, the requests of its REST API, and the SQL with which the tests
// read all items and block the service.
type service struct {
	program string   // the binary, its application_name in PostgreSQL, and the prefix of its metrics
	module  string   // the directory of the module, seen from the package of the tests
	source  string   // the directory of the package main, below module
	migrate []string // the command that creates the tables, and the rows that the tests need
	kind    string   // of the tasks that time items out
	timeout string   // the environment variable of the time from an item's creation to its deadline, without the prefix

	// keep is the environment variable of the time for which ended items are kept, without the prefix. "": for ever.
	keep string

	// contract returns the contract that each answer must keep.
	contract func() (*parttest.Contract, error)
	// signUp is the path of the request that creates a customer. The answer has the customer's token. "": requests need
	// no token.
	signUp string

	// collection is the path below which each item has the path of its id.
	collection string
	// actions are the last elements of the paths of a customer's calls of confirm, cancel and extend. The plans of visits
	// with a missing operation are left out. Only visits of a second party's plans extend deadlines.
	actions map[operation]string
	// create returns the request that creates an item from a body. key is a text of letters, digits and hyphens, and may be
	// "". The column key of items shows it.
	create func(body, key string) request
	// keyed reports whether requests with the same key create one item. Otherwise no customer repeats such a request.
	keyed bool
	// bodies are bodies of requests that create items. With resources, each request with the first body creates another
	// item, and at least one of the other bodies needs a scarce resource, so that a load exhausts it.
	bodies []string
	// decode reads the body of a successful response to create, confirm, cancel, get or extend.
	decode func(body []byte) (item, error)
	// rejections maps the type of a problem to the reason that the model knows. The tests of overload, of exhausted
	// resources and of bounds expect these reasons only if rejections has them.
	rejections map[string]rejection
	// batchMetric is the histogram of the number of items that were created in one transaction. "": each item has a
	// transaction of its own.
	batchMetric string

	// table is the table of items. In its columns, id is the item's id, and status is 'pending' until the item ends.
	table string
	// batch is a column of the table that can store a batch of insertBatch.
	batch string
	// items selects all items, with the columns key, id, status (pending, confirmed, cancelled or timed out), deadline,
	// cancelled_at, held (whether the item was held at any time), extended (whether its customer has extended its
	// deadline), and batch.
	items string
	// timedOut is the condition on NEW that holds when an update of the table times an item out.
	timedOut string
	// timeoutStatement is a LIKE pattern of the statement that times items out.
	timeoutStatement string
	// blockTimeouts takes locks for which the statement that times items out waits. It takes them in the service's order.
	blockTimeouts string
	// insertBatch inserts items, and their messages into the outbox: $1 is the batch, a new UUID; $2 the time until their
	// deadline in seconds; $3 the number of items. With resources, each batch has a resource of its own.
	insertBatch string

	resources *resources // nil: items share no rows
	bounds    *customerBounds

	// party starts the service's second party for a deployment, and returns the environment variables with which the
	// processes find it. It may change the deployment's times, plans and kinds. nil: the service has no second party.
	party func(d *deployment) (party, []string)

	built, builtNewer built
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

// timeoutVariable is the environment variable of the time from an item's creation to its deadline.
func (s *service) timeoutVariable() string { return envPrefix + s.timeout }

// path returns the path of a file or a directory of the module.
func (s *service) path(elem ...string) string {
	return filepath.Join(append([]string{s.module}, elem...)...)
}

// queue returns the keys of the queue of timeouts.
func (s *service) queue() queueKeys { return keysOf(s.kind) }

// resources are the shared rows of a service. An item takes units of them until it ends.
type resources struct {
	// rush returns the body of the i-th of the requests that are sent at the same moment, when many customers want the
	// same resource. Each rush wants another resource, and less of it exists than is wanted. nil: no resource is scarce.
	rush func(rush, i int) string
	// units returns how many units of each resource an item with this body takes.
	units func(body string) map[string]int
	// supplies selects how many units of each resource items can take: resource, units.
	supplies string
	// list is the path that lists the resources, and available reads from the answer how many more items the first body
	// can create.
	list      string
	available func(list []byte) int
	// stock prepares the migrated database for a load. It adds so much of each resource, except the scarce one, that no
	// load exhausts it, and the resources of the rushes.
	stock string
	// restock adds a little to the scarce resource.
	restock string
	// lockFirst and lockSecond each lock shared rows. A request with the first body must wait for lockFirst. Some request or
	// timeout needs both, and the service locks them in the order first, second: a test that locks them in the opposite
	// order causes deadlocks. A request with the body independent needs neither.
	lockFirst, lockSecond string
	independent           string
	// lockBatch locks the resource of a batch: $1 is the batch.
	lockBatch string
	// withdrawBatch changes the resource of a batch so that each statement that times out its items fails, and
	// restoreBatch undoes the change: $1 is the batch. restoreBatch must also use $2, the number of items in the batch.
	withdrawBatch, restoreBatch string
}

// customerBounds are the bounds on what one customer can have at a time.
type customerBounds struct {
	// env are environment variables of a process that set the bounds so low that a load reaches them.
	env []string
	// exceeds reports whether a customer with exactly these items would exceed a bound with one more. All are given by
	// their bodies.
	exceeds func(body string, items []string) bool
	// open reads the ids of the customer's items from a problem that rejects a request because of a bound. They are those
	// that count towards the bound.
	open func(problem []byte) (ids []string, err error)
	// exceeded counts the items after whose creation their customer exceeded a bound.
	exceeded string
}

// rushes reports whether some resource is scarce.
func (s *service) rushes() bool { return s.resources != nil && s.resources.rush != nil }

// has reports whether customers can call an operation of an item.
func (s *service) has(o operation) bool { return s.actions[o] != "" }

// available returns how many more items the first body can create, or 0 if items share no rows.
func (s *service) available(c *client) int {
	c.t.Helper()
	if s.resources == nil {
		return 0
	}
	return s.resources.available(c.get(s.resources.list).body)
}

// rejects reports whether the service may reject a request for a reason.
func (s *service) rejects(why rejection) bool {
	return slices.Contains(slices.Collect(maps.Values(s.rejections)), why)
}

// The requests of an item's customer.

func (s *service) get(id string) request {
	return request{method: http.MethodGet, path: s.collection + "/" + id}
}

func (s *service) confirm(id string) request { return s.act(confirm, id) }
func (s *service) cancel(id string) request  { return s.act(cancel, id) }
func (s *service) extend(id string) request  { return s.act(extend, id) }

func (s *service) act(o operation, id string) request {
	return request{method: http.MethodPost, path: s.collection + "/" + id + "/" + s.actions[o]}
}

// lockPending returns a statement that locks all pending items.
func (s *service) lockPending() string {
	return `SELECT FROM ` + s.table + ` WHERE status = 'pending' ORDER BY id FOR UPDATE`
}

// lockBatchItems returns a statement that locks the items of a batch: $1 is the batch.
func (s *service) lockBatchItems() string {
	return `SELECT FROM ` + s.table + ` WHERE ` + s.batch + `::text = $1 FOR UPDATE`
}

// rejectTimeouts returns statements that make the database reject the timeouts of the items for which a condition on NEW
// holds. The database's error contains "rejected".
func (s *service) rejectTimeouts(condition string) string {
	return `
		CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'rejected'; END $$;
		CREATE TRIGGER reject BEFORE UPDATE ON ` + s.table + ` FOR EACH ROW
		WHEN (` + s.timedOut + ` AND ` + condition + `) EXECUTE FUNCTION reject()`
}

// acceptTimeouts undoes rejectTimeouts.
const acceptTimeouts = `DROP FUNCTION reject() CASCADE`

// laterMigration returns a migration of a later version of the service.
func (s *service) laterMigration() string {
	return fmt.Sprintf(`-- +goose NO TRANSACTION
-- +goose Up
ALTER TABLE %[1]s ADD COLUMN IF NOT EXISTS note text;
DROP INDEX IF EXISTS %[1]s_note;
SET lock_timeout = 0;
CREATE INDEX CONCURRENTLY %[1]s_note ON %[1]s (note) WHERE note IS NOT NULL;
SET lock_timeout = '2s';
`, s.table)
}
