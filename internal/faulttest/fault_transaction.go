package faulttest

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

// This file has the faults of a service whose transactions take two round trips: the first one locks and reads, the
// service decides, and the second one writes. They are not among [Service.ProcessFaults] and [Service.NetworkFaults],
// because a service whose transactions are single statements never stops between two round trips.

// FrozenInTransaction returns a fault that freezes an API between the two round trips of a transaction. Customers of
// the service must be able to confirm a row at once, and to cancel it.
func (s *Service) FrozenInTransaction() Fault {
	freeze := func(d *Deployment, api *Member, _ *Proxy) (resume func()) { return suspend(d.T, api.Cmd.Process.Pid) }
	return stoppedInTransaction("API frozen in a transaction", 8*time.Second, freeze)
}

// CutOffInTransaction is FrozenInTransaction with an API whose connections to PostgreSQL become half-open. It gives up
// on a request after 8 s.
func (s *Service) CutOffInTransaction() Fault {
	cut := func(_ *Deployment, _ *Member, network *Proxy) (resume func()) {
		network.HalfOpen()
		return network.Heal
	}
	return stoppedInTransaction("API cut off in a transaction", 12*time.Second, cut)
}

// longestWait bounds the time for which others wait for the locks of a stopped transaction.
const longestWait = 2 * time.Second

// stoppedInTransaction returns a fault that stops one of three APIs while it confirms a row. The network between this
// API and PostgreSQL is slow, so that the row stays locked between the round trips for long enough. While the API is
// stopped, the customer cancels the row in another tab, so the API must not answer that the row is confirmed.
func stoppedInTransaction(
	name string, answer time.Duration, stop func(d *Deployment, api *Member, network *Proxy) (resume func()),
) Fault {
	var waits excess // of the others, while the API was stopped
	return Fault{
		Name: name, withoutSweeps: true,
		// A customer may keep a lock of a row until the stopped API answers, see callBehindLock: then the row is as
		// late.
		Bound: Bound{Late: answer, Answer: answer, Rejected: true},
		Inject: func(d *Deployment) {
			network, database := proxied(d.T, d.Database)
			site := *d.Site
			site.Env = append(slices.Clone(site.Env), EnvDatabaseURL+"="+database)
			others, api := d.Running("api"), d.startAt(&site, "api")
			var c confirmation
			var resume func()
			tries := 0
			Eventually(d.T, "an API that is stopped between the two round trips of a transaction", func() bool {
				const slow = 50 * time.Millisecond
				network.Slow(slow)
				tries++
				c = d.confirmAt(api, others[0], fmt.Sprintf("stopped-%d", tries))
				resume = stop(d, api, network)
				d.Sleep(3 * slow) // what the API has sent before arrives, and would have ended the transaction
				if d.idleWithLock(c.row.ID) > 2*slow && time.Until(c.row.Deadline) > longestWait {
					return true
				}
				resume()
				network.Cut() // the API would wait for connections that stay half-open
				network.Heal()
				c.discard(d)
				return false
			})
			began := time.Now()
			waits = c.othersWait(d, others[1])
			d.Sleep(4*time.Second - time.Since(began))
			resume()
			network.Heal()
			if a := <-c.answered; a.Status != http.StatusServiceUnavailable {
				breach(d.T, "the API that was stopped while it confirmed %s answered %d %s, want 503, because PostgreSQL "+
					"should have ended the transaction", c.row.ID, a.Status, a.Body)
			}
		},
		also: func(_ figures, slack int) []string { return waits(slack) },
	}
}

// confirmation is the call of a customer who confirms a row.
type confirmation struct {
	row      Owned
	answered chan Answer
}

