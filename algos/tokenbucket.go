package algos

import (
	_ "embed"
	"fmt"
	"time"
)

//go:embed tokenbucket.lua
var tokenBucketLua string

// TokenBucket admits Rate permits in every Per on average, and up to Burst of them at once after a quiet time. It is
// the limiter of golang.org/x/time/rate and, seen from the other side, the generic cell rate algorithm (GCRA) of
// ATM networks (ITU-T I.371).
//
// In any stretch of time of length w it grants at most Burst + Rate × w/Per permits, reservations included.
//
// Per is a whole number of microseconds. Rate/Per in lowest terms must have a numerator below 2^24 and a denominator
// of at most 2^45 µs (about 407 days): from one permit a year to ten million a second and more, below a billion.
// Filling an empty bucket must take no more than 2^45 µs either.
//
// Slots are promised up to 2^45 µs ahead, and up to 2^45 permits. Giving back is exact: permits cancelled at the end of
// the queue are as if never taken, permits cancelled in the middle of it stand open, at their place, for whoever comes
// next and fits.
//
// The parameters may change while the limiter is in use: what has been taken stays taken, counted in permits, and the
// next call decides by its own. Slots given out before keep their time, so while they last they may come on top of what
// a raised rate grants: at most what was reserved ahead at the change.
//
// Up to a thousand separate places in the middle of the queue can stand open at a time; what is cancelled beyond that
// drains as if it had been used.
type TokenBucket struct {
	Rate  int           // permits in each Per; at least 1
	Per   time.Duration // at least 1 µs
	Burst int           // permits that a full bucket holds; at least 1
}

// Rule implements Algorithm.
func (b TokenBucket) Rule() (Rule, error) {
	p, err := newPace("TokenBucket", b.Rate, b.Per)
	if err != nil {
		return nil, err
	}
	return newTokenBucket("token_bucket", "tb", "TokenBucket.Burst", p, b.Burst)
}

// newTokenBucket checks the burst, which field names in the error, and fills in the rest.
func newTokenBucket(name, suffix, field string, p pace, permits int) (Rule, error) {
	burst := int64(permits)
	switch {
	case burst < 1:
		return nil, fmt.Errorf("%w: %s is %d; it must be at least 1", ErrInvalid, field, burst)
	case burst > maxPermits || p.permits(maxSpan, 0) < burst:
		return nil, fmt.Errorf("%w: %s is %d; at this rate an empty bucket would take more than 2^45 µs to fill", ErrInvalid, field, burst)
	}
	r := &tokenBucket{name: name, suffix: suffix, pace: p, burst: burst, horizon: p.horizon()}
	r.room, r.part = p.span(burst)
	if p.rate <= maxParts {
		r.tail = &Tail{pace: p, room: burst * p.per, burst: burst}
	}
	return r, nil
}

// tokenBucket is the checked TokenBucket.
type tokenBucket struct {
	name, suffix string
	pace
	burst      int64
	room, part int64 // how long a full bucket lasts at its own rate: span(burst)
	tail       *Tail
	horizon    int64
}

func (r *tokenBucket) Name() string        { return r.name }
func (r *tokenBucket) Suffix() string      { return r.suffix }
func (r *tokenBucket) Limit() int          { return int(r.burst) }
func (r *tokenBucket) Max() int            { return int(r.burst) }
func (r *tokenBucket) Horizon(int64) int64 { return r.horizon }
func (r *tokenBucket) Lua() string         { return lineLua + tokenBucketLua }
func (r *tokenBucket) NewState() State     { return new(bucket) }

func (r *tokenBucket) Params(int64) (params []int64, until int64) {
	return []int64{r.rate, r.per, r.burst}, forever
}

// Tail implements Tailed.
func (r *tokenBucket) Tail() *Tail { return r.tail }

// Span implements Lender.
func (r *tokenBucket) Span(permits int64) (us int64) {
	us, _ = r.span(permits)
	return us
}

// Permits implements Lender.
func (r *tokenBucket) Permits(us int64) (permits int64) { return r.permits(us, 0) }

// Replay implements Replayer.
func (r *tokenBucket) Replay(reply []int64) (state State, now int64) {
	now, elapsed, taken, name := reply[0], reply[1], reply[2], reply[3]
	length, part := r.span(taken)
	saved := busyPeriod{pace: r.pace, at: now, start: now - elapsed, taken: taken, length: length, part: part, name: name}
	return &bucket{line: line{saved: saved}, rule: r}, now
}

// bucket is the State of a token bucket: a line whose places may be used up to a full bucket's span before they end.
type bucket struct {
	line
	rule *tokenBucket
}

// Load implements State.
func (b *bucket) Load(rule Rule, now int64) (changed bool) {
	b.rule = rule.(*tokenBucket)
	return b.load(b.rule.pace, now)
}

// End implements Ender. A line without places ends where it starts.
func (b *bucket) End(tail *Tail) (end int64, ok bool) {
	s := &b.saved
	return (s.start+s.length)*s.rate + s.part, s.pace == tail.pace && len(s.holes) == 0
}

// SetEnd implements Ender.
func (b *bucket) SetEnd(tail *Tail, end int64) {
	before, _ := b.End(tail)
	b.saved.taken += (end - before) / tail.per
	b.saved.length, b.saved.part = tail.span(b.saved.taken)
}

// Earliest implements State.
func (b *bucket) Earliest(cost int64) (wait int64) {
	us, part := b.place(cost)
	wait = us - b.rule.room
	if part > b.rule.part {
		wait++
	}
	return max(wait, 0)
}

// Status implements State.
func (b *bucket) Status() Status {
	remaining := b.rule.left(b.debt, b.part)
	if length, us, part := b.firstHole(); length > 0 {
		remaining = max(remaining, min(length, b.rule.left(us, part)))
	}
	return Status{Remaining: remaining, ResetAfter: max(ceil(b.debt, b.part), 0)}
}

// left is how many permits a full bucket has beyond a point of the line.
func (r *tokenBucket) left(us, part int64) int64 {
	us, part = r.room-us, r.part-part
	if part < 0 {
		us, part = us-1, part+r.rate
	}
	if us < 0 {
		return 0
	}
	return min(r.permits(us, part), r.burst)
}
