package faulttest

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/testenv"
)

// wrong is an error in a field of a description.
func wrong(field, format string, args ...any) error {
	return fmt.Errorf("the description of the service is wrong: %s: %w", field, fmt.Errorf(format, args...))
}

// check checks a description against a deployment that has no load: its statements run and fit each other, and a row
// can be created, found, confirmed and cancelled as it says. The error names the field that is wrong.
func (d *Deployment) check(s *Service) error {
	if err := d.checkVariables(s); err != nil {
		return err
	}
	tx, err := d.DB.BeginTx(d.T.Context(), nil)
	if err != nil {
		return err
	}
	err = s.checkTables(d.T.Context(), tx)
	_ = tx.Rollback()
	if apis := d.Running("api"); err == nil && len(apis) > 0 {
		err = d.checkAPI(&Client{service: s, T: d.T, Base: apis[0].URL})
	}
	return err
}

// checkVariables checks that the program has an option for each environment variable that a description names. It would
// ignore any other.
func (d *Deployment) checkVariables(s *Service) error {
	program, err := d.Service.Binary()
	if err != nil {
		return err
	}
	help, err := exec.CommandContext(d.T.Context(), program, "serve", "--help").Output()
	if err != nil {
		return fmt.Errorf("%s serve --help: %w", program, err)
	}
	variables := map[string]string{s.TimeoutVariable(): "Timeout"}
	for _, name := range s.Extend {
		variables[EnvPrefix+name] = "Extend"
	}
	for _, setting := range cmp.Or(s.Bounds, &CustomerBounds{}).Env {
		name, _, _ := strings.Cut(setting, "=")
		variables[name] = "Bounds.Env"
	}
	for name, field := range variables {
		if !strings.Contains(string(help), "($"+name+")") {
			return wrong(field, "the program's command serve has no option with the variable %s", name)
		}
	}
	return nil
}

// checkTables checks the statements of a description. The caller rolls their transaction back.
func (s *Service) checkTables(ctx context.Context, tx *sql.Tx) error {
	statements := []struct{ field, text string }{
		{"Table", `SELECT id, status FROM ` + s.Table + ` LIMIT 0`},
		{"Rows", `SELECT FROM (` + s.rows() + `) AS rows LIMIT 0`},
		{"Bounds.Exceeded", cmp.Or(s.Bounds, &CustomerBounds{}).Exceeded},
	}
	for _, statement := range statements {
		if _, err := tx.ExecContext(ctx, statement.text); err != nil {
			return wrong(statement.field, "%w", err)
		}
	}
	const n = 2
	b, err := s.insertBatch(ctx, tx, n, time.Minute)
	if err != nil {
		return wrong("InsertBatch", "%w", err)
	}
	var found int
	err = tx.QueryRowContext(ctx, `SELECT count(*) FROM (`+s.rows()+`) AS rows WHERE id::text = ANY ($1)
		AND status = 'pending' AND abs(extract(epoch FROM deadline - now()) - 60) < 1`, b.ids).Scan(&found)
	if err != nil {
		return wrong("Rows", "%w", err)
	}
	if found != n {
		return wrong("InsertBatch", "Rows has %d pending rows of %q that are due in a minute, want %d", found, b.ids, n)
	}
	if s.Shared == nil {
		return nil
	}
	return s.checkShared(ctx, tx, b)
}

// checkShared checks the description of the shared rows. One of them is that of a batch.
func (s *Service) checkShared(ctx context.Context, tx *sql.Tx, b batch) error {
	free, err := s.supplies(ctx, tx)
	if err != nil {
		return wrong("Shared.Supplies", "%w", err)
	}
	bodies := s.Bodies
	if s.rushes() {
		if s.Shared.Rushes == 0 {
			return wrong("Shared.Rushes", "it is 0, want the number of rushes for which Stock adds shared rows")
		}
		bodies = append(slices.Clone(bodies), s.Shared.Rush(s.Shared.Rushes-1, 0))
	}
	for _, body := range bodies {
		for name := range s.Shared.Units(body) {
			if _, known := free[name]; !known {
				return wrong("Shared.Units", "%s needs %q, which Supplies does not select", body, name)
			}
		}
	}
	if s.independent() == "" {
		return wrong("Bodies", "each body needs a shared row that the first one needs")
	}
	for _, names := range [][]string{s.Shared.needs(s.Bodies[0]), {b.shared}} {
		locked, err := tx.ExecContext(ctx, s.Shared.Lock, names)
		if err != nil {
			return wrong("Shared.Lock", "%w", err)
		}
		if n, err := locked.RowsAffected(); err != nil || n == 0 {
			return wrong("Shared.Lock", "it locks no row of %q, of the first body or of InsertBatch", names)
		}
	}
	return nil
}

// checkAPI checks the description of the REST API. Rows that time out meanwhile, on a slow machine, are no error.
func (d *Deployment) checkAPI(c *Client) error {
	s := c.service
	if _, err := s.Contract(); err != nil {
		return wrong("Contract", "%w", err)
	}
	if err := c.signUp(); err != nil {
		return err
	}
	key := "check-" + uuid.NewString()
	row, err := c.checkedRow("Create", http.StatusCreated, s.Create(s.Bodies[0], key), Pending)
	if err != nil {
		return err
	}
	if s.Keyed {
		if _, err := c.checkedRow("Keyed", http.StatusOK, s.Create(s.Bodies[0], key), Pending); err != nil {
			return err
		}
	}
	var shown Status
	var left float64
	err = d.DB.QueryRowContext(d.T.Context(), `SELECT status, extract(epoch FROM deadline - clock_timestamp())
		FROM (`+s.rows()+`) AS rows WHERE id::text = $1 AND key = $2`, row.ID, key).Scan(&shown, &left)
	switch {
	case err != nil:
		return wrong("Rows", "the row %s with the key %q: %w", row.ID, key, err)
	case shown != Pending && shown != TimedOut:
		return wrong("Rows", "the status of a new row is %q, want %q", shown, Pending)
	case !d.owes(s, row.ID):
		return wrong("Kind", "neither the outbox nor the queue of %s has the task of a new row", s.Kind)
	case left > d.Timeout.Seconds():
		return wrong("Timeout", "a new row is due in %v s, want at most %v", left, d.Timeout)
	}
	if _, err := c.checkedRow("Collection", http.StatusOK, s.Get(row.ID), ""); err != nil {
		return err
	}
	secret, err := s.secret(d.T.Context(), d.DB, row.ID)
	if err != nil {
		return wrong("Secret", "%w", err)
	}
	for _, o := range s.others() {
		a, err := c.Try(s.act(o, row.ID, secret))
		if err != nil || a.Status != http.StatusOK && a.Rejected != RejectedOther && a.Rejected != RejectedLate {
			return wrong(fmt.Sprintf("Actions[%s]", o), "it is answered with %d %s (%v)", a.Status, a.Body, err)
		}
	}
	_, err = c.checkedRow("Actions[Confirm]", http.StatusOK, s.Confirm(row.ID, secret), Confirmed)
	if err != nil || !s.has(Cancel) {
		return err
	}
	row, err = c.checkedRow("Create", http.StatusCreated, s.Create(s.Bodies[0], key+"-cancelled"), Pending)
	if err != nil {
		return err
	}
	_, err = c.checkedRow("Actions[Cancel]", http.StatusOK, s.Cancel(row.ID, d.secret(row.ID)), Cancelled)
	return err
}

// owes reports whether the outbox or the queue has the task of a row, unless a worker may have it. A task leaves the
// outbox after it has entered the queue.
func (d *Deployment) owes(s *Service, id string) bool {
	d.T.Helper()
	if d.Number(`SELECT count(*) FROM outbox WHERE kind = $1 AND task_id = $2`, s.Kind, id) > 0 {
		return true
	}
	for shard := range mostShards {
		due, err := d.RDB.ZMScore(d.T.Context(), keysOf(s.Kind, shard).due, id).Result()
		testenv.Must(d.T, err)
		if due[0] > 0 {
			return true
		}
	}
	const ends = `id::text = $1 AND (status <> 'pending' OR deadline < clock_timestamp() + interval '1 s')`
	return d.rows(ends, id) > 0
}

// checkedRow sends a request until it is answered with a status other than 503, and returns the row that the answer
// shows. An answer that comes after the row's deadline may have any row.
func (c *Client) checkedRow(field string, status int, r Request, want Status) (row Row, err error) {
	var a Answer
	testenv.EventuallyWithin(c.T, Patience, r.Method+" "+r.Path+" is answered", func() bool {
		a, err = c.Try(r)
		return a.Status != http.StatusServiceUnavailable
	})
	switch {
	case a.Rejected == RejectedLate:
		return row, nil
	case a.Status != status:
		return row, wrong(field, "%s %s is answered with %d %s, want %d", r.Method, r.Path, a.Status, a.Body, status)
	case err != nil:
		return row, wrong("Contract", "%w", err)
	}
	if row, err = c.service.Decode(a.Body); err != nil {
		return row, wrong("Decode", "%w", err)
	}
	if row.ID == "" || want != "" && row.Status != want && row.Status != TimedOut {
		return row, wrong("Decode", "%s shows the row %q with the status %q, want an id and %q",
			a.Body, row.ID, row.Status, want)
	}
	return row, nil
}
