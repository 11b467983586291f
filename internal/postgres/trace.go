package postgres

import (
	"database/sql"
	"database/sql/driver"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/multitracer"
)

// StatementTracer sees the statements of sessions.
type StatementTracer interface {
	pgx.QueryTracer
	pgx.BatchTracer
}

// TraceBy makes a tracer see the statements of a pool that [Open] made, which has no tracer until then. Call it while
// no statement runs.
func TraceBy(pool *sql.DB, t StatementTracer) {
	tracers := pool.Driver().(tracedDriver).tracers
	tracers.QueryTracers, tracers.BatchTracers = []pgx.QueryTracer{t}, []pgx.BatchTracer{t}
}

// tracedDriver is the driver of a connector, with the tracers of its sessions.
type tracedDriver struct {
	driver.Driver
	tracers *multitracer.Tracer
}
