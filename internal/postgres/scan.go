package postgres

import (
	"context"

	"gorm.io/gorm"
)

// Scan runs a statement as [RetryDeadlock] does, scans its rows into dst, a pointer to a row or to a slice of rows,
// and reports whether there are any. In a transaction it does not repeat the statement: only the whole transaction
// can be repeated.
func Scan(ctx context.Context, db *gorm.DB, dst any, statement string, args ...any) (found bool, err error) {
	run := func() error {
		result := db.WithContext(ctx).Raw(statement, args...).Scan(dst)
		found = result.RowsAffected > 0
		return result.Error
	}
	if _, inside := db.Statement.ConnPool.(gorm.TxCommitter); inside {
		err = run()
	} else {
		err = RetryDeadlock(run)
	}
	return found, err
}
