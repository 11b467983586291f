package ordertest

import (
	"database/sql"
	"testing"

	"gorm.io/gorm"

	"example.com/shop/internal/testenv"
)

// CrashEach calls do until it is not interrupted. It interrupts the n-th call before its n-th statement that is part
// of a transaction: it ends the session, as if the process or its connection had failed there. After each interruption
// it calls check. db is a pool of the same database, and do is the only user of gdb meanwhile.
func CrashEach(t testing.TB, gdb *gorm.DB, db *sql.DB, do func() error, check func()) {
	t.Helper()
	var left, pid int // statements until the crash; the session that crashed, 0: none
	crash := func(tx *gorm.DB) {
		if _, inTransaction := tx.Statement.ConnPool.(gorm.TxCommitter); !inTransaction || tx.Error != nil ||
			left == 0 {
			return
		}
		if left--; left > 0 {
			return
		}
		ctx := tx.Statement.Context
		testenv.Must(t, tx.Statement.ConnPool.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid))
		// fails, for the session ends
		_, _ = tx.Statement.ConnPool.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
	}
	const name = "crash"
	testenv.Must(t, gdb.Callback().Row().Before("gorm:row").Register(name, crash)) // Scan
	testenv.Must(t, gdb.Callback().Raw().Before("gorm:raw").Register(name, crash)) // Exec
	defer func() {
		testenv.Must(t, gdb.Callback().Row().Remove(name))
		testenv.Must(t, gdb.Callback().Raw().Remove(name))
	}()
	for n := 1; ; n++ {
		left, pid = n, 0
		err := do()
		if pid == 0 {
			testenv.Must(t, err)
			return
		}
		if err == nil {
			t.Errorf("the call whose session crashed before statement %d returns no error", n)
		}
		testenv.Eventually(t, "the session that crashed has no locks any more", func() bool {
			return !testenv.Query[bool](t, db, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)`, pid)
		})
		check()
	}
}
