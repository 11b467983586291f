package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"example.com/shop/internal/delay"
)

// Doctor has the options of `doctor`.
type Doctor struct {
	Tool
	Full bool `name:"full" help:"Check the invariants on every row, and not only on those that are open or ended lately."`
}

// Run opens a process, checks it and its database, and prints a line for each check. It returns [ErrFailed] if a check
// fails.
func (o *Doctor) Run(ctx context.Context, program Program, open Opener) error {
	d := doctor{program: program}
	p, err := o.Open(ctx, program, open)
	if errors.As(err, new(UsageError)) {
		return err
	}
	if err != nil {
		d.check("postgres", "", err)
		if o.RedisURL != NoRedis {
			d.checkRedis(ctx, o.RedisURL) // the other checks need both
		}
		return ErrFailed
	}
	defer p.Close()
	// The process would not be open if the database did not answer.
	d.check("postgres", "answers; its schema is "+describeSchema(p.Connections), nil)
	var fsync, fullPageWrites string
	err = p.Pool.QueryRowContext(ctx, `SELECT current_setting('fsync'), current_setting('full_page_writes')`).
		Scan(&fsync, &fullPageWrites)
	if err != nil {
		d.check("durability", "", fmt.Errorf("read PostgreSQL's settings: %w", err))
	} else {
		for _, a := range assessDurability(fsync, fullPageWrites) {
			d.say(a.verdict, "durability", a.text)
		}
	}
	for _, c := range Checks(p) {
		d.check(c.Subject, c.Good, c.Run(ctx))
	}
	for _, a := range p.assessMemory(ctx) {
		d.say(a.verdict, "eviction", a.text)
	}
	checked := "the option --full checks every row"
	if o.Full {
		checked = "every row was checked"
	}
	d.check("invariants", "no row violates an invariant; "+checked, d.checkInvariants(p.Violations(ctx, o.Full)))
	if d.failed {
		return ErrFailed
	}
	return nil
}

// describeSchema says how the schema of a database differs from the binary's.
func describeSchema(c *Connections) string {
	var newer []string
	for _, version := range c.NewerSchema {
		of := ""
		if version.Set != "" {
			of = " of " + version.Set
		}
		newer = append(newer, fmt.Sprintf("version %d%s, newer than this binary's %d", version.Have, of, version.Want))
	}
	schema := "that of this binary"
	if newer != nil {
		schema = strings.Join(newer, ", and ")
	}
	if c.OtherModules != nil {
		schema += "; it also has the schema of " + strings.Join(c.OtherModules, " and ") + ", which this binary lacks"
	}
	return schema
}

// checkRedis checks Redis without a process.
func (d *doctor) checkRedis(ctx context.Context, url string) {
	rdb, err := delay.Connect(url)
	if err == nil {
		defer rdb.Close()
		err = pingRedis(ctx, rdb)
	}
	d.check("redis", "answers", err)
}

// doctor prints the results of checks.
type doctor struct {
	program Program
	failed  bool // a check has failed
}

// check prints good if err is nil, and err otherwise.
func (d *doctor) check(subject, good string, err error) {
	if errors.Is(err, ErrUnchecked) {
		d.say("note", subject, err.Error())
		return
	}
	if err != nil {
		d.failed = true
		d.say("FAIL", subject, err.Error())
		return
	}
	d.say("ok", subject, good)
}

func (d *doctor) say(verdict, subject, text string) {
	fmt.Fprintf(d.program.Out, "%-4s  %-12s %s\n", verdict, subject, text)
}

// checkInvariants prints a line for each violation, and returns an error if there is one.
func (d *doctor) checkInvariants(violations []Violation, err error) error {
	if err != nil {
		return err
	}
	for _, v := range violations {
		fmt.Fprintf(d.program.Out, "      invariant %d: %s: %s\n", v.Invariant, v.Subject, v.Detail)
	}
	if len(violations) > 0 {
		return fmt.Errorf("%d violations", len(violations))
	}
	return nil
}

// assessment describes what one setting of the server means for the service. Its verdict is ok, note or warn.
type assessment struct{ verdict, text string }

// assessDurability returns no failure: the service works with every setting, and a server for tests is faster without
// durability. It does not look at synchronous_commit, which the sessions of the service set themselves.
func assessDurability(fsync, fullPageWrites string) []assessment {
	all := []assessment{{"ok", "fsync is " + fsync}, {"ok", "full_page_writes is " + fullPageWrites}}
	if fsync == "off" {
		all[0] = assessment{"warn", "fsync is off: if the server's machine crashes, committed orders can be lost or corrupt"}
	}
	if fullPageWrites == "off" {
		all[1] = assessment{"warn", "full_page_writes is off: if the server's machine crashes, committed orders can be lost " +
			"or corrupt, unless its file system writes each page whole or not at all"}
	}
	return all
}