// confirmAt confirms a row, which another API creates, and waits until the API has locked the row and PostgreSQL waits
// for the second round trip, or until the call has ended.
func (d *Deployment) confirmAt(api, other *Member, key string) confirmation {
	d.T.Helper()
	customer, s := other.SignUp(), d.Service
	row := customer.RowOf(customer.Expect(http.StatusCreated, s.Create(s.Bodies[0], key)))
	c := confirmation{Owned{row, customer}, make(chan Answer, 1)}
	at := *customer
	at.Base = api.URL
	secret := d.secret(row.ID)
	go func() {
		a, _ := at.Try(s.Confirm(row.ID, secret))
		c.answered <- a
	}()
	Eventually(d.T, "a transaction that has locked the row", func() bool {
		return len(c.answered) > 0 || d.idleWithLock(row.ID) > 0
	})
	return c
}

// discard waits until the call has ended, and until the load has used the connections of the API, which then replaces
// those that are broken. If the row is confirmed, whatever the answer was, its units are not free for the load.
func (c confirmation) discard(d *Deployment) {
	d.T.Helper()
	<-c.answered
	d.Sleep(time.Second)
	if d.Service.Shared == nil || c.row.Customer.Look(c.row.ID).Status != Confirmed {
		return
	}
	for name, units := range d.Service.Shared.Units(d.Service.Bodies[0]) {
		d.load.supplies[name] -= units
	}
}

// othersWait measures, while an API is stopped, how long another API takes to create a row with the same shared rows,
// and to cancel the row that the stopped API has locked. Then it watches for how long transactions keep their locks:
// when PostgreSQL ends one of the stopped API, another one that has waited for its lock gets it, and is stopped, too.
// It returns the waits that were too long.
func (c confirmation) othersWait(d *Deployment, api *Member) excess {
	d.T.Helper()
	type wait struct {
		message  string
		took     time.Duration
		answered bool // as it should be
	}
	var waits []wait
	measure := func(what string, customer *Client, r Request, status int) {
		began := time.Now()
		a := customer.admitted(r)
		took := time.Since(began)
		d.T.Logf("while an API is stopped in a transaction, another one %s in %v", what, took)
		waits = append(waits, wait{fmt.Sprintf(
			"while an API was stopped in a transaction, the answer of another one that %s was %d %s after %v; want %d",
			what, a.Status, a.Body, took, status), took, a.Status == status})
	}
	measure("creates a row", api.SignUp(), d.Service.Create(d.Service.Bodies[0], "not-stopped"), http.StatusCreated)
	customer := *c.row.Customer
	customer.Base = api.URL
	measure("cancels the row", &customer, d.Service.Cancel(c.row.ID, d.secret(c.row.ID)), http.StatusOK)
	longest := time.Duration(0)
	for began := time.Now(); time.Since(began) < longestWait; d.Sleep(longestWait / 100) {
		longest = max(longest, d.idleWithLocks())
	}
	d.T.Logf("then no transaction that had locked rows was idle for longer than %v", longest)
	waits = append(waits, wait{fmt.Sprintf("a transaction with locked rows was idle for %v", longest), longest, true})
	return func(slack int) (exceeded []string) {
		bound := longestWait * time.Duration(slack)
		for _, w := range waits {
			if w.took > bound || !w.answered {
				exceeded = append(exceeded, fmt.Sprintf("%s; the bound is %v", w.message, bound))
			}
		}
		return exceeded
	}
}

// idleSeconds selects how long the sessions of the service have been idle in a transaction, at most.
const idleSeconds = `SELECT coalesce(max(extract(epoch FROM clock_timestamp() - s.state_change)), 0)
	FROM pg_stat_activity AS s
	WHERE s.datname = current_database() AND s.application_name = $1 AND s.state = 'idle in transaction'`

// idleWithLocks returns how long a session of the service has been idle in a transaction that has locked some row.
func (d *Deployment) idleWithLocks() time.Duration {
	d.T.Helper()
	return seconds(d.Number(idleSeconds+` AND s.backend_xid IS NOT NULL`, d.Service.Program))
}

// idleWithLock returns how long a session of the service has been idle in a transaction that has locked a row.
func (d *Deployment) idleWithLock(id string) time.Duration {
	d.T.Helper()
	return seconds(d.Number(idleSeconds+`
		AND s.backend_xid = (SELECT xmax FROM `+d.Service.Table+` WHERE id::text = $2)`, d.Service.Program, id))
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }
