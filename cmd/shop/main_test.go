package main

import (
	"context"
	"io"
	"log/slog"
	"testing"

	"example.com/shop/internal/app"
	"example.com/shop/internal/shop"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/programtest"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { programtest.Main(m, migrations.Up) }

// runCommand runs a command of the program, whose output it writes to out. It returns the exit code.
func runCommand(ctx context.Context, args []string, out io.Writer) int {
	p := program()
	p.Out, p.Err = out, out
	return app.ExitCode(app.Run(ctx, p, &commands{}, args), p)
}

// openFull returns a process whose options have a value for each secret and each URL, so that no part is left out.
func openFull(t testing.TB) *app.Process {
	t.Helper()
	var c commands
	parser, err := app.NewParser(program(), &c)
	testenv.Must(t, err)
	flags := programtest.SampleFlags(programtest.Options(t, &commands{}), "serve")
	_, err = parser.Parse(append([]string{"serve"}, flags...))
	testenv.Must(t, err)
	o := c.Serve
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	p, err := shop.New(t.Context(), o.Config(program()), &o.Options, slog.New(slog.DiscardHandler))
	testenv.Must(t, err)
	t.Cleanup(p.Close)
	return p
}
