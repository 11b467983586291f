// Package faulttest breaks a service on purpose, and checks that the service keeps its promise: a row that is not
// confirmed by its deadline times out, once and on time, and a confirmed row never does.
//
// A service describes itself in one value, a [Service]: its program, its REST API and its tables. The tests of its
// package call the functions of this one:
//
//	var seats = &faulttest.Service{ … }
//
//	func TestMain(m *testing.M) { faulttest.Main(m, seats) }
//
//	func TestSeatsSurviveCrash(t *testing.T)    { faulttest.Crash(t, seats) }
//	func TestSeatsWithoutRedis(t *testing.T)    { faulttest.RedisDown(t, seats) }
//	func TestSeatsWhenRedisBreaks(t *testing.T) { faulttest.Faults(t, seats, seats.RedisFaults()...) }
//	func TestSeatsInChaos(t *testing.T)         { faulttest.Chaos(t, seats) }
//	func TestBrokenSeats(t *testing.T)          { faulttest.Broken(t, seats, "../../..") }
//
// [Faults] starts a [Deployment], several processes of each role, and puts it under a [Load] of customers. It injects
// one fault, ends it, and waits until all rows have ended. Then it compares the answers that each customer got with
// the database and with a model of one row (model.go), looks at the end of every row (ends.go), runs the doctor, which
// checks the invariants, and compares the delays with the fault's [Bound]. Most calls are made within a second of a
// deadline, on both sides of it. [Chaos] does the same with random faults, one or two at a time. A service adds
// faults of its own as arguments, and a second party that confirms rows, such as a payment provider, as its [Party].
//
// A confirmed row is final for these tests: no call changes it, and its units of shared rows stay taken. A service that
// may undo a confirmation describes no action that does so, and tests it by itself.
//
// [Broken] shows that the tests find what they look for: it breaks the service on purpose, and the faults must
// report that.
//
// A test of your own begins with [Service.Deploy]: [Needs] says which servers and processes it gets, and Needs.Env
// which further environment variables these have. The processes of a [Site], from [Service.NewSite], are for tests
// without a load. [Deployment.Running] returns the processes, whose [Process.SignUp] returns a customer who sends
// requests.
//
// Without TEST_ALL=1 only the quick faults run: see testenv.Slow.
package faulttest
