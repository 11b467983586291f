package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
)

// Pipeline runs the statements of a batch in one round trip and in one transaction, in their sequence. Each statement
// has its own snapshot. After an error of PostgreSQL none of them has taken effect. They may have after any other
// error: the connection may have been lost while PostgreSQL committed, and an error of one of the functions of
// [pgx.QueuedQuery] does not stop the commit. These functions may be called before the commit: use what they read
// only after Pipeline has returned nil.
func Pipeline(ctx context.Context, db *gorm.DB, batch *pgx.Batch) error {
	pool, err := db.DB()
	if err != nil {
		return fmt.Errorf("database handle: %w", err)
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return err
	}
	// pgx puts statements without a BEGIN into one implicit transaction, which ends with the pipeline. See
	// https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-PIPELINING.
	err = conn.Raw(func(driver any) error {
		s := driver.(*session)
		return s.outcome(s.Conn.Conn().SendBatch(ctx, batch).Close())
	})
	return errors.Join(err, conn.Close())
}
