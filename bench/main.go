// Command bench compares ways to time out orders. Each contender cancels the same orders with the shop's own statement,
// on the same servers and in the same run. It prints tables, and writes report.md and plots:
//
//	cd bench && go run .
//
// A run takes hours. Each measurement becomes a line of the file of results, so that a run which was interrupted goes
// on where it was, and a report can be written at any time from what is there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/devstack"
)

func main() {
	if options, ok := isContender(); ok {
		os.Exit(contenderMain(options))
	}
	o, err := parse(os.Args[1:], os.Stderr)
	if err != nil {
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // so that a second Ctrl-C ends the process at once
	if err := run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the options of the command line.
type options struct {
	given
	sizes
	only    *regexp.Regexp // of the names of the contenders
	parts   []part
	seed    uint64 // of the order in which the contenders take turns
	file    string // the path of the report
	results string // the path of the results; "": they are not stored
	module  string // the directory of the shop's module

	isQuick bool
}

// parse parses the command line. If parse returns an error, it has printed it to errs.
func parse(args []string, errs io.Writer) (o options, err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.BoolVar(&o.isQuick, "quick", false, "check each contender on small workloads, in about three minutes")
	rounds := flags.Int("rounds", 0,
		fmt.Sprintf("the number of rounds of the part speed; 0 means %d, or %d with -quick", full.Rounds, quick.Rounds))
	chosen := flags.String("parts", "all", "the parts to run, separated by commas, of "+partNames(parts)+
		"; none writes the report of the stored results")
	flags.Uint64Var(&o.seed, "seed", 1, "the seed of the order in which the contenders take turns")
	only := flags.String("only", "", "run only the contenders whose names match this regular expression")
	flags.StringVar(&o.database, "database-url", "",
		"the URL of a PostgreSQL on this machine, in which the benchmark creates a database (default a private one)")
	flags.StringVar(&o.redis, "redis-url", "",
		"the URL of an empty database of a Redis on this machine (default a private one)")
	flags.StringVar(&o.file, "report", "report.md", "the file for the report; its plots go into the same directory")
	flags.StringVar(&o.results, "results", "", "the file to which the results are added, and whose results are not "+
		"measured again (default none: measure everything, and store nothing)")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	fail := func(err error) (options, error) {
		fmt.Fprintln(errs, "bench:", err)
		return o, err
	}
	if flags.NArg() > 0 {
		return fail(fmt.Errorf("unexpected argument %q: there are only flags", flags.Arg(0)))
	}
	o.module, o.sizes = "..", full
	if o.isQuick {
		o.sizes = quick
	}
	if o.database != "" || o.redis != "" {
		o.Lanes, o.FaultLanes = 1, 1 // each lane needs servers of its own
	}
	if *rounds < 0 {
		return fail(fmt.Errorf("-rounds is %d, want at least 0", *rounds))
	}
	if *rounds > 0 {
		o.Rounds = *rounds
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		return fail(fmt.Errorf("-only: %w", err))
	}
	if o.parts, err = findParts(*chosen); err != nil {
		return fail(fmt.Errorf("-parts: %w", err))
	}
	return o, nil
}

// run runs the benchmark. It writes the tables to out and the progress to progress.
func run(ctx context.Context, o options, out, progress io.Writer) error {
	contenders := matching(o.only)
	if len(contenders) == 0 {
		return fmt.Errorf("-only matches none of the contenders; they are: %s", names(all()))
	}
	results, err := openResults(o.results)
	if err != nil {
		return err
	}
	r := &report{options: o, contenders: contenders, results: results}
	err = measure(ctx, r, newProgress(progress))
	return errors.Join(err, r.write(out))
}

// measure runs the parts, one after the other. A part that was interrupted leaves the results that it has.
func measure(ctx context.Context, r *report, p *progress) error {
	for _, part := range r.parts {
		p.steps += part.steps(r)
	}
	defer p.end()
	dir, err := devstack.TempDir()
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is removed at the next start
	building, stop := context.WithCancel(ctx)
	ahead := sync.OnceValues(func() (string, error) { return buildAhead(building, dir) })
	var builder sync.WaitGroup
	defer builder.Wait()
	defer stop()
	for parts := range r.together() {
		if slices.ContainsFunc(parts, r.builds) {
			builder.Go(func() { _, _ = ahead() }) // the fault that needs the program gets the error
		}
		if !r.isQuick {
			builder.Wait() // the build would disturb what is measured
		}
		if err := measureParts(ctx, r, parts, p, ahead); err != nil {
			return err
		}
	}
	return nil
}

// together returns the parts that run on the same servers: with -quick all, which saves the starts. Otherwise each part
// has servers that nothing has used before.
func (o options) together() iter.Seq[[]part] {
	if o.isQuick {
		return slices.Chunk(o.parts, len(parts))
	}
	return slices.Chunk(o.parts, 1)
}

// measureParts runs parts in the lanes of the first one. All lanes end if one fails.
func measureParts(ctx context.Context, r *report, parts []part, p *progress, ahead func() (string, error)) error {
	lanes, ctx := errgroup.WithContext(ctx)
	number := min(parts[0].lanes(r.sizes), len(r.contenders))
	for lane := range number {
		lanes.Go(func() error {
			b := &bench{options: r.options, results: r.results, progress: p, first: lane == 0, ahead: ahead}
			for i := lane; i < len(r.contenders); i += number {
				b.contenders = append(b.contenders, r.contenders[i])
			}
			return b.runOnServers(ctx, parts)
		})
	}
	return lanes.Wait()
}
