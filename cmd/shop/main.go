// Command shop runs the service of package shop, whose function New lists what the service is made of.
package main

import (
	"example.com/shop/internal/app"
	"example.com/shop/internal/shop"
)

func main() {
	shop.SetGC()
	app.Main(program(), &commands{})
}

// stamped is the version that the build sets with -ldflags "-X main.stamped=v1.2.3". It may be empty.
var stamped string

func program() app.Program { return shop.Program(stamped) }

// commands is the command line. Every option is a flag and an environment variable. docs/configuration.md lists the
// options, and a test compares its table with them.
//
// A secret, or an address that may contain a password, has two options: the value itself, and the name of a file with
// the value. See [app.ReadSecrets]. A command checks its options when it runs, because the files are read after the
// command line is parsed.
type commands struct {
	Serve     shop.Serve         `cmd:"" help:"Run the service, or some of its roles."`
	Migrate   shop.Migrate       `cmd:"" help:"Create or update the schema of the database."`
	Reconcile shop.Sweep         `cmd:"" help:"Compare the tables with Redis once, repair the differences, and print the report."`
	Doctor    shop.Doctor        `cmd:"" help:"Check the connections, the schema, the queue, the outbox, the reconciler and the invariants."`
	Health    app.HealthCommand  `cmd:"" help:"Check whether the process at an address is ready."`
	Demo      shop.Demo          `cmd:"" help:"Run the whole service in one process, with a private PostgreSQL and Redis. Their data is deleted when it stops."`
	Version   app.VersionCommand `cmd:"" help:"Print the version."`
}
