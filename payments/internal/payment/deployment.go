package payment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/app"
)

// DeploymentOptions name the deployment. Each process with a key needs the name.
type DeploymentOptions struct {
	Deployment string `name:"deployment" placeholder:"NAME" help:"The name of this deployment, such as production or staging: a to z, 0 to 9 and -. Required with a key of the payment provider. A process with another name than the database's makes no call that writes."`
}

var deploymentName = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// Check returns an error if the name is wrong, or is missing in a process with a key.
func (o DeploymentOptions) Check(key string) error {
	if key == "" && o.Deployment == "" {
		return nil
	}
	if !deploymentName.MatchString(o.Deployment) {
		return fmt.Errorf("%s is %q, want 1 to 40 of a to z, 0 to 9 and -, such as production", app.OptionName("deployment"), o.Deployment)
	}
	return nil
}

// TestModeOptions allow payments that cost nothing.
type TestModeOptions struct {
	AllowTestPayments bool `name:"allow-test-payments" help:"Accept a test key of the payment provider, with which customers pay with test cards, for nothing."`
}

// Check returns an error if the key is a test key, and none is allowed.
func (o TestModeOptions) Check(key string) error {
	if key == "" || modeOf(key) == "live" || o.AllowTestPayments {
		return nil
	}
	return fmt.Errorf("%s is a test key, with which customers pay with test cards, for nothing: set a live key, or %s if nothing is sold here",
		app.OptionName("stripe-key"), app.OptionName("allow-test-payments"))
}

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

const (
	// askAgainBlocked is the time after which a process whose calls are blocked compares again. A shorter time would only
	// cost more statements; with a longer one, the process would start to pay later after an operator's correction.
	askAgainBlocked = 10 * time.Second
	// askAgainFailed is the same after the database or the provider has not answered. All calls that wait at the same time
	// share one answer. With a longer time, payments would wait longer after an outage.
	askAgainFailed = time.Second
	// askAgainUnknown is the same after the provider has not told the account. A key may get the permission later.
	askAgainUnknown = time.Minute
	// compareTimeout is the longest time for a comparison. With a shorter one, a slow answer of the provider would be lost; with a
	// longer one, calls would wait longer for a database that does not answer.
	compareTimeout = 8 * time.Second
	// logBlockedEvery is the time between two lines of the log about calls that are blocked.
	logBlockedEvery = time.Minute
)

// guard decides whether the process may make calls that write at the provider. It may not if the database belongs to
// another deployment, another mode or another account: the process has a copy of a database, or a wrong key. Otherwise
// staging with a copy of production's database would expire and refund the sessions of production. It may not send refunds
// either while an incident is open.
type guard struct {
	store   *Store
	want    deployment // of the options and the key
	account func(context.Context) (string, error)
	log     *slog.Logger
	blocked prometheus.Gauge

	mu       sync.Mutex // is held during a comparison, so that calls that wait share its answer
	verified bool       // the three are compared, and equal: none of them changes while the process runs
	err      error      // the last answer
	again    time.Time  // when the comparison is made again
	logged   time.Time  // the last line of the log about calls that are blocked
	refunds  string     // why refunds were not sent at the last try; "": they were
}

// newGuard returns a guard of the calls of a process. account asks the provider for the account of the key.
func newGuard(
	s *Store, account func(context.Context) (string, error), name, mode string, log *slog.Logger, reg prometheus.Registerer,
) *guard {
	return &guard{
		store: s, account: account, want: deployment{Deployment: name, Mode: mode}, log: log,
		blocked: promauto.With(reg).NewGauge(prometheus.GaugeOpts{
			Name: "payment_writes_blocked",
			Help: "1 if this process makes no call to the payment provider that writes, because the database belongs to another deployment, mode or account.",
		}),
	}
}

// mayWrite returns nil if the process may make a call that writes, and otherwise a [*ProviderError] of the class
// [Blocked], or [NoAnswer] if the database or the provider does not answer. It suits [CallsConfig].MayWrite.
func (g *guard) mayWrite(ctx context.Context, operation string) error {
	if err := g.check(ctx); err != nil {
		class, ok := classOf(err)
		if !ok {
			class = NoAnswer
		}
		return &ProviderError{Class: class, Operation: operation, Err: err}
	}
	if operation == opRefund {
		err := noIncident(ctx, g.store)
		g.logRefunds(ctx, err)
		return err
	}
	return nil
}

// logRefunds logs that refunds are not sent any more, or why, or that they are sent again. It logs nothing if this is so
// since the last try.
func (g *guard) logRefunds(ctx context.Context, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := g.refunds
	g.refunds = ""
	if err != nil {
		g.refunds = err.Error()
	}
	switch {
	case g.refunds == before:
	case err != nil:
		g.log.ErrorContext(ctx, "no refund is sent", "error", err)
	default:
		g.log.InfoContext(ctx, "refunds are sent again")
	}
}

// check compares the database with the process, or returns the last answer if it is recent.
func (g *guard) check(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.verified || now.Before(g.again) {
		return g.err
	}
	var wait time.Duration
	shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), compareTimeout) // others wait for the same answer
	defer cancel()
	wait, g.err = g.compare(shared)
	g.again = time.Now().Add(wait)
	blocked := isClass(g.err, Blocked)
	g.blocked.Set(0)
	if blocked {
		g.blocked.Set(1)
	}
	if blocked && now.Sub(g.logged) >= logBlockedEvery {
		g.logged = now
		g.log.ErrorContext(ctx, "this process makes no call to the payment provider that writes", "error", g.err)
	}
	return g.err
}

// compare compares the database with the process. It returns nil if they may be the same: a key that may not read the
// account is accepted. wait is when to compare again.
func (g *guard) compare(ctx context.Context) (wait time.Duration, err error) {
	stored, err := g.store.deployment(ctx, g.want)
	if err != nil {
		return askAgainFailed, err
	}
	if stored.Deployment != g.want.Deployment || stored.Mode != g.want.Mode {
		return askAgainBlocked, blockedBy(g.want, stored)
	}
	account, err := g.account(ctx)
	switch {
	case isClass(err, NoAnswer, Busy):
		return askAgainFailed, err
	case err != nil: // the provider answers, and does not tell
		return askAgainUnknown, nil
	}
	if stored, err = g.store.account(ctx, account); err != nil {
		return askAgainFailed, err
	}
	if *stored.Account != account {
		own := g.want
		own.Account = &account
		return askAgainBlocked, blockedBy(own, stored)
	}
	g.verified = true
	return 0, nil
}

func blockedBy(own, stored deployment) error {
	return &ProviderError{Class: Blocked, Operation: "compare the deployment", Err: fmt.Errorf(
		"this process has %v, but its database belongs to %v: correct SHOP_DEPLOYMENT, the key or the database's URL", own, stored)}
}

// run stores whose payments the database has when the process starts, and tells early if its calls are blocked.
func (g *guard) run(ctx context.Context) error {
	for {
		if err := g.check(ctx); err != nil && !isClass(err, Blocked) {
			g.log.WarnContext(ctx, "it is not known yet whose payments the database has", "error", err)
		}
		g.mu.Lock()
		verified, wait := g.verified, time.Until(g.again)
		g.mu.Unlock()
		if verified {
			return nil
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// errNotStored means that no process with a key has started with this database.
var errNotStored = errors.New("the database does not know yet whose payments it has: start a process with a key")
