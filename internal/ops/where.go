package ops

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

//go:embed where_openapi.yaml
var whereContract []byte

// Find returns the row that has an id. For the id "" it returns the rows that are overdue for the longest time.
type Find func(ctx context.Context, id string) ([]app.FoundRow, error)

// where tells where a row is. The row, the outbox and Redis are read one after the other, so a row that ends meanwhile
// may seem to lack its task.
type where struct {
	app.FoundRow
	Next  string `json:"next"`  // what has happened, and what happens next
	Tasks []task `json:"tasks"` // the tasks that wait somewhere, and always the task that times out the row
}

// task is a task whose id is that of a row.
type task struct {
	Kind     string   `json:"kind"`
	State    string   `json:"state"`          // the state of its [delay.Location], or unknown
	Left     float64  `json:"left_seconds"`   // until a scheduled task is due, or the lease of a leased task ends
	Outbox   *float64 `json:"outbox_seconds"` // for how long the task has waited in the outbox; nil: it is not there
	Attempts int      `json:"attempts"`       // failed attempts
	Error    string   `json:"error"`          // of the last failed attempt
}

const unknown = "unknown" // the state of a task while Redis does not answer

// validID matches every text that may be an id, also of another service. PostgreSQL rejects some of the other texts.
var validID = regexp.MustCompile(`^[!-~]{1,255}$`)

func whereIs(kinds app.Kinds, find Find) gin.HandlerFunc {
	return rest.Handle(func(c *gin.Context) error {
		id, given := c.GetQuery("id")
		if given && !validID.MatchString(id) {
			return rest.MalformedRequest(rest.FieldError{
				Parameter: "id", Detail: "must be 1 to 255 printable ASCII characters without spaces",
			})
		}
		items, err := readWhere(c.Request.Context(), kinds, find, id)
		if err != nil {
			return err
		}
		c.JSON(http.StatusOK, gin.H{"items": items})
		return nil
	})
}

const redisTimeout = time.Second // of an answer's wait for Redis, because operators ask while Redis is down, too

// readWhere returns where the row with an id is. It returns at least one row, unless id is "".
func readWhere(ctx context.Context, kinds app.Kinds, find Find, id string) ([]where, error) {
	rows, err := find(ctx, id)
	if err != nil {
		return nil, err
	}
	if id != "" && len(rows) == 0 {
		return nil, rest.NotFound.Errorf("No row has the id %s.", id)
	}
	ids, found := make([]string, len(rows)), make([]where, len(rows))
	for i, row := range rows {
		ids[i], found[i] = row.ID, where{FoundRow: row, Tasks: []task{}}
	}
	redis, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	for _, k := range kinds {
		waiting, err := k.Outbox.Waiting(ctx, ids)
		if err != nil {
			return nil, err
		}
		locations, redisErr := k.Queue.Locate(redis, ids)
		for i := range found {
			t := task{Kind: k.Name, State: unknown}
			if waited, waits := waiting[ids[i]]; waits {
				t.Outbox = new(waited.Seconds())
			}
			if redisErr == nil {
				at := locations[i]
				t.State, t.Left, t.Attempts = at.State.String(), at.Left.Seconds(), at.Attempts
			}
			if t.Attempts > 0 {
				t.Error, _ = k.Queue.LastError(redis, ids[i]) // stays empty if Redis does not answer any more
			}
			if t.Kind == rows[i].Kind || t.Outbox != nil || t.State != delay.Absent.String() {
				found[i].Tasks = append(found[i].Tasks, t)
			}
		}
	}
	for i := range found {
		found[i].Next = found[i].sentence()
	}
	return found, nil
}

// sentence says in plain words what has happened to a row, and what happens next.
func (w *where) sentence() string {
	overdue := w.At.Sub(w.DueAt).Seconds()
	var task string
	for _, t := range w.Tasks {
		if t.Kind == w.Kind {
			task = t.sentence()
		}
	}
	switch {
	case w.EndedAt != nil:
		return fmt.Sprintf("It was %s by the %s at %s, and its due time was %s.",
			w.Status, w.EndedBy, clock(*w.EndedAt), clock(w.DueAt))
	case overdue > 0 && w.Blocker != "":
		return fmt.Sprintf("It is overdue by %s: %s. It times out after that.", duration(overdue), w.Blocker)
	case overdue > 0:
		return fmt.Sprintf("It is overdue by %s: %s. A sweep of the reconciler times out what the workers miss.",
			duration(overdue), task)
	case w.Held:
		return fmt.Sprintf("It is held while a second party may confirm it, at the latest until %s, for %s: %s.",
			clock(w.DueAt), duration(-overdue), task)
	default:
		return fmt.Sprintf("It is pending. Unless it ends before, it times out at %s, in %s: %s.",
			clock(w.DueAt), duration(-overdue), task)
	}
}

// sentence says where the task is, and who moves it on.
func (t *task) sentence() string {
	failed := ""
	if t.Attempts > 0 {
		failed = fmt.Sprintf(" after %d failed attempts (%s)", t.Attempts, strings.TrimSuffix(t.Error, "."))
	}
	claimable := t.State == delay.Scheduled.String() || t.State == delay.Leased.String()
	switch {
	case claimable && t.Left <= 0:
		return fmt.Sprintf("no worker has claimed its task for %s. Check that a worker runs", duration(-t.Left))
	case t.State == delay.Scheduled.String():
		return fmt.Sprintf("a worker takes its task in %s%s", duration(t.Left), failed)
	case t.State == delay.Leased.String():
		return fmt.Sprintf("a worker has claimed its task, and the lease ends in %s", duration(t.Left))
	case t.State == delay.Dead.String():
		return fmt.Sprintf("its task is a dead letter%s, and an operator can redrive it", failed)
	case t.Outbox != nil:
		return fmt.Sprintf("its task has waited for a relay in the outbox for %s", duration(*t.Outbox))
	case t.State == unknown:
		return "Redis does not answer, and meanwhile the reconciler times out the rows"
	default:
		return "Redis has no task of it until a sweep of the reconciler adds one"
	}
}

func clock(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

func duration(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
}
