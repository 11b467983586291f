package batch

import "time"

// RejectLogInterval is the shortest time between two calls of OnReject.
const RejectLogInterval = rejectLogInterval

// NewLanes returns lanes.
func NewLanes[T comparable](run func([]T), lanesMax, size int, maxWait time.Duration) *lanes[T] {
	return &lanes[T]{run: run, max: lanesMax, size: size, maxWait: maxWait}
}

func (l *lanes[T]) Add(item T) bool    { return l.add(item) }
func (l *lanes[T]) Remove(item T) bool { return l.remove(item) }
func (l *lanes[T]) Overloaded() bool   { return l.overloaded() }
