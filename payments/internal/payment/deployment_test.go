package payment_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/payment"
	"example.com/shop/payments/internal/provider"
)

const liveKey = "rk_live_1234567890abcdef"

// accountOf is a provider in memory whose key has another account, or may not read it.
type accountOf struct {
	*memory
	id  string
	err error
}

func (p accountOf) Account(context.Context) (string, error) { return p.id, p.err }

// restartAs gives the shop the calls of a process with a name and a key, and returns its log and its metrics.
func (s *shop) restartAs(p provider.Provider, name, key string) (*provider.Calls, *testenv.LogBuffer, *prometheus.Registry) {
	log, metrics := &testenv.LogBuffer{}, prometheus.NewRegistry()
	calls := payment.NewGuardedCalls(s.gorm, p, name, key, slog.New(slog.NewTextHandler(log, nil)), metrics)
	s.setCalls(calls)
	return calls, log, metrics
}

// TestDeploymentIsStoredOnce starts processes with different names on a new database at the same time. Only those with
// one of the names may write.
func TestDeploymentIsStoredOnce(t *testing.T) {
	s := newMemoryShop(t)
	var calls []*provider.Calls
	names := []string{"production", "staging", "copy", "production", "staging", "copy"}
	for _, name := range names {
		c, _, _ := s.restartAs(s.mem, name, apiKey)
		calls = append(calls, c)
	}
	errs := make([]error, len(calls))
	var starts sync.WaitGroup
	for i, c := range calls {
		starts.Go(func() { _, errs[i] = c.Create(t.Context(), provider.Checkout{Key: names[i]}) })
	}
	starts.Wait()
	stored := testenv.QueryAll[string](t, s.db, `SELECT deployment || ' ' || mode || ' ' || account FROM payment_deployment`)
	if len(stored) != 1 || !strings.HasSuffix(stored[0], " test acct_memory") {
		t.Fatalf("stored is %q, want one deployment in test mode with its account", stored)
	}
	for i, err := range errs {
		if own := strings.HasPrefix(stored[0], names[i]+" "); own != (err == nil) || err != nil && !payment.IsBlocked(err) {
			t.Errorf("a process of %s writes with error %v; stored is %q", names[i], err, stored[0])
		}
	}
}

// TestCopyOfTheDatabaseWritesNothing lets a process with a copy of the database, or with a wrong key, handle what is
// due. It must not create, expire or refund anything at the provider. The right process does it later. A process with
// another deployment or mode does not even start, unless it started before the database knew whose payments it has.
func TestCopyOfTheDatabaseWritesNothing(t *testing.T) {
	for name, test := range map[string]struct {
		deployment, key, account string
		want                     string // in the log
	}{
		"another deployment": {"staging", apiKey, "acct_memory", "deployment staging, mode test"},
		"another mode":       {"production", liveKey, "acct_memory", "deployment production, mode live"},
		"another account":    {"production", apiKey, "acct_other", "account acct_other"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newMemoryShop(t)
			s.restartAs(s.mem, "production", apiKey)
			polled, _ := s.placeOpen(t)
			closing, a := s.placeOpen(t)
			late, paid := s.placeOpen(t)
			s.shiftToDeadline(t, closing.ID, time.Second)
			s.shiftToDeadline(t, late.ID, grace+time.Second)
			s.cancelDue(t, late.ID)
			s.mem.pay(paid.CheckoutURL)
			s.settleNow(t, late.ID)
			s.wantAttempt(t, late, paid.ID, "succeeded late owed")
			unpaid := s.place(t)
			before := s.writes()

			err := payment.StartGuard(t.Context(), s.gorm, test.deployment, test.key)
			if starts := test.account != "acct_memory"; starts != (err == nil) || err != nil &&
				(!strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "belongs to deployment production, mode test")) {
				t.Errorf("a process that starts gets error %v; want one with both deployments: %v", err, !starts)
			}
			_, log, metrics := s.restartAs(accountOf{s.mem, test.account, nil}, test.deployment, test.key)
			if _, _, err := s.Open(t.Context(), unpaid.CustomerID, unpaid.ID); parttest.ClassOf(err) != attempt.PaymentsBlocked {
				t.Errorf("Open returns %v, want code %s", err, attempt.PaymentsBlocked.Code)
			}
			retrieved := s.mem.count("retrieve")
			s.settleNow(t, polled.ID)
			s.settleNow(t, closing.ID)
			s.refundNow(t, paid)
			if after := s.writes(); after != before {
				t.Errorf("the copy makes %d calls that write, want none", after-before)
			}
			if s.mem.count("retrieve") == retrieved {
				t.Error("the copy polls no attempt, want polls to go on: they change nothing at the provider")
			}
			s.wantAttempt(t, closing, a.ID, "open closing")
			s.wantAttempt(t, late, paid.ID, "succeeded late owed")
			const line = "makes no call to the payment provider that writes"
			if got := log.String(); strings.Count(got, line) != 1 || !strings.Contains(got, test.want) || !strings.Contains(got, "belongs to deployment production, mode test") {
				t.Errorf("the log is:\n%s\nwant one line with %q, with both deployments", got, line)
			}
			if got := parttest.Metrics(t, metrics)["payment_writes_blocked"]; got != 1 {
				t.Errorf("payment_writes_blocked is %v, want 1", got)
			}

			_, log, metrics = s.restartAs(s.mem, "production", apiKey)
			s.settleNow(t, closing.ID)
			s.wantAttempt(t, closing, a.ID, "closed")
			s.refundNow(t, paid)
			s.wantAttempt(t, late, paid.ID, "succeeded late confirmed")
			s.open(t, unpaid)
			if got := parttest.Metrics(t, metrics)["payment_writes_blocked"]; got != 0 || log.String() != "" {
				t.Errorf("payment_writes_blocked is %v, want 0; the log is %q, want no line", got, log)
			}
			s.cancelDue(t, closing.ID)
			s.check(t)
		})
	}
}

