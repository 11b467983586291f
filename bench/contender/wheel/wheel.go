// Package wheel times out orders with timing wheels in the process, after Varghese and Lauck, "Hashed and Hierarchical
// Timing Wheels". A wheel is a ring of slots. Adding a timer to its slot costs O(1), where a heap costs O(log n).
//
// A hashed wheel has one ring. Each tick it moves to the next slot and checks every timer there, including timers for
// later turns. A hierarchical wheel has several rings. Each ring has coarser slots than the one before it. When the
// time of a coarse slot begins, its timers move to finer slots.
//
// The wheels are written here, with the defaults of Netty and Kafka, because no Go library fits. The hashed wheel of
// go-zero v1.10.3 (core/collection) is maintained, but fires timers before their time, and fires a timer that was moved
// to an earlier time up to a turn late. The best-known port of Kafka's wheels, RussellLuo/timingwheel, has no release,
// and its last commit is of February 2022.
//
// The wheels are lost with the process, so they are filled from the table when the process starts. They need memory for
// each pending order, and each process holds the orders that it placed or found at its start: several processes would
// cancel the same orders. A wheel delivers an order up to a tick late, and not early.
package wheel

import (
	"context"
	"time"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/inprocess"
)

// Contenders are the two kinds of wheel.
var Contenders = []contender.Info{
	{
		Name:     "hashed timing wheel",
		Way:      "A ring of slots in the process holds all pending orders; each tick delivers the due orders of one slot.",
		Source:   "https://netty.io/4.2/api/io/netty/util/HashedWheelTimer.html",
		Settings: "tick 100 ms and 512 slots, Netty's defaults; 8 workers",
		Loads:    true,
		New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
			return inprocess.New(env, &hashed{start: time.Now()}), nil
		},
	},
	{
		Name:     "hierarchical timing wheel",
		Way:      "Rings of finer and coarser slots in the process hold all pending orders.",
		Source:   "https://www.confluent.io/blog/apache-kafka-purgatory-hierarchical-timing-wheels/",
		Settings: "tick 1 ms and 20 slots a ring, Kafka's defaults; 8 workers",
		Loads:    true,
		New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
			return inprocess.New(env, &hierarchical{start: time.Now(), changed: make(chan struct{}, 1)}), nil
		},
	},
}

// timer is an order in a wheel.
type timer struct {
	id   string
	tick int64 // when the order is due, in ticks since the start of the wheel
}

// timerOf returns the order's timer. Its tick is not before the due time and not before the tick first.
func timerOf(order contender.Order, start time.Time, tick time.Duration, first int64) timer {
	ticks := int64((order.Due.Sub(start) + tick - 1) / tick)
	return timer{id: order.ID, tick: max(ticks, first)}
}

// send sends the ids of the timers. It reports whether it sent all before ctx ended.
func send(ctx context.Context, ids chan<- string, timers []timer) bool {
	for _, t := range timers {
		select {
		case <-ctx.Done():
			return false
		case ids <- t.id:
		}
	}
	return true
}
