package attempt

// Answer is what the provider says about the session of an attempt.
type Answer int

// The answers. Only Paid and Expired are final.
const (
	NoSession      Answer = iota // the shop knows no session, so the provider was not asked
	UnknownSession               // the provider does not know the session, or has it for another attempt
	Undecided                    // the session is open, or it is complete and not paid
	Paid                         // the customer has paid
	Expired                      // the customer cannot pay any more, and has not paid
)

// Step is what settling does with an attempt after an answer.
type Step int

// The steps.
const (
	Wait    Step = iota // the attempt stays as it is, and is checked again later
	Close               // the customer cannot pay any more, so the order is released
	Succeed             // the money is captured, and pays the order or is refunded
	Finish              // the attempt stays closed, and is never checked again
)

// steps is the table of all steps. Each row has the step of an attempt that may go on, of one that should end, because
// it is closing or because it has been creating for maxCreating, and of one whose order has ended.
//
// The session of an open attempt may be unknown because the key is of another account, or because the provider was
// restored. Until the order has ended, a process with the right key could still make a payment late, so the attempt
// stays open.
var steps = map[State]map[Answer][3]Step{
	//                     goes on  should end  order has ended
	Creating: {
		NoSession:      {Wait, Close, Close},
		UnknownSession: {Wait, Close, Close},
		Undecided:      {Wait, Wait, Wait},
		Paid:           {Succeed, Succeed, Succeed},
		Expired:        {Close, Close, Close},
	},
	Open: { // the schema gives each of them a session
		UnknownSession: {Wait, Wait, Close},
		Undecided:      {Wait, Wait, Wait},
		Paid:           {Succeed, Succeed, Succeed},
		Expired:        {Close, Close, Close},
	},
	Closed: { // an event, or the books, tell of a payment
		NoSession:      {Finish, Finish, Finish},
		UnknownSession: {Finish, Finish, Finish},
		Undecided:      {Wait, Wait, Wait},
		Paid:           {Succeed, Succeed, Succeed},
		Expired:        {Finish, Finish, Finish},
	},
}

// step returns the step of an attempt after an answer.
func (a taken) step(answer Answer) Step {
	row := steps[a.State][answer]
	switch {
	case a.OrderEnded:
		return row[2]
	case a.Closing, a.State == Creating && a.Stale:
		return row[1]
	default:
		return row[0]
	}
}
