package postgres

import (
	"cmp"
	"context"
	"reflect"

	"gorm.io/gorm"
)

// Scan runs a statement with the parameters $1, $2 and so on as [RetryDeadlock] does, scans its rows into dst, a
// pointer to a row or to a slice of rows, and reports whether there are any. In a transaction it does not repeat the
// statement: only the whole transaction can be repeated.
func Scan(ctx context.Context, db *gorm.DB, dst any, statement string, args ...any) (found bool, err error) {
	run := func() (err error) {
		if found { // by a try that was rolled back
			reflect.ValueOf(dst).Elem().SetZero()
		}
		// gorm's own methods search each statement for placeholders, and format it for a log that nobody reads.
		rows, err := db.Statement.ConnPool.QueryContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		// If no other row is read, only Close reports that the statement failed after its first row.
		defer func() { err = cmp.Or(err, rows.Close()) }()
		if found = rows.Next(); found {
			err = db.ScanRows(rows, dst)
		}
		return cmp.Or(err, rows.Err())
	}
	if _, inside := db.Statement.ConnPool.(gorm.TxCommitter); inside {
		err = run()
	} else {
		err = RetryDeadlock(run)
	}
	return found, err
}
