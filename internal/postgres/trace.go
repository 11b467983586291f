package postgres

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
)

// Tracer sees the statements of sessions.
type Tracer interface {
	pgx.QueryTracer
	pgx.BatchTracer
}

// TraceBy makes a tracer see the statements of a pool that [Open] made. Before, no tracer does.
func TraceBy(pool *sql.DB, t Tracer) { pool.Driver().(tracedDriver).to.Store(&t) }

// tracedDriver is the driver of a connector, with its tracer.
type tracedDriver struct {
	driver.Driver
	*tracer
}

// tracer passes what it sees to another tracer, once there is one.
type tracer struct{ to atomic.Pointer[Tracer] }

func (t *tracer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if to := t.to.Load(); to != nil {
		return (*to).TraceQueryStart(ctx, conn, data)
	}
	return ctx
}

func (t *tracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryEndData) {
	if to := t.to.Load(); to != nil {
		(*to).TraceQueryEnd(ctx, conn, data)
	}
}

func (t *tracer) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	if to := t.to.Load(); to != nil {
		return (*to).TraceBatchStart(ctx, conn, data)
	}
	return ctx
}

func (t *tracer) TraceBatchQuery(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchQueryData) {
	if to := t.to.Load(); to != nil {
		(*to).TraceBatchQuery(ctx, conn, data)
	}
}

func (t *tracer) TraceBatchEnd(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchEndData) {
	if to := t.to.Load(); to != nil {
		(*to).TraceBatchEnd(ctx, conn, data)
	}
}
