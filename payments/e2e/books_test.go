package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/paymenttest"
)

// books is what operators see of the provider's books.
type books struct {
	Report struct {
		Balanced   bool
		Lost       int64         `json:"lost_sessions"`
		Expired    int64         `json:"expired_sessions"`
		Currencies []bookedMoney // in euros only
	}
	Incidents []struct{ ID, Kind string }
	Unclaimed []struct {
		Attempt string `json:"attempt_id"`
		State   string
	}
}

// bookedMoney is money in the provider's books and in the service's tables, in cents.
type bookedMoney struct {
	There, Here bookedSums
	Unclaimed   int64 `json:"unclaimed_cents"`
	Kept        int64 `json:"kept_cents"`
	UnderWay    int64 `json:"under_way_cents"`
	ByHand      int64 `json:"by_hand_cents"`
	Difference  int64 `json:"difference_cents"`
	Differences int64 `json:"difference_count"`
}

type bookedSums struct {
	Captured int64 `json:"captured_cents"`
	Refunded int64 `json:"refunded_cents"`
	Disputed int64 `json:"disputed_cents"`
}

// equal returns the sums of books that differ in nothing.
func equal(captured, refunded int64) bookedMoney {
	sums := bookedSums{Captured: captured, Refunded: refunded}
	return bookedMoney{There: sums, Here: sums}
}

// reconcile has a command read the provider's books, and returns what operators see of them. The books are read until a
// minute ago, so the latest movements are made older first. The command is repeated if it cannot read the books, as on
// a busy machine.
func (p *provider) reconcile() books {
	p.d.T.Helper()
	execAt(p.d.T, p.database, `UPDATE stripesim.balance_transactions SET created_at = created_at - interval '2 min' WHERE created_at > now() - interval '2 min'`)
	var balanced bool
	faulttest.Eventually(p.d.T, "the command reads the provider's books", func() bool {
		out, err := p.d.Command(p.d.T, "payments", "reconcile").CombinedOutput()
		balanced = err == nil
		if balanced || strings.Contains(string(out), "books differ from the tables") {
			return true
		}
		p.d.T.Logf("payments reconcile: %v: %s", err, out)
		return false
	})
	b := faulttest.Decode[books](p.d.T, p.d.Running("api")[0].Operator().Get("/ops/api/books"))
	if balanced != b.Report.Balanced {
		p.d.T.Errorf("the command ends as if balanced were %v, but the report is %+v", balanced, b.Report)
	}
	return b
}

// checkReport checks that the provider's books and the service's tables agree to the cent, and that no payment is
// unclaimed.
func (p *provider) checkReport(l *faulttest.Load, total money) {
	p.d.T.Helper()
	var want []bookedMoney
	if total.captured > 0 {
		want = []bookedMoney{equal(total.captured, total.returned)}
	}
	b := p.reconcile()
	if !b.Report.Balanced || !slices.Equal(b.Report.Currencies, want) || b.Report.Lost+b.Report.Expired > 0 || len(b.Incidents)+len(b.Unclaimed) > 0 {
		l.Violated("the provider's books are %+v, want them to be balanced, with %+v and nothing unclaimed", b, want)
	}
}

// execAt executes statements in a database.
func execAt(t testing.TB, database string, statements ...string) {
	t.Helper()
	db := faulttest.OpenDatabase(t, database)
	defer db.Close() // a database with sessions cannot be copied
	for _, statement := range statements {
		_, err := db.ExecContext(t.Context(), statement)
		testenv.Must(t, err)
	}
}

