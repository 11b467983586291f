package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
)

// Pipeline runs the statements of a batch in one round trip and in one transaction, in their sequence, and repeats it
// as [RetryDeadlock] does. Each statement has its own snapshot.
//
// A [pgx.Batch] can be sent only once, because pgx notes in it which statements it has prepared. So Pipeline calls
// build for each try. The functions of [pgx.QueuedQuery] may be called before the transaction is rolled back. So what
// they fill must be made anew in each call of build, and be used only after Pipeline has returned nil.
//
// After an error of PostgreSQL no statement has taken effect. After any other error the statements may have taken
// effect, because the connection may have been lost while PostgreSQL committed, and because an error of one of the
// functions does not stop the commit.
func Pipeline(ctx context.Context, db *gorm.DB, build func() *pgx.Batch) error {
	// pgx puts statements without a BEGIN into one implicit transaction, which ends with the pipeline. See
	// https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-PIPELINING.
	return onSession(ctx, db, func(s *session) error {
		return s.outcome(s.Conn.Conn().SendBatch(ctx, build()).Close())
	})
}
