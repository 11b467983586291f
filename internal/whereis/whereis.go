// Package whereis says where an order is: its rows, its tasks, the sessions that have locked it, and what happens next. It also lists
// the orders that are overdue for the longest time.
package whereis

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
)

var (
	//go:embed facts.sql
	factsSQL string
	//go:embed locks.sql
	locksSQL string
)

// Service finds orders.
type Service struct {
	db     *gorm.DB
	kinds  *app.Kinds
	orders *order.Service
}

// New returns a service for the orders in a database that [postgres.Open] connected to. kinds are all kinds of task, also those that are
// added later.
func New(db *gorm.DB, kinds *app.Kinds, orders *order.Service) *Service {
	return &Service{db, kinds, orders}
}

// View is where an order is. Its rows, its tasks, its status and its locks are read one after the other, so they may differ by some
// milliseconds.
type View struct {
	OrderID uuid.UUID    `json:"order_id"`
	Next    string       `json:"next"` // what has happened, and what happens next
	Status  order.Status `json:"status"`
	At      time.Time    `json:"at"`     // when the state was read, by the database's clock
	DueAt   time.Time    `json:"due_at"` // when the order ends, or would have ended, unless it is paid before

	Tasks []Task `json:"tasks"`
	Locks []Lock `json:"locks"` // only of an overdue order

	Rows map[string]json.RawMessage `json:"rows"` // an array of objects for each table or view that has rows of the order

	blocker *Lock // why the order is overdue; nil: it is not, or not because of a lock
}

// Task is a task of an order.
type Task struct {
	Kind     string   `json:"kind"`
	ID       string   `json:"id"`
	State    string   `json:"state"`          // that of a [delay.Location], or "unknown" if Redis does not answer
	Left     *float64 `json:"left_seconds"`   // until a scheduled task is due or the lease of a leased one ends; nil: neither
	Owner    string   `json:"owner"`          // the worker that has leased the task; "": it is not leased, or its worker is not known
	Outbox   *float64 `json:"outbox_seconds"` // for how long the task has waited in the outbox; nil: it is not there
	Attempts int      `json:"attempts"`       // failed attempts so far
	Error    string   `json:"error"`          // of the last failed attempt
}

const unknown = "unknown" // the state of a task while Redis does not answer

// Lock is a lock of another session on a row that the cancellation of an order must lock.
type Lock struct {
	Row         string     `json:"row"` // "order" or "product"
	ID          uuid.UUID  `json:"id"`
	PID         *int       `json:"pid" gorm:"column:pid"` // the process of the session in PostgreSQL; nil: several sessions share the lock
	Application *string    `json:"application"`           // the name that the session has given itself
	State       *string    `json:"state"`                 // of the session, for example "idle in transaction"
	Since       *time.Time `json:"since"`                 // when the session's transaction began
}

// facts are what the sentence about an order says.
type facts struct {
	Status  order.Status
	DueAt   time.Time
	Held    bool
	EndedAt *time.Time
	EndedBy string
	At      time.Time

	owed  bool
	alone bool // the service has no Redis, so there are no tasks
	task  Task // the one that cancels the order
	locks []Lock
}

func (f *facts) pending() bool { return f.Status == order.Pending }

// overdue returns for how long the order is overdue. It is negative before the due time.
func (f *facts) overdue() time.Duration { return f.At.Sub(f.DueAt) }

// Where returns where an order is. id is the order's, or that of a row of another part that refers to the order. Where returns nil if
// there is none.
func (s *Service) Where(ctx context.Context, id string) (*View, error) {
	order, found, err := s.orders.Find(ctx, id)
	if err != nil || !found {
		return nil, err
	}
	return s.view(ctx, &redisState{}, order)
}

// redisState remembers that Redis has not answered, so that an answer waits for it only once.
type redisState struct{ down bool }

