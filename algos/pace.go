package algos

import "math/bits"

// A pace is a rate in lowest terms: rate permits in per microseconds. It converts between permits and time without
// losing anything: a span of time is whole microseconds and a part of one, counted in 1/rate µs.
//
// The bounds of newPace keep every product below 2^53, where the numbers of Lua stop being exact.
type pace struct {
	rate, per int64
}

// span is how long n permits take.
func (p pace) span(n int64) (us, part int64) {
	whole, n := n/p.rate, n%p.rate
	x := n * (p.per % p.rate)
	return whole*p.per + n*(p.per/p.rate) + x/p.rate, x % p.rate
}

// permits is how many whole permits fit a span of time.
func (p pace) permits(us, part int64) int64 {
	whole, us := us/p.per, us%p.per
	hi, lo := bits.Mul64(uint64(us), uint64(p.rate))
	lo, carry := bits.Add64(lo, uint64(part), 0)
	n, _ := bits.Div64(hi+carry, lo, uint64(p.per))
	return whole*p.rate + int64(n)
}

// ceil rounds a span up to whole microseconds.
func ceil(us, part int64) int64 {
	if part > 0 {
		return us + 1
	}
	return us
}
