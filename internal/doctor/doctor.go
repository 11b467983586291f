// Package doctor checks the servers, the settings, the queues and the rows of a program. It has the command `doctor`,
// which prints a line for each check, with what to do about what is wrong.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
)

// Command has the options of `doctor`.
type Command struct {
	app.Tool
	Full bool `name:"full" help:"Check the invariants on every row, and not only on those that are open or ended lately."`
}

// Run opens a process, checks it and its database, and prints a line for each check. It returns [app.ErrFailed] if a
// check fails.
func (o *Command) Run(ctx context.Context, program app.Program, open app.Opener) error {
	d := printer{out: program.Out}
	p, err := o.Open(ctx, program, open)
	if errors.As(err, new(app.UsageError)) {
		return err
	}
	if err != nil {
		d.print("postgres", "", err)
		d.print("redis", "answers", connectRedis(ctx, o.RedisURL)) // the other checks need both servers
		return app.ErrFailed
	}
	defer p.Close()
	d.print("postgres", "answers, and has all migrations of this binary", nil) // or Open had failed
	for _, c := range Checks(p) {
		d.print(c.Subject, c.Good, c.Run(ctx))
	}
	checked := "the option --full checks every row"
	if o.Full {
		checked = "every row was checked"
	}
	violations, err := p.Parts.Violations(ctx, p.Kinds.Bound(), o.Full)
	d.print("invariants", "no row violates an invariant; "+checked, d.checkInvariants(violations, err))
	if d.failed {
		return app.ErrFailed
	}
	return nil
}

func connectRedis(ctx context.Context, url string) error {
	rdb, err := delay.Connect(url, nil)
	if err != nil {
		return err
	}
	defer rdb.Close()
	return pingRedis(ctx, rdb)
}

type printer struct {
	out    io.Writer
	failed bool // a check has failed
}

// print prints the line of a check: the verdict ok, warn, note or FAIL, the subject, and good or the error.
func (d *printer) print(subject, good string, err error) {
	verdict, text := "ok", good
	if err != nil {
		text = err.Error()
		switch {
		case errors.As(err, new(app.Warning)):
			verdict = "warn"
		case errors.Is(err, app.ErrUnchecked):
			verdict = "note"
		default:
			verdict, d.failed = "FAIL", true
		}
	}
	fmt.Fprintf(d.out, "%-4s  %-12s %s\n", verdict, subject, text)
}

// checkInvariants prints a line for each violation, and returns an error if there is one.
func (d *printer) checkInvariants(violations []app.Violation, err error) error {
	if err != nil {
		return err
	}
	for _, v := range violations {
		fmt.Fprintf(d.out, "      invariant %d: %s: %s\n", v.Invariant, v.Subject, v.Detail)
	}
	if len(violations) > 0 {
		return fmt.Errorf("%d violations", len(violations))
	}
	return nil
}