// view returns where an order is, or nil if it was removed.
//
// A task moves from the outbox to Redis, and then the order ends. The view looks in this order, so it misses no task that moves
// meanwhile.
func (s *Service) view(ctx context.Context, redis *redisState, id uuid.UUID) (*View, error) {
	rows, owed, err := s.orders.Rows(ctx, id)
	if err != nil {
		return nil, err
	}
	v := &View{OrderID: id, Rows: make(map[string]json.RawMessage), Locks: []Lock{}}
	ids := []string{id.String()}
	for _, row := range rows {
		v.Rows[row.Table] = json.RawMessage(row.Rows)
		for _, id := range idsOf(row.Rows) {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	if v.Tasks, err = s.tasks(ctx, redis, ids); err != nil {
		return nil, err
	}
	var f facts
	result := s.db.WithContext(ctx).Raw(factsSQL, id).Scan(&f)
	if result.Error != nil {
		return nil, fmt.Errorf("read the state of an order: %w", result.Error)
	}
	if result.RowsAffected == 0 {
		return nil, nil
	}
	if f.pending() && f.overdue() > 0 {
		if v.Locks, err = s.locks(ctx, id); err != nil {
			return nil, err
		}
	}
	f.owed, f.alone, f.task, f.locks = owed, len(s.kinds.WithQueues()) == 0, v.Tasks[0], v.Locks
	needsTask := f.pending() && !f.alone
	if !needsTask && f.task == (Task{Kind: f.task.Kind, ID: f.task.ID, State: delay.Absent.String()}) {
		v.Tasks = v.Tasks[1:]
	}
	v.blocker = f.blocker()
	v.Status, v.At, v.DueAt, v.Next = f.Status, f.At.UTC(), f.DueAt.UTC(), f.sentence()
	return v, nil
}

// locks returns the locks on an order and its products. The statement takes locks itself. So the transaction is rolled back: a commit
// would wait for a standby, and keep these locks meanwhile.
func (s *Service) locks(ctx context.Context, id uuid.UUID) ([]Lock, error) {
	locks := []Lock{}
	tx := s.db.WithContext(ctx).Begin()
	defer tx.Rollback()
	if err := tx.Raw(locksSQL, id).Scan(&locks).Error; err != nil {
		return nil, fmt.Errorf("look for the locks of an order: %w", err)
	}
	return locks, nil
}

// idsOf returns the texts in the column id of rows. A task may have the id of such a row.
func idsOf(rows string) (ids []string) {
	var objects []struct {
		ID any `json:"id"`
	}
	if json.Unmarshal([]byte(rows), &objects) != nil {
		return nil
	}
	for _, o := range objects {
		if id, ok := o.ID.(string); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// redisTimeout is the time for which an answer waits for Redis. With a longer one, operators wait longer for the answer while Redis is
// down.
const redisTimeout = time.Second

// tasks returns the tasks with these ids that are in a queue or in an outbox. The first one is the task that cancels the order
// ids[0], even if it is in neither.
func (s *Service) tasks(ctx context.Context, redis *redisState, ids []string) ([]Task, error) {
	tasks := []Task{{Kind: order.CancelKind, ID: ids[0], State: delay.Absent.String()}}
	for _, k := range s.kinds.WithQueues() {
		all := make([]Task, len(ids))
		for i, id := range ids {
			all[i] = Task{Kind: k.Name, ID: id, State: unknown}
			waited, waits, err := k.Outbox.Waiting(ctx, id)
			if err != nil {
				return nil, err
			}
			if waits {
				all[i].Outbox = seconds(waited)
			}
		}
		redis.ask(ctx, func(ctx context.Context) error {
			locations, err := k.Queue.Locate(ctx, ids)
			for i, at := range locations {
				all[i].describe(ctx, k.Queue, at)
			}
			return err
		})
		for _, t := range all {
			switch {
			case t.Kind == tasks[0].Kind && t.ID == tasks[0].ID:
				tasks[0] = t
			case t.Outbox != nil || t.State != unknown && t.State != delay.Absent.String():
				tasks = append(tasks, t)
			}
		}
	}
	return tasks, nil
}

// ask calls do, which asks Redis, unless Redis has not answered before.
func (r *redisState) ask(ctx context.Context, do func(ctx context.Context) error) {
	if r.down {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	r.down = do(ctx) != nil
}

// describe sets what Redis knows of the task.
func (t *Task) describe(ctx context.Context, queue *delay.Queue, at delay.Location) {
	t.State, t.Attempts = at.State.String(), at.Attempts
	if at.State == delay.Scheduled || at.State == delay.Leased {
		t.Left = seconds(at.Left)
	}
	// If Redis does not answer any more, the owner and the error stay empty.
	if at.State == delay.Leased {
		t.Owner, _ = queue.Owner(ctx, t.ID)
	}
	if at.Attempts > 0 {
		t.Error, _ = queue.LastError(ctx, t.ID)
	}
}

func seconds(d time.Duration) *float64 { return new(d.Seconds()) }

// minOverdue is by how much the orders of a list are overdue at least. A healthy service cancels an order sooner.
const minOverdue = time.Second

// maxListed is the largest number of orders in the list of overdue orders. Each has a view of its own, which takes some statements.
const maxListed = 20

// Overdue returns the views of the orders that are overdue for the longest time, at most 20. Orders that are overdue by less than a
// second are left out.
func (s *Service) Overdue(ctx context.Context) ([]*View, error) {
	var ids []uuid.UUID
	err := s.db.WithContext(ctx).Raw(`SELECT id FROM orders WHERE status = 'pending' AND due_at < now() - $1 * interval '1 second'
		ORDER BY due_at, id LIMIT $2`, minOverdue.Seconds(), maxListed).Scan(&ids).Error
	if err != nil {
		return nil, fmt.Errorf("look for overdue orders: %w", err)
	}
	views, redis := []*View{}, &redisState{}
	for _, id := range ids {
		v, err := s.view(ctx, redis, id)
		if err != nil {
			return nil, err
		}
		if v != nil {
			views = append(views, v)
		}
	}
	return views, nil
}
