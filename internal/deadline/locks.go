package deadline

import (
	"maps"
	"sync"
	"time"
)

// lockWaits remembers the shared rows whose locks statements did not get in time.
type lockWaits struct {
	mu         sync.Mutex
	splitUntil time.Time            // until then rows are split by the locks of their shared rows before each statement
	skipUntil  map[string]time.Time // by the key of a shared row: until then no statement waits for its lock
}

const (
	// skipFor is the time for which statements do not wait for the lock of a shared row again. With a longer time the rows
	// that need the shared row wait longer after its lock is released. With a shorter time the other rows wait for it more
	// often.
	skipFor = 5 * time.Second
	// splitFor is the time for which rows are split by the locks of their shared rows before each statement. It is
	// long, because a statement on rows that were not split may wait as long as the lock_timeout of the session.
	splitFor = time.Minute
	// maxLockWait is the time for which a statement waits for the lock of a shared row that another session has locked. It
	// is longer than sessions usually keep such a lock, and short compared to a sweep.
	maxLockWait = 500 * time.Millisecond
	// minLockWait is this time after statements did not get the locks of manySkipped shared rows. It is short, so that the
	// waits for many locked rows together remain short compared to a sweep.
	minLockWait = 50 * time.Millisecond
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

// skip notes that a statement did not get the lock of the shared row with this key in time.
func (w *lockWaits) skip(key string) {
	w.startSplitting()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.skipUntil == nil {
		w.skipUntil = make(map[string]time.Time)
	}
	w.skipUntil[key] = time.Now().Add(skipFor)
}

// limit returns how long a statement should wait for the lock of a shared row that another session has locked; 0 means
// not at all.
func (w *lockWaits) limit(key string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(w.skipUntil, func(_ string, until time.Time) bool { return now.After(until) })
	_, skipped := w.skipUntil[key]
	switch {
	case skipped:
		return 0
	case len(w.skipUntil) >= manySkipped:
		return minLockWait
	default:
		return maxLockWait
	}
}
