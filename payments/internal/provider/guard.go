package provider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/postgres"
)

// deployment says whose payments a database has, or a process makes.
type deployment struct {
	Deployment string
	Mode       string  // live or test
	Account    *string // of the provider; nil: not known
}

func (d deployment) String() string {
	account := "an account that is not known"
	if d.Account != nil {
		account = "account " + *d.Account
	}
	return fmt.Sprintf("deployment %s, mode %s, %s", d.Deployment, d.Mode, account)
}

// compare returns an error of the class [Blocked] if a database has the payments of another deployment, or of another
// account, so far as both accounts are known.
func (d deployment) compare(stored deployment) error {
	if d.Deployment == stored.Deployment && d.Mode == stored.Mode &&
		(d.Account == nil || stored.Account == nil || *d.Account == *stored.Account) {
		return nil
	}
	return &Error{Class: Blocked, Operation: "compare the deployment", Err: fmt.Errorf(
		"this process has %v, but its database belongs to %v: correct %s, the key or the database's URL",
		d, stored, app.OptionName("deployment"))}
}

const (
	// askAgain is the time after which a comparison that blocks calls is made again. Calls until then share its answer.
	askAgain = time.Second
	// askUnknown is the same after a key that may not read the account: it may get the permission later.
	askUnknown = time.Minute
	// compareTimeout is the time for a call of the provider and two statements.
	compareTimeout = 8 * time.Second
)

// Guard decides whether the process may make calls that write at the provider. It may not if the database belongs to
// another deployment, another mode or another account: the process has a copy of a database, or a wrong key. Otherwise
// staging with a copy of production's database would expire and refund the sessions of production. It may not send
// refunds either while an incident is open.
type Guard struct {
	db      *gorm.DB
	account func(context.Context) (string, error) // asks the provider for the account of the key
	log     *slog.Logger
	blocked prometheus.Gauge

	own      deployment // of the options and the key
	mu       sync.Mutex // is held during a comparison, so that calls that wait share its answer
	verified bool       // the three are compared, and equal: none of them changes while the process runs
	err      error      // the last answer
	again    time.Time  // when the comparison is made again
}

// NewGuard returns a guard of the calls of a process with a name and a mode.
func NewGuard(db *gorm.DB, p Identity, name, mode string, log *slog.Logger, reg prometheus.Registerer) *Guard {
	return &Guard{
		db: db, own: deployment{Deployment: name, Mode: mode}, log: log,
		account: func(ctx context.Context) (string, error) { return identify(ctx, opAccount, p.Account) },
		blocked: promauto.With(reg).NewGauge(prometheus.GaugeOpts{
			Name: "payment_writes_blocked",
			Help: "1 if this process makes no call to the payment provider that writes, because the database belongs " +
				"to another deployment, mode or account.",
		}),
	}
}

// Start returns an error if the database has the payments of another deployment or mode: the process must not start.
func (g *Guard) Start(ctx context.Context) error {
	stored, err := stored(ctx, g.db)
	if err != nil || stored == nil {
		return err
	}
	return g.own.compare(*stored)
}

// CheckNotLive returns an error if the database has the payments of a live deployment. There an API without a key of the
// provider would let customers pay orders for nothing.
func CheckNotLive(ctx context.Context, db *gorm.DB) error {
	stored, err := stored(ctx, db)
	if err != nil || stored == nil || stored.Mode != "live" {
		return err
	}
	return fmt.Errorf("this process has no key of the payment provider, so that customers could pay orders for nothing, "+
		"but its database belongs to %v: set %s, or correct the database's URL", *stored, app.OptionName("stripe-key"))
}

// Run compares the account early, so that the first customer does not wait for that, and a wrong key is logged.
func (g *Guard) Run(ctx context.Context) error {
	_ = g.verify(ctx) // the first call that needs it asks again
	return nil
}

// MayWrite returns nil if the process may make a call that writes, and otherwise a [*Error] of the class
// [Blocked], or [NoAnswer] if the database or the provider does not answer. It suits [CallsConfig].MayWrite.
func (g *Guard) MayWrite(ctx context.Context, operation string) error {
	err := g.verify(ctx)
	if err == nil && operation == OpRefund {
		err = g.noIncident(ctx)
	}
	return providerError(operation, err)
}

// verify compares the database with the process, unless it has done so with success, or less than askAgain ago.
func (g *Guard) verify(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.verified || time.Now().Before(g.again) {
		return g.err
	}
	shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), compareTimeout) // others wait for its answer
	defer cancel()
	before := g.err
	g.err = g.claim(shared)
	g.again = time.Now().Add(askAgain)
	if g.err == nil { // but the account may still be unknown
		g.again = time.Now().Add(askUnknown)
	}
	g.blocked.Set(0)
	if IsClass(g.err, Blocked) {
		g.blocked.Set(1)
		if !IsClass(before, Blocked) {
			g.log.ErrorContext(ctx, "this process makes no call to the payment provider that writes", "error", g.err)
		}
	}
	return g.err
}

// claim asks for the account of the key, stores in the database whose payments it has, unless it knows, and compares
// that with the process. A key that may not read the account is accepted, and the account is asked for again.
func (g *Guard) claim(ctx context.Context) error {
	own := g.own
	account, err := g.account(ctx)
	switch {
	case err == nil:
		own.Account = &account
	case IsClass(err, NoAnswer, Busy):
		return err
	}
	var stored deployment
	_, err = postgres.Scan(ctx, g.db, &stored, `
		INSERT INTO payment_deployment AS stored (deployment, mode, account) VALUES ($1, $2, $3)
		ON CONFLICT (only_row) DO UPDATE SET account = CASE
			WHEN (stored.deployment, stored.mode) = (excluded.deployment, excluded.mode)
			THEN coalesce(stored.account, excluded.account) ELSE stored.account END
		RETURNING deployment, mode, account`, own.Deployment, own.Mode, own.Account)
	if err != nil {
		return fmt.Errorf("store whose payments the database has: %w", err)
	}
	err = own.compare(stored)
	g.verified = err == nil && own.Account != nil
	return err
}

// stored returns whose payments the database has; nil: it does not know yet.
func stored(ctx context.Context, db *gorm.DB) (*deployment, error) {
	var stored deployment
	found, err := postgres.Scan(ctx, db, &stored, `SELECT deployment, mode, account FROM payment_deployment`)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read whose payments the database has: %w", err)
	case !found:
		return nil, nil
	}
	return &stored, nil
}

// noIncident returns an error of the class [Blocked] while an incident is open: the database was restored, so the shop
// may owe refunds of orders that were paid and shipped in the lost time.
func (g *Guard) noIncident(ctx context.Context) error {
	var incident struct{ Open bool }
	_, err := postgres.Scan(ctx, g.db, &incident,
		`SELECT EXISTS (SELECT FROM payment_incidents WHERE closed_at IS NULL) AS open`)
	switch {
	case err != nil:
		return providerError(OpRefund, fmt.Errorf("read payment incidents: %w", err))
	case incident.Open:
		return &Error{Class: Blocked, Operation: OpRefund,
			Err: errors.New("a payment incident is open: look at it, and close it")}
	}
	return nil
}
