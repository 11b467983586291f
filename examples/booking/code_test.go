package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/timeout"
)

// recorder is a sender that records the messages. It fails for those of some rows.
type recorder struct {
	mu   sync.Mutex
	sent []uuid.UUID
	fail map[uuid.UUID]bool
}

func (o *recorder) send(_ context.Context, m message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent = append(o.sent, m.ID)
	if o.fail[m.ID] {
		return errors.New("the provider does not answer")
	}
	return nil
}

// TestCodesAreSent passes the tasks of rows to the handler twice: of one whose code is owed, of one whose message fails
// at first, of one that has ended, and of one that does not exist.
func TestCodesAreSent(t *testing.T) {
	s := newTestService(t)
	shared, customer := s.counter(t, 3), uuid.New()
	var ids []uuid.UUID
	for range 3 {
		ids = append(ids, s.make(t, customer, of(shared, 1)).ID)
	}
	ids = append(ids, uuid.New())
	testenv.Must(t, s.do(t.Context(), "release", customer, ids[2]))
	out := &recorder{fail: map[uuid.UUID]bool{ids[1]: true}}
	table := timeout.NewTable(s.db, codeKind, codes(s.db, out.send, slog.New(slog.DiscardHandler)),
		slog.New(slog.DiscardHandler))
	testenv.Must(t, table.Check(t.Context()))
	owed := func() (ids []string) { // those that a reconciler finds
		page, _, err := table.Pending(t.Context(), keyset.Cursor{}, time.Minute, 10)
		testenv.Must(t, err)
		for _, m := range page {
			ids = append(ids, m.ID)
		}
		return ids
	}
	if got, want := owed(), []string{ids[0].String(), ids[1].String()}; !slices.Equal(got, want) {
		t.Errorf("the codes of %v are owed, want %v", got, want)
	}
	if got := parttest.Handle(t, table.Handle, ids...); got[0] != delay.Done() || got[1] != delay.RetryIn(claimFor) ||
		got[2] != delay.Done() || got[3] != delay.Done() {
		t.Errorf("the outcomes are %+v, want done, and a retry of the second", got)
	}
	if got, want := owed(), []string{ids[1].String()}; !slices.Equal(got, want) {
		t.Errorf("after a failure the codes of %v are owed, want %v", got, want)
	}
	out.fail = nil
	testenv.Exec(t, s.pool, `UPDATE bookings SET code_due_at = now() WHERE code_due_at IS NOT NULL`) // the claim ends
	parttest.Handle(t, table.Handle, ids...)
	slices.SortFunc(out.sent, func(a, b uuid.UUID) int { return slices.Index(ids, a) - slices.Index(ids, b) })
	if want := []uuid.UUID{ids[0], ids[1], ids[1]}; !slices.Equal(out.sent, want) || len(owed()) > 0 {
		t.Errorf("sent %v, and %v are owed; want %v and none", out.sent, owed(), want)
	}
}

// TestCodeIsSentByOne passes the task of a row to the handler again, while its message is sent.
func TestCodeIsSentByOne(t *testing.T) {
	s := newTestService(t)
	id := s.make(t, uuid.New(), of(s.counter(t, 3), 1)).ID
	var table *timeout.Table
	var sent int
	var meanwhile []delay.Outcome
	table = timeout.NewTable(s.db, codeKind, codes(s.db, func(context.Context, message) error {
		sent++
		meanwhile = parttest.Handle(t, table.Handle, id)
		return nil
	}, slog.New(slog.DiscardHandler)), slog.New(slog.DiscardHandler))
	if got := parttest.Handle(t, table.Handle, id); got[0] != delay.Done() || sent != 1 || meanwhile[0] == delay.Done() {
		t.Errorf("%d messages, the outcomes are %+v, and meanwhile %+v; want one, done, and meanwhile a retry", sent, got, meanwhile)
	}
}