// copyDatabase makes a database a copy of another one, as a backup and its restore do. No process may use them.
func copyDatabase(t *testing.T, to, from string) {
	t.Helper()
	server, err := url.Parse(to)
	testenv.Must(t, err)
	name := strings.TrimPrefix(server.Path, "/")
	server.Path = "/postgres"
	source, err := url.Parse(from)
	testenv.Must(t, err)
	template := strings.TrimPrefix(source.Path, "/")
	execAt(t, server.String(), `DROP DATABASE `+name+` WITH (FORCE)`,
		// the test's own idle sessions
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '`+template+`'`,
		`CREATE DATABASE `+name+` TEMPLATE `+template)
}

// stopped kills all of the service's processes, calls a function, and starts processes of the given roles.
func stopped(d *faulttest.Deployment, do func(), roles ...string) {
	d.T.Helper()
	d.Kill(d.Running("")...)
	do()
	for _, role := range roles {
		d.Start(role)
	}
}

// opened opens a checkout of a new customer.
func (p *provider) opened() paymenttest.Payment {
	p.d.T.Helper()
	o := p.d.Running("api")[0].Create()
	return checkoutOf(o.Customer, o.ID)
}

// applied waits until a payment has paid its order, and returns the payment.
func (p *provider) applied(pay paymenttest.Payment) paymenttest.Payment {
	p.d.T.Helper()
	faulttest.Eventually(p.d.T, "a payment is applied", func() bool {
		return p.d.Number(`SELECT count(*) FROM payment_attempts WHERE id = $1 AND applied`, pay.ID) == 1
	})
	return pay
}

// paid opens a checkout, pays, and waits until the order is paid.
func (p *provider) paid() paymenttest.Payment {
	p.d.T.Helper()
	pay := p.opened()
	p.pays(pay)
	return p.applied(pay)
}

// wrong pays another amount than the order's, and waits until the service owes a refund of it. The service may not send
// the refund until [healthy] knobs are turned.
func (p *provider) wrong(cents int64) paymenttest.Payment {
	p.d.T.Helper()
	p.turn(knobs{Denied: new("POST /v1/refunds")})
	pay := p.opened()
	session := pay.CheckoutURL[strings.LastIndex(pay.CheckoutURL, "/")+1:]
	p.control(http.MethodPost, "/sim/sessions/"+session+"/amount", fmt.Sprintf(`{"amount_cents": %d}`, cents))
	p.pays(pay)
	faulttest.Eventually(p.d.T, "a refund is owed", func() bool {
		return p.d.Number(`SELECT count(*) FROM refunds WHERE attempt_id = $1 AND state = 'owed'`, pay.ID) == 1
	})
	return pay
}

// returned waits until a refund of a payment is confirmed.
func (p *provider) returned(pay paymenttest.Payment) {
	p.d.T.Helper()
	faulttest.Eventually(p.d.T, "a refund is confirmed", func() bool {
		return p.d.Number(`SELECT count(*) FROM refunds WHERE attempt_id = $1 AND state = 'confirmed'`, pay.ID) == 1
	})
}

var allRoles = []string{"api", "worker", "relay", "reconciler"}

// TestRestoredShop puts the service's database back to a copy, while customers go on paying at the provider. The next
// report must list all of their money, and nothing is returned before an operator decides.
func TestRestoredShop(t *testing.T) {
	const part = 100
	d, p := one(t, paymentTimes{timeout: 10 * time.Minute})
	before, unpaid, owed := p.paid(), p.opened(), p.wrong(part)
	backup := testenv.Postgres(t)
	stopped(d, func() { copyDatabase(t, backup, d.Database) }, allRoles...)

	p.turn(healthy)
	p.returned(owed)
	p.pays(unpaid)
	p.applied(unpaid)
	shipped, oldTab, abandoned := p.paid(), p.opened(), p.opened()

	stopped(d, func() { copyDatabase(t, d.Database, backup) }, "api")
	ops := d.Running("api")[0].Operator()
	p.pays(oldTab)
	faulttest.Eventually(t, "webhooks that match nothing are counted", func() bool {
		return ops.Metric("payment_webhooks_total", `result="unmatched"`) > 0
	})
	total := before.AmountCents
	b := p.reconcile()
	// Of five payments, two are unclaimed, and one is not settled again yet. Nor is the refund of another one.
	m := equal(4*total+part, part)
	m.Here, m.Unclaimed, m.UnderWay = bookedSums{Captured: total + part}, 2*total, total-part
	if b.Report.Balanced || b.Report.Lost != 1 || b.Report.Expired != 0 || !slices.Equal(b.Report.Currencies, []bookedMoney{m}) {
		t.Errorf("the first report is %+v, want it to differ only by a lost session, with %+v", b.Report, m)
	}
	if len(b.Unclaimed) != 2 || len(b.Incidents) != 2 {
		t.Fatalf("the books have %+v, want two unclaimed payments, and incidents of them and of a lost session", b)
	}
	for _, i := range b.Incidents {
		ops.Expect(http.StatusNoContent, faulttest.Request{
			Method: http.MethodPost, Path: "/ops/api/books/incidents/" + i.ID + "/close", Body: `{"actor":"Ada","note":"restored"}`,
		})
	}
	for _, role := range allRoles[1:] {
		d.Start(role)
	}
	ops.Expect(http.StatusNoContent, faulttest.Request{
		Method: http.MethodPost, Path: "/ops/api/books/unclaimed/" + p.ledger()[shipped.ID].PaymentIntent + "/keep",
		Body: `{"actor":"Ada","note":"asked the carrier"}`,
	})
	p.byHand(oldTab, "refunds", `{}`)
	p.applied(unpaid)
	p.returned(owed)

	b = p.reconcile()
	m = equal(4*total+part, total+part)
	m.Here, m.Unclaimed, m.Kept = bookedSums{Captured: 2*total + part, Refunded: part}, total, total
	if !b.Report.Balanced || b.Report.Lost != 0 || len(b.Incidents) > 0 || !slices.Equal(b.Report.Currencies, []bookedMoney{m}) {
		t.Errorf("the last report is %+v with the incidents %+v, want no incident and %+v", b.Report, b.Incidents, m)
	}
	rows := p.ledger()
	for pay, want := range map[paymenttest.Payment]row{
		before:  {CapturedCents: total},
		unpaid:  {CapturedCents: total},
		shipped: {CapturedCents: total},
		owed:    {CapturedCents: part, RefundedCents: part},
		oldTab:  {CapturedCents: total, RefundedCents: total},
	} {
		if row := rows[pay.ID]; row.CapturedCents != want.CapturedCents || row.RefundedCents != want.RefundedCents {
			t.Errorf("the ledger has %+v, want %d cents captured and %d refunded", row, want.CapturedCents, want.RefundedCents)
		}
	}
	if row := rows[abandoned.ID]; row.Status != "expired" {
		t.Errorf("the ledger has %+v, want the lost session to be expired", row)
	}
	p.checkBooks(6)
}

// TestRestoredProvider puts the provider's database back to a copy. The next report must name the payments and the
// refund that are missing there. The shop must change nothing because of them, and return nothing again.
func TestRestoredProvider(t *testing.T) {
	const part = 100
	d, p := one(t, paymentTimes{timeout: 10 * time.Minute})
	kept, returned := p.paid(), p.wrong(part)
	backup := testenv.Postgres(t)
	start := p.killed()
	copyDatabase(t, backup, p.database)
	start()
	lost := []paymenttest.Payment{p.paid(), p.paid()}
	p.turn(healthy)
	p.turn(knobs{Webhooks: "lost"}) // one that comes after the restore would have the refund checked, and fail
	p.returned(returned)
	start = p.killed()
	copyDatabase(t, p.database, backup)
	start()

	total := kept.AmountCents
	b := p.reconcile()
	m := equal(total+part, 0)
	m.Here, m.UnderWay = bookedSums{Captured: 3*total + part, Refunded: part}, part-2*total
	if !b.Report.Balanced || !slices.Equal(b.Report.Currencies, []bookedMoney{m}) {
		t.Errorf("the first report is %+v, want %+v: the provider's books may lag", b.Report, m)
	}
	d.Exec(`UPDATE payment_attempts SET opened_at = opened_at - interval '3 hours', ended_at = ended_at - interval '3 hours'`)
	d.Exec(`UPDATE refunds SET created_at = created_at - interval '3 hours', ended_at = ended_at - interval '3 hours'`)
	b = p.reconcile()
	m.UnderWay, m.Difference, m.Differences = 0, part-2*total, 3
	if b.Report.Balanced || !slices.Equal(b.Report.Currencies, []bookedMoney{m}) {
		t.Errorf("the second report is %+v, want it not to be balanced, and %+v", b.Report, m)
	}
	for _, pay := range append(lost, kept) {
		p.applied(pay)
	}
	rows := p.ledger()
	if rows[kept.ID].RefundedCents+rows[returned.ID].RefundedCents > 0 {
		t.Errorf("the ledger has %+v, want nothing refunded again", rows)
	}
	out, err := d.Command(t, "doctor").CombinedOutput()
	testenv.Must(t, err)
	faulttest.Contains(t, string(out), "ok    invariants")
}
