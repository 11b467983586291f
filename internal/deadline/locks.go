package deadline

import (
	"maps"
	"sync"
	"time"
)

// lockWaits remembers the shared rows whose locks statements did not get in time.
type lockWaits struct {
	mu         sync.Mutex
	splitUntil time.Time               // the time until which rows are split by the locks of their shared rows before each statement
	skips      map[string]*skippedLock // by the key of the shared row
}

// skippedLock is the lock of a shared row that a statement did not get in time.
type skippedLock struct {
	until     time.Time // until then no statement waits for the lock
	postponed int       // the attempts to time out a row that were postponed because of the lock and that no log line counts yet
}

const (
	// skipFor is the time for which statements do not wait for the lock of a shared row again. With a longer time the rows
	// that need the shared row wait longer after its lock is released. With a shorter time the other rows wait for it more
	// often, and more lines about it are logged.
	skipFor = 5 * time.Second
	// splitFor is the time for which rows are split by the locks of their shared rows before each statement. With a longer
	// time more statements are run to split rows that no lock concerns. With a shorter one, a statement on rows that are not
	// split waits more often, for as long as the lock_timeout of the session.
	splitFor = time.Minute
	// maxLockWait is the time for which a statement waits for the lock of a shared row that another session has locked. With
	// a longer time a sweep waits longer for a row that stays locked. With a shorter one statements do not get locks that
	// sessions keep for no longer than usual.
	maxLockWait = 500 * time.Millisecond
	// minLockWait is what maxLockWait is reduced to while many shared rows are skipped. With a longer time the waits for many
	// locked rows take up a sweep. With a shorter one statements do not get the locks of rows that are free in a moment.
	minLockWait = 50 * time.Millisecond
	// manySkipped is the number of skipped shared rows from which on statements wait only for minLockWait. With more, the
	// statements for the first locked rows take longer. With fewer, a few long locks make all waits short.
	manySkipped = 3
)

// splitting reports whether rows must be split before each statement, because a statement did not get a lock in time.
func (w *lockWaits) splitting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(w.splitUntil)
}

// startSplitting notes that a statement did not get the lock of an unknown shared row in time.
func (w *lockWaits) startSplitting() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.splitUntil = time.Now().Add(splitFor)
}

// skip notes that a statement on some rows did not get the lock of the shared row with this key in time. It returns the
// number of attempts for a log line: one for each of those rows, and those that were postponed since the last log line.
func (w *lockWaits) skip(key string, rows int) (postponed int) {
	w.startSplitting()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.skips == nil {
		w.skips = make(map[string]*skippedLock)
	}
	if last := w.skips[key]; last != nil {
		rows += last.postponed
	}
	w.skips[key] = &skippedLock{until: time.Now().Add(skipFor)}
	return rows
}

// limit returns the time for which a statement on some rows should wait for the lock of a shared row that another session
// has locked. It reports in skipped whether no statement should wait for this lock now: then the rows are postponed.
func (w *lockWaits) limit(key string, rows int) (wait time.Duration, skipped bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	// A lock is kept for skipFor after its skip, because the next skip returns what was postponed.
	maps.DeleteFunc(w.skips, func(_ string, lock *skippedLock) bool { return now.After(lock.until.Add(skipFor)) })
	if lock := w.skips[key]; lock != nil && !now.After(lock.until) {
		lock.postponed += rows
		return 0, true
	}
	skips := 0
	for _, lock := range w.skips {
		if !now.After(lock.until) {
			skips++
		}
	}
	if skips >= manySkipped {
		return minLockWait, false
	}
	return maxLockWait, false
}
