package order

import "github.com/google/uuid"

// The statements, for the tests that look at their plans.
var (
	CancelDueSQL = cancelDueSQL
	PendingSQL   = pendingSQL
	LatenessSQL  = latenessSQL
)

// Cancellable things that are not for other packages.
var (
	Problems = problems
)

// FeedChannel is where an announcer publishes.
const FeedChannel = feedChannel

// Announce is what the service does with each change.
func (a *Announcer) Announce(customer, order uuid.UUID) { a.announce(customer, order) }

// A stream without its HTTP answer.

func (f *Feed) Join(customer uuid.UUID) (*stream, error) { return f.join(customer) }
func (f *Feed) Leave(s *stream)                          { f.leave(s) }
func (f *Feed) Receive(message string)                   { f.receive(message) }
func (s *stream) News() <-chan news                      { return s.news }
