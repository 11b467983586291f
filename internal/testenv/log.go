package testenv

import (
	"bytes"
	"sync"
)

// Log is the text of a log that several goroutines may write and read at the same time.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends to the text.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns the text.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
