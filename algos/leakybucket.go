package algos

import (
	_ "embed"
	"fmt"
	"time"
)

//go:embed leakybucket.lua
var leakyBucketLua string

// LeakyBucket is a queue with a fixed outflow: each request departs alone, and the next one as many intervals of
// Per/Rate after it as it had permits. At most Capacity permits may wait; who comes to a full queue is refused, and told
// when there is room. Allow admits only what departs now, so a LeakyBucket is for Wait and Reserve.
//
// It is nginx's limit_req with burst = Capacity (which a TokenBucket with Burst: burst + 1 is with nodelay: the two
// admit the same requests, one at their departure, the other at once), and Sentinel's uniform queueing with a maximum
// queueing time (headgate.Within). The rule is the leaky bucket as a queue of Turner (1986).
//
// With Capacity 0 nobody waits. Limit is Capacity + 1: with the one that departs. Remaining is what may depart now, which
// is nothing until the last departure is an interval ago.
//
// In any stretch of time of length w it grants at most the permits of one request, and Rate × w/Per beside them. A
// request may be for up to Capacity + 1 permits, and only if the queue has room for all of them.
//
// Rate and Per are bounded as in TokenBucket, and emptying a full queue must take no more than 2^45 µs. Slots lie at
// most Capacity intervals ahead. Giving back is exact, and parameters may change, as in TokenBucket.
type LeakyBucket struct {
	Rate     int           // permits that depart in each Per; at least 1
	Per      time.Duration // at least 1 µs
	Capacity int           // permits that may wait; at least 0
}

// Rule implements Algorithm.
func (b LeakyBucket) Rule() (Rule, error) {
	p, err := newPace("LeakyBucket", b.Rate, b.Per)
	if err != nil {
		return nil, err
	}
	capacity := int64(b.Capacity)
	switch {
	case capacity < 0:
		return nil, fmt.Errorf("%w: LeakyBucket.Capacity is %d; it must be at least 0", ErrInvalid, capacity)
	case capacity >= maxPermits || p.permits(maxSpan, 0) <= capacity:
		return nil, fmt.Errorf("%w: LeakyBucket.Capacity is %d; at %d per %v a full queue would take more than 2^45 µs to empty", ErrInvalid, capacity, b.Rate, b.Per)
	}
	return &leakyBucket{pace: p, most: capacity + 1}, nil
}

// leakyBucket is the checked LeakyBucket.
type leakyBucket struct {
	pace
	most int64 // permits that are departing or waiting
}

func (r *leakyBucket) Name() string    { return "leaky_bucket" }
func (r *leakyBucket) Suffix() string  { return "lb" }
func (r *leakyBucket) Limit() int      { return int(r.most) }
func (r *leakyBucket) Max() int        { return int(r.most) }
func (r *leakyBucket) Lua() string     { return lineLua + leakyBucketLua }
func (r *leakyBucket) NewState() State { return new(queue) }

// Horizon leaves room for the request itself: with its own permits no more than most are on the line.
func (r *leakyBucket) Horizon(cost int64) int64 { return ceil(r.span(r.most - cost)) }

func (r *leakyBucket) Params(int64) (params []int64, until int64) {
	return []int64{r.rate, r.per, r.most}, forever
}

// queue is the State of a leaky bucket: a line whose places are used when they begin.
type queue struct {
	line
	rule *leakyBucket
}

// Load implements State.
func (q *queue) Load(rule Rule, now int64) (changed bool) {
	q.rule = rule.(*leakyBucket)
	return q.load(q.rule.pace, now)
}

// Earliest implements State.
func (q *queue) Earliest(cost int64) (wait int64) {
	q.place(cost)
	us, part := q.span(q.from)
	return max(ceil(us-(q.now-q.start), part), 0)
}

// Status implements State.
func (q *queue) Status() Status {
	var remaining int64
	if ceil(q.debt, q.part) <= 0 {
		remaining = q.rule.most
	} else if length, us, part := q.firstHole(); length > 0 && ceil(us, part) <= 0 {
		remaining = min(length, q.rule.most)
	}
	return Status{Remaining: remaining, ResetAfter: max(ceil(q.debt, q.part), 0)}
}
