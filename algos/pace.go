package algos

import (
	"fmt"
	"math/bits"
	"time"
)

// A pace is a rate in lowest terms: rate permits in per microseconds. It converts between permits and time without
// losing anything: a span of time is whole microseconds and a part of one, counted in 1/rate µs.
//
// The bounds of newPace keep every product below 2^53, where the numbers of Lua stop being exact.
type pace struct {
	rate, per int64
}

// newPace checks the rate and period of an algorithm, which is named in the error.
func newPace(algorithm string, rate int, per time.Duration) (pace, error) {
	switch {
	case rate < 1:
		return pace{}, fmt.Errorf("%w: %s.Rate is %d; it must be at least 1", ErrInvalid, algorithm, rate)
	case per < time.Microsecond || per%time.Microsecond != 0:
		return pace{}, fmt.Errorf("%w: %s.Per is %v; it must be a whole number of microseconds, at least 1", ErrInvalid, algorithm, per)
	}
	p := pace{int64(rate), per.Microseconds()}
	d := gcd(p.rate, p.per)
	p.rate, p.per = p.rate/d, p.per/d
	switch {
	case p.rate/p.per >= maxPerMicro:
		return pace{}, fmt.Errorf("%w: %s: a rate of %d per %v is too fast; it must be below a billion a second", ErrInvalid, algorithm, rate, per)
	case p.rate > maxRate:
		return pace{}, fmt.Errorf("%w: %s: a rate of %d per %v cannot be held exactly; in lowest terms its numerator must be below 2^24", ErrInvalid, algorithm, rate, per)
	case p.per > maxSpan:
		return pace{}, fmt.Errorf("%w: %s: a rate of %d per %v is too slow; in lowest terms its period may be at most 2^45 µs (about 407 days)", ErrInvalid, algorithm, rate, per)
	}
	return p, nil
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Rate implements Rule for those that grant at a pace.
func (p pace) Rate() (permits int, per time.Duration) {
	return int(p.rate), time.Duration(p.per) * time.Microsecond
}

// span is how long n permits take.
func (p pace) span(n int64) (us, part int64) {
	whole, n := n/p.rate, n%p.rate
	x := n * (p.per % p.rate)
	return whole*p.per + n*(p.per/p.rate) + x/p.rate, x % p.rate
}

// permits is how many whole permits fit a span of time.
func (p pace) permits(us, part int64) int64 {
	hi, lo := bits.Mul64(uint64(us), uint64(p.rate))
	lo, carry := bits.Add64(lo, uint64(part), 0)
	n, _ := bits.Div64(hi+carry, lo, uint64(p.per))
	return int64(n)
}

// horizon is how far ahead slots at this pace are promised: no further than maxSpan, nor maxPermits.
func (p pace) horizon() int64 {
	us, _ := p.span(min(maxPermits, p.permits(maxSpan, 0)))
	return us
}

// ceil rounds a span up to whole microseconds.
func ceil(us, part int64) int64 {
	if part > 0 {
		return us + 1
	}
	return us
}
