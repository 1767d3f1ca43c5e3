// Package algos holds the rate limiting algorithms of Headgate.
//
// A user picks one, fills in its parameters and hands it to headgate.New:
//
//	headgate.New(store, "openai:rpm", algos.TokenBucket{Rate: 500, Per: time.Minute, Burst: 50})
//
// They are:
//
//   - [TokenBucket]: a rate, and a burst after a quiet time; the one to begin with
//   - [Funnel]: the same in redis-cell's words
//   - [LeakyBucket]: one after the other, an interval apart; for Wait and Reserve
//   - [FixedWindow]: so many in each window, and twice that at an edge
//   - [CalendarWindow]: so many in each minute, day, week, month or year of a time zone
//   - [SlidingLog]: never more in any window, exactly
//   - [SlidingWindow]: the same in little memory
//   - [WarmUp]: slow after a quiet time, for what must fill its caches first
//
// Everything else here is for Headgate's drivers: [Algorithm], [Rule], [Lender], [Replayer], [Tailed], [Tail], [State],
// [Denier], [Ender], [Receipt], [Status]. An algorithm answers a few questions about its own state, and a driver does the
// rest: it reads the clock, loads, asks, refuses or takes, and saves. Each algorithm stands in two files that go step by step
// in the same order: NAME.go answers in process, NAME.lua answers inside Redis, and both give the same answers to the
// microsecond.
//
// The package does no I/O and reads no clock. Times are whole microseconds since 1970, spans of time are whole
// microseconds, and permits are whole numbers.
package algos

import (
	"errors"
	"math"
	"time"
)

// ErrInvalid is matched by every error about parameters or arguments that no limiter can work with. It is always
// reported before any call to a store.
var ErrInvalid = errors.New("headgate: invalid")

// An Algorithm is a way of limiting together with its parameters, as the user wrote them.
type Algorithm interface {
	// Rule checks the parameters. The error matches ErrInvalid and says which parameter cannot be held, and why.
	Rule() (Rule, error)
}

// A Rule is an Algorithm whose parameters have been checked. It is immutable and safe for concurrent use.
type Rule interface {
	// Name is the algorithm's name as spans and metrics show it, "token_bucket" for instance.
	Name() string
	// Suffix ends the key of the stored state: it names the layout, so that two layouts never meet under one key.
	Suffix() string
	// Limit is what Decision.Limit reports: the most permits that the limiter holds at any one time.
	Limit() int
	// Rate is how many permits are granted in how much time in the long run, if there is always somebody who asks. What
	// comes once, such as a burst, is not in it. Where windows differ in length, as months do, it is their average.
	Rate() (permits int, per time.Duration)
	// Max is the most permits that one request can ever be granted.
	Max() int
	// Horizon is the furthest ahead of now, in microseconds, at which the algorithm promises a slot for cost permits.
	Horizon(cost int64) int64
	// Params are the parameters in the order in which the algorithm's Lua reads them, for a server whose clock shows
	// about now, and the instant until which they serve. Where a calendar sets the limits they are its dates around
	// now; the Lua answers with the server's clock instead of a reply if those are the wrong ones.
	Params(now int64) (params []int64, until int64)
	// Lua is the algorithm's other half, in sections that the driver puts in its own script.
	Lua() string
	// NewState is the state of a limiter that nobody has used yet.
	NewState() State
}

// A State is what one limiter remembers, in process. Its methods are called in this order: Load once, then for each
// request Earliest and perhaps Take, or GiveBack, and Status after it; Save once, if anything is to be kept. What
// Load changes is forgotten by the next Load unless it was saved; whoever takes or gives back saves. A State is not safe
// for concurrent use.
type State interface {
	// Load brings the saved state to the instant now under rule, which may have other parameters than the one that
	// saved it. It reports whether the state must be saved even if nothing is taken: true when the clock went back or
	// the rule is another one.
	Load(rule Rule, now int64) (changed bool)
	// Earliest is how long from now, in microseconds, the first instant lies at which cost permits fit. It changes
	// nothing.
	Earliest(cost int64) (wait int64)
	// Take charges the cost permits at the place that the Earliest just before it found.
	Take(cost int64) Receipt
	// GiveBack returns permits that were taken under the receipt and will not be used, as far as that is safe, and
	// says how many can be taken again.
	GiveBack(receipt Receipt, cost int64) (returned int64)
	// Status tells what is left at the loaded instant, and when the state may be forgotten.
	Status() Status
	// Save keeps what was done since Load.
	Save()
}

// A Lender is a Rule whose permits may be used some time after they were granted. Each has a place on a line that ends with
// the Status's ResetAfter, and may be used until its place begins.
type Lender interface {
	Rule
	// Span is how long the places of so many permits are together, in whole microseconds, rounded down.
	Span(permits int64) (us int64)
	// Permits is how many places fit a span of time.
	Permits(us int64) (permits int64)
}

// A Replayer is a Rule whose Lua decides equal requests all at once (section repeat), and answers with nothing but the
// state in which it found the limiter. What each of them is told is then found in process, one after the other.
type Replayer interface {
	Rule
	// Replay makes that state of what the section replied, and tells the instant at which it decided.
	Replay(reply []int64) (state State, now int64)
}

// A Denier is a State that counts refused requests too.
type Denier interface {
	State
	// Deny counts a request of cost permits that was refused, and reports whether it did. Earliest then tells how long
	// the next such request would wait.
	Deny(cost int64) (counted bool)
}

// forever is how long parameters serve that do not depend on the time.
const forever = math.MaxInt64

// A Receipt finds permits that were taken, so that they can be given back. Only the algorithm that issued it reads it.
type Receipt struct {
	// Period names the stretch of the limiter's life in which the permits were taken.
	Period int64
	// Number is the last permit's place in it.
	Number int64
}

// Status is what a limiter has left.
type Status struct {
	// Remaining is how many permits a single request is sure to be granted at once.
	Remaining int64
	// ResetAfter is how long until the limiter is as new, in microseconds, rounded up. Its state may then be
	// forgotten.
	ResetAfter int64
}
