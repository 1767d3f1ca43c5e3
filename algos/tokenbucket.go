package algos

import (
	_ "embed"
	"fmt"
	"slices"
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
// of at most 2^45 µs (about 407 days): from one permit a year to ten million a second and more. Filling an empty bucket must
// take no more than 2^45 µs either.
//
// Slots are promised up to 2^45 µs ahead. Giving back is exact: permits cancelled at the end of the queue are as if
// never taken, permits cancelled in the middle of it stand open, at their place, for whoever comes next and fits.
//
// The parameters may change while the limiter is in use: what has been taken stays taken, counted in permits.
type TokenBucket struct {
	Rate  int           // permits in each Per; at least 1
	Per   time.Duration // at least 1 µs
	Burst int           // permits that a full bucket holds; at least 1
}

// The bounds of a token bucket. Lua computes in doubles, which are exact below 2^53, and the stored state has three
// bytes for the rate and six for each span of time and count of permits.
const (
	maxRate     = 1<<24 - 1 // reduced permits a period, so that its square fits
	maxPerMicro = 1000      // permits a µs
	maxSpan     = 1 << 45   // µs: a period, a full bucket, the furthest slot
	maxPermits  = 1 << 45   // a burst, and the permits reserved ahead
	foldAbove   = 1 << 47   // permits or µs of one busy period, beyond which it is counted anew
)

// Rule implements Algorithm.
func (b TokenBucket) Rule() (Rule, error) {
	switch {
	case b.Rate < 1:
		return nil, fmt.Errorf("%w: TokenBucket.Rate is %d; it must be at least 1", ErrInvalid, b.Rate)
	case b.Per < time.Microsecond || b.Per%time.Microsecond != 0:
		return nil, fmt.Errorf("%w: TokenBucket.Per is %v; it must be a whole number of microseconds, at least 1", ErrInvalid, b.Per)
	case b.Burst < 1:
		return nil, fmt.Errorf("%w: TokenBucket.Burst is %d; it must be at least 1", ErrInvalid, b.Burst)
	}
	rate, per, burst := int64(b.Rate), b.Per.Microseconds(), int64(b.Burst)
	d := gcd(rate, per)
	p := pace{rate / d, per / d}
	switch {
	case p.rate/p.per >= maxPerMicro:
		return nil, fmt.Errorf("%w: TokenBucket: a rate of %d per %v is too fast; it must be below a billion a second", ErrInvalid, b.Rate, b.Per)
	case p.rate > maxRate:
		return nil, fmt.Errorf("%w: TokenBucket: a rate of %d per %v cannot be held exactly; in lowest terms its numerator must be below 2^24", ErrInvalid, b.Rate, b.Per)
	case p.per > maxSpan:
		return nil, fmt.Errorf("%w: TokenBucket: a rate of %d per %v is too slow; in lowest terms its period may be at most 2^45 µs (about 407 days)", ErrInvalid, b.Rate, b.Per)
	case burst > maxPermits || p.permits(maxSpan, 0) < burst:
		return nil, fmt.Errorf("%w: TokenBucket.Burst is %d; at %d per %v an empty bucket would take more than 2^45 µs to fill", ErrInvalid, b.Burst, b.Rate, b.Per)
	}
	r := &tokenBucket{pace: p, burst: burst}
	r.room, r.part = p.span(burst)
	// No slot lies further off than maxSpan, and no more than maxPermits are reserved ahead.
	us, _ := p.span(min(maxPermits, p.permits(maxSpan, 0)))
	r.horizon = us
	return r, nil
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// tokenBucket is the checked TokenBucket.
type tokenBucket struct {
	pace
	burst      int64
	room, part int64 // how long a full bucket lasts at its own rate: span(burst)
	horizon    int64
}

func (r *tokenBucket) Name() string    { return "token_bucket" }
func (r *tokenBucket) Suffix() string  { return "tb" }
func (r *tokenBucket) Limit() int      { return int(r.burst) }
func (r *tokenBucket) Max() int        { return int(r.burst) }
func (r *tokenBucket) Horizon() int64  { return r.horizon }
func (r *tokenBucket) Params() []int64 { return []int64{r.rate, r.per, r.burst} }
func (r *tokenBucket) Lua() string     { return tokenBucketLua }
func (r *tokenBucket) NewState() State { return new(bucket) }

// A busyPeriod is all that a bucket remembers: a stretch of time during which it was never full.
//
// Think of the permits taken in it as places on a line, one behind the other from its start, each as long as one
// permit takes at the rate. A grant owns the places of its permits. Its slot is never later than the first of them
// begins, rounded up to a microsecond, and the last ends at most a burst's span after the slot. Places do not
// overlap, so the grants of any stretch of time w fit in w plus a burst, and the microsecond: that is the whole proof
// that nothing is over-admitted, and it holds for places given up and taken again too.
type busyPeriod struct {
	pace         // what it was last counted by
	at     int64 // the last save
	start  int64 // where the line begins
	taken  int64 // places on the line so far
	name   int64 // how receipts call it: the start that it was born with
	holes  []hole
	exists bool
}

// A hole is a run of places that were given up while others had been taken behind them: from+1 to to.
type hole struct{ from, to int64 }

// bucket is the State of a token bucket: the saved busy period, and a copy of it to work on.
type bucket struct {
	saved busyPeriod
	busyPeriod

	rule       *tokenBucket
	now        int64
	debt, part int64 // how far the line reaches beyond now
	begun      int64 // places on it that began before now: see passed; known only while there are holes

	// What Earliest found, for Take.
	from     int64
	fit      int // index of the hole, or -1 for the end of the line
	end, rem int64
}

// Load implements State.
func (b *bucket) Load(rule Rule, now int64) (changed bool) {
	b.rule, b.now = rule.(*tokenBucket), now
	b.busyPeriod = b.saved
	if b.exists {
		if now < b.at { // the clock went back: so does the line, with all that is owed
			b.start -= b.at - now
			changed = true
		}
		b.measure()
	}
	repaced := b.pace != b.rule.pace
	if !b.exists || b.drained() || repaced && b.debt < 0 {
		b.refill()
		return changed
	}
	if repaced {
		b.convert()
	}
	if b.taken >= foldAbove || now-b.start >= foldAbove {
		b.fold()
	}
	b.trim()
	return changed
}

// measure sets how far the line reaches beyond now.
func (b *bucket) measure() {
	b.debt, b.part = b.span(b.taken)
	b.debt -= b.now - b.start
}

// drained tells whether the line ended a microsecond ago or earlier. Until then it goes on: slots are rounded up, and
// a limiter whose every caller comes at its slot keeps its rate exactly only if the rounding is not lost each time.
func (b *bucket) drained() bool {
	return b.debt < -1 || b.debt == -1 && b.part == 0
}

// refill makes the bucket full: the next permit taken begins a busy period.
func (b *bucket) refill() {
	b.busyPeriod = busyPeriod{pace: b.rule.pace, start: b.now, name: b.now}
	b.debt, b.part = 0, 0
}

// convert recounts the line at another pace: the debt stays the same number of permits. The part of a permit that
// has drained is scaled and rounded, by at most a microsecond, toward more debt.
func (b *bucket) convert() {
	old := b.pace
	owed := old.permits(b.debt, b.part)
	us, part := old.span(owed)
	rest := float64(b.debt-us) + float64(b.part-part)/float64(old.rate)
	b.pace = b.rule.pace
	// Each operation is rounded on its own, as Lua does it.
	rest = float64(rest*float64(old.rate)) / float64(old.per)
	rest = float64(rest*float64(b.per)) / float64(b.rate)
	if most := b.permits(2*maxSpan, 0); owed > most {
		owed, rest = most, 0 // no bucket owes more than years
	}
	anew := b.taken > b.permits(foldAbove, 0)
	if anew {
		b.taken, b.holes = owed+1, nil
	}
	us, part = b.span(owed)
	length, lengthPart := b.span(b.taken)
	b.start = b.now + us + int64(ceilUp(rest)) - length
	if part > lengthPart {
		b.start++
	}
	b.start = min(b.start, b.now)
	if anew {
		b.name = b.start
	}
	b.measure()
}

// ceilUp rounds up, and over what the operations before may have rounded off.
func ceilUp(x float64) float64 {
	x = float64(x * (1 + 0x1p-50))
	if whole := float64(int64(x)); whole < x {
		return whole + 1
	}
	return x
}

// fold restarts the count of a busy period that has lasted for years, a whole number of periods later. What was
// reserved before can no longer be given back.
func (b *bucket) fold() {
	periods := (b.now - b.start) / b.per
	b.start += periods * b.per
	b.taken -= periods * b.rate
	b.name, b.holes = b.start, nil
}

// passed counts the places on the line that lie behind now, and those that began too long ago to be taken again. A
// slot is the beginning of a place rounded up to a microsecond, so a place may be taken until then.
func (b *bucket) passed() (gone, begun int64) {
	elapsed := b.now - b.start
	if elapsed > 0 {
		begun = b.permits(elapsed-1, 0) + 1
	}
	return min(b.permits(elapsed, 0), begun), begun
}

// trim forgets the holes that lie behind now.
func (b *bucket) trim() {
	if len(b.holes) == 0 {
		return
	}
	var gone int64
	gone, b.begun = b.passed()
	for len(b.holes) > 0 && b.holes[0].to <= gone {
		b.holes = b.holes[1:]
	}
}

// Earliest implements State.
func (b *bucket) Earliest(cost int64) (wait int64) {
	b.from, b.fit = b.taken, -1
	for i, h := range b.holes {
		if from := max(h.from, b.begun); h.to-from >= cost {
			b.from, b.fit = from, i
			break
		}
	}
	b.end, b.rem = b.span(b.from + cost)
	b.end -= b.now - b.start
	wait = b.end - b.rule.room
	if b.rem > b.rule.part {
		wait++
	}
	return max(wait, 0)
}

// Take implements State.
func (b *bucket) Take(cost int64) Receipt {
	number := b.from + cost
	if b.fit < 0 {
		b.taken, b.debt, b.part = number, b.end, b.rem
	} else if h := b.holes[b.fit]; number < h.to {
		b.holes = replace(b.holes, b.fit, b.fit+1, hole{number, h.to})
	} else {
		b.holes = replace(b.holes, b.fit, b.fit+1)
	}
	return Receipt{Period: b.name, Number: number}
}

// replace is slices.Replace on a copy: the saved state keeps its own holes.
func replace(holes []hole, i, j int, with ...hole) []hole {
	return slices.Replace(slices.Clone(holes), i, j, with...)
}

// GiveBack implements State.
func (b *bucket) GiveBack(receipt Receipt, cost int64) (returned int64) {
	from, to := receipt.Number-cost, receipt.Number
	gone, begun := b.passed()
	if receipt.Period != b.name || from < 0 || to > b.taken || to <= gone {
		return 0
	}
	if to == b.taken { // the tail: the line ends earlier, and so does every hole that it now ends with
		b.taken = from
		for n := len(b.holes); n > 0 && b.holes[n-1].to == b.taken; n-- {
			b.taken = b.holes[n-1].from
			b.holes = b.holes[:n-1]
		}
		if b.measure(); b.taken == 0 || b.drained() {
			b.refill()
		}
		return to - max(from, gone)
	}
	first := 0 // the middle
	for first < len(b.holes) && b.holes[first].to < from {
		first++
	}
	h, next := hole{from, to}, first
	for ; next < len(b.holes) && b.holes[next].from <= to; next++ {
		other := b.holes[next]
		if other.from < to && other.to > from {
			return 0 // given back before
		}
		h = hole{min(h.from, other.from), max(h.to, other.to)}
	}
	b.holes = replace(b.holes, first, next, h)
	b.begun = begun
	return to - min(max(from, begun), to) // a place that has begun is of no use to anybody
}

// Status implements State.
func (b *bucket) Status() Status {
	var remaining int64
	if us, part := b.free(b.debt, b.part); us >= 0 {
		remaining = min(b.permits(us, part), b.rule.burst)
	}
	for _, h := range b.holes {
		if from := max(h.from, b.begun); from < h.to {
			us, part := b.span(from)
			if us, part = b.free(us-(b.now-b.start), part); us >= 0 {
				remaining = max(remaining, min(b.permits(us, part), h.to-from))
			}
			break
		}
	}
	return Status{Remaining: remaining, ResetAfter: max(ceil(b.debt, b.part), 0)}
}

// free is the room that a full bucket has beyond a point of the line.
func (b *bucket) free(us, part int64) (int64, int64) {
	us, part = b.rule.room-us, b.rule.part-part
	if part < 0 {
		us, part = us-1, part+b.rate
	}
	return us, part
}

// Save implements State.
func (b *bucket) Save() {
	b.at = b.now
	b.exists = b.taken > 0
	b.saved = b.busyPeriod
}