// TestForgetDeployment runs the statement of the runbook, which gives a database to another deployment. It deletes
// nothing while an attempt is live or a refund is under way.
func TestForgetDeployment(t *testing.T) {
	docs, err := os.ReadFile("../../docs/payments.md")
	testenv.Must(t, err)
	_, statement, _ := strings.Cut(string(docs), "```sql\nDELETE FROM payment_deployment")
	statement, _, found := strings.Cut(statement, "```")
	if !found {
		t.Fatal("docs/payments.md lacks the statement that deletes from payment_deployment")
	}
	s := newMemoryShop(t)
	forget := func(want int64) {
		t.Helper()
		result, err := s.db.ExecContext(t.Context(), "DELETE FROM payment_deployment"+statement)
		testenv.Must(t, err)
		if deleted, err := result.RowsAffected(); err != nil || deleted != want {
			t.Fatalf("the statement deletes %d rows, with error %v; want %d", deleted, err, want)
		}
	}
	s.restartAs(s.mem, "production", apiKey)
	o, a := s.placeOpen(t)
	forget(0)
	s.mem.pay(a.CheckoutURL)
	s.shiftToDeadline(t, o.ID, grace)
	s.cancelDue(t, o.ID)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	forget(0)
	s.refundNow(t, a)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	forget(1)
	calls, _, _ := s.restartAs(accountOf{s.mem, "acct_other", nil}, "staging", liveKey)
	if _, err := calls.Create(t.Context(), provider.Checkout{Key: "key"}); err != nil {
		t.Errorf("a process of another deployment, mode and account writes with error %v, want none", err)
	}
	s.check(t)
}

// TestSessionUnknownToAnotherAccount lets a process with a key of another account ask for sessions that were paid,
// after their orders have ended. The provider does not know them. The process must end nothing; the right process
// finds the money.
func TestSessionUnknownToAnotherAccount(t *testing.T) {
	s := newMemoryShop(t)
	for _, state := range []string{"open closing", "closed"} {
		s.restartAs(s.mem, "production", apiKey)
		o, a := s.placeOpen(t)
		s.shiftToDeadline(t, o.ID, grace+time.Second)
		s.cancelDue(t, o.ID)
		if state == "closed" {
			s.exec(t, `UPDATE payment_attempts SET state = 'closed', ended_at = now(), next_check = now() WHERE id = $1`, a.ID)
		}
		s.mem.pay(a.CheckoutURL)
		s.checkNow(t, o.ID)
		s.restartAs(accountOf{s.mem, "acct_other", nil}, "production", apiKey)
		s.mem.fail("retrieve", failed(provider.Missing, ""))
		s.settle(t, o.ID)
		s.wantAttempt(t, o, a.ID, state)
		s.mem.fail("retrieve", nil)
		s.restartAs(s.mem, "production", apiKey)
		s.settleNow(t, o.ID)
		s.wantAttempt(t, o, a.ID, "succeeded late owed")
	}
	s.check(t)
}

// TestNoRefundDuringAnIncident has a refund due while an incident is open. Nothing is refunded until an operator has
// closed it. Meanwhile checkouts are opened and closed.
func TestNoRefundDuringAnIncident(t *testing.T) {
	s := newMemoryShop(t)
	s.restartAs(s.mem, "production", apiKey)
	late, paid := s.placeOpen(t)
	s.shiftToDeadline(t, late.ID, grace+time.Second)
	s.cancelDue(t, late.ID)
	s.mem.pay(paid.CheckoutURL)
	s.settleNow(t, late.ID)
	s.exec(t, `ALTER TABLE payment_incidents RENAME TO gone`)
	s.refundNow(t, paid)
	s.exec(t, `ALTER TABLE gone RENAME TO payment_incidents`)
	for _, kind := range []string{"lost_sessions", "unclaimed"} {
		s.exec(t, `UPDATE payment_incidents SET closed_at = now(), actor = 'Ada', note = 'looked'`)
		s.exec(t, `INSERT INTO payment_incidents (id, kind, detail) VALUES (gen_random_uuid(), $1, 'a test')`, kind)
		s.refundNow(t, paid)
		s.refundNow(t, paid)
		s.wantAttempt(t, late, paid.ID, "succeeded late owed")
		if n := s.mem.count("refund"); n != 0 {
			t.Errorf("%d refunds are sent while an incident %s is open, want none", n, kind)
		}
	}
	closing, a := s.placeOpen(t)
	s.shiftToDeadline(t, closing.ID, time.Second)
	s.settleNow(t, closing.ID)
	s.wantAttempt(t, closing, a.ID, "closed")
	s.exec(t, `UPDATE payment_incidents SET closed_at = now(), actor = 'Ada', note = 'looked'`)
	s.refundNow(t, paid)
	s.wantAttempt(t, late, paid.ID, "succeeded late confirmed")
	s.cancelDue(t, closing.ID)
	s.check(t)
}

// writes returns the number of calls that write at the provider.
func (s *shop) writes() int {
	return s.mem.count("create") + s.mem.count("expire") + s.mem.count("refund")
}

// TestRotatedKeyOfSameAccount replaces the key, also by one that may not read the account. The account is stored as
// soon as a key may read it, and then no key of another account may write.
func TestRotatedKeyOfSameAccount(t *testing.T) {
	s := newMemoryShop(t)
	denied := failed(provider.Denied, "")
	for _, p := range []provider.Provider{accountOf{s.mem, "", denied}, s.mem, accountOf{s.mem, "acct_memory", nil}, accountOf{s.mem, "", denied}} {
		s.restartAs(p, "production", "sk_test_"+t.Name())
		s.placeOpen(t)
	}
	s.restartAs(accountOf{s.mem, "acct_other", nil}, "production", "sk_test_"+t.Name())
	unpaid := s.place(t)
	if _, _, err := s.Open(t.Context(), unpaid.CustomerID, unpaid.ID); parttest.ClassOf(err) != attempt.PaymentsBlocked {
		t.Errorf("Open with a key of another account returns %v, want code %s", err, attempt.PaymentsBlocked.Code)
	}
	s.check(t)
}

// TestUnknownOwnerWritesNothing checks that no call that writes is made while the database or the provider does not
// tell whose payments the database has, and that the calls are made soon after.
func TestUnknownOwnerWritesNothing(t *testing.T) {
	t.Parallel() // it waits most of the time
	s := newMemoryShop(t)
	calls, _, _ := s.restartAs(s.mem, "production", apiKey)
	s.mem.fail("account", errors.New("no answer"))
	create := func() error {
		_, err := calls.Create(t.Context(), provider.Checkout{Key: "key"})
		return err
	}
	if err := create(); err == nil || payment.IsBlocked(err) || s.writes() > 0 {
		t.Errorf("without the account Create returns %v after %d calls, want an error and no call", err, s.writes())
	}
	s.mem.fail("account", nil)
	testenv.Eventually(t, "the call is made", func() bool { return create() == nil })

	calls, _, _ = s.restartAs(s.mem, "production", apiKey)
	before := s.writes()
	s.exec(t, `ALTER TABLE payment_deployment RENAME TO gone`)
	if err := create(); err == nil || payment.IsBlocked(err) || s.writes() > before {
		t.Errorf("without the table Create returns %v after %d calls, want an error and no call", err, s.writes()-before)
	}
	s.exec(t, `ALTER TABLE gone RENAME TO payment_deployment`)
	testenv.Eventually(t, "the call is made", func() bool { return create() == nil })
}
