package algos

import (
	"fmt"
	"time"
)

// Share is an algorithm with part/of of what it grants, for one of several that decide each by itself. In the long
// run all of them together then grant what the algorithm does, and where that does not come out even rather less:
//
//   - TokenBucket, Funnel, LeakyBucket and WarmUp: the rate times part/of. Burst, Capacity (of the LeakyBucket with the
//     one that departs) are multiplied too and rounded down, to at least 1; a WarmUp's Period and ColdFactor stay.
//   - FixedWindow, SlidingLog and SlidingWindow: the Limit times part/of, rounded down. If that is less than one, it is
//     one, in a Window that is longer in proportion.
//   - CalendarWindow, and FixedWindow with a Location: the Limit times part/of, rounded down, to at least 1. There can be
//     no longer window, so more than Limit shares grant more than the Limit together: one each.
//
// A rate that cannot be held exactly becomes the next lower one that can: up to a million permits a second it differs by
// less than a millionth, and always by less than one part in 8,000. The error matches ErrInvalid: if part/of is not above 0
// and at most 1, of is above 10,000, nothing so slow can be held, or the algorithm is not one of this package. A share of
// 1/1 is the algorithm itself, whosever it is.
//
// One permit is the least that each grants at once, and a WarmUp grants one request of any size: of those there is one in
// each share, however small the limit.
func Share(algorithm Algorithm, part, of int) (Algorithm, error) {
	switch {
	case algorithm == nil:
		return nil, fmt.Errorf("%w: the algorithm is nil", ErrInvalid)
	case part < 1 || part > of || of > maxShares:
		return nil, fmt.Errorf("%w: a share of %d/%d; it must be above 0 and at most 1, and the denominator at most %d", ErrInvalid, part, of, maxShares)
	}
	rule, err := algorithm.Rule()
	if err != nil {
		return nil, err
	}
	if part == of {
		return algorithm, nil
	}
	s := share{int64(part), int64(of)}
	shared, err := s.of(algorithm, rule)
	if err == nil {
		_, err = shared.Rule()
	}
	if err != nil {
		return nil, fmt.Errorf("a share of %d/%d: %w", part, of, err)
	}
	return shared, nil
}

// maxShares keeps the products of a share and a parameter below 2^63.
const maxShares = 10_000

// A share is a fraction.
type share struct{ part, whole int64 }

// of multiplies what the algorithm grants.
func (s share) of(algorithm Algorithm, rule Rule) (Algorithm, error) {
	switch a := algorithm.(type) {
	case TokenBucket:
		rate, per, err := s.rate(rule)
		return TokenBucket{Rate: rate, Per: per, Burst: s.permits(a.Burst)}, err
	case Funnel:
		rate, per, err := s.rate(rule)
		return Funnel{Capacity: s.permits(a.Capacity), Rate: rate, Per: per}, err
	case LeakyBucket:
		rate, per, err := s.rate(rule)
		return LeakyBucket{Rate: rate, Per: per, Capacity: s.permits(a.Capacity+1) - 1}, err
	case WarmUp:
		rate, per, err := s.rate(rule)
		return WarmUp{Rate: rate, Per: per, Period: a.Period, ColdFactor: a.ColdFactor}, err
	case FixedWindow:
		if a.Location != nil {
			return FixedWindow{Limit: s.permits(a.Limit), Window: a.Window, Location: a.Location}, nil
		}
		return FixedWindow{Limit: s.permits(a.Limit), Window: s.window(a.Limit, a.Window)}, nil
	case CalendarWindow:
		return CalendarWindow{Limit: s.permits(a.Limit), Every: a.Every, Location: a.Location}, nil
	case SlidingLog:
		return SlidingLog{Limit: s.permits(a.Limit), Window: s.window(a.Limit, a.Window), CountDenied: a.CountDenied}, nil
	case SlidingWindow:
		return SlidingWindow{Limit: s.permits(a.Limit), Window: s.window(a.Limit, a.Window), Cells: a.Cells}, nil
	}
	return nil, fmt.Errorf("%w: a %T has no shares: only the algorithms of package algos have, by value", ErrInvalid, algorithm)
}

// permits is the share of n, at least one.
func (s share) permits(n int) int { return int(max(int64(n)*s.part/s.whole, 1)) }

// rate is the share of a rule's rate, or the next lower one that a pace can hold.
func (s share) rate(rule Rule) (rate int, per time.Duration, err error) {
	permits, each := rule.Rate()
	n, us := int64(permits)*s.part, each.Microseconds()
	d := gcd(us, s.part)
	us, n = us/d, n/d
	d = gcd(n, s.whole)
	n, whole := n/d, s.whole/d
	shrink := (n + maxRate - 1) / maxRate
	if us > maxSpan*shrink/whole {
		return 0, 0, fmt.Errorf("%w: a rate of %d per %v is too slow to be divided; in lowest terms its period may be at most 2^45 µs (about 407 days)", ErrInvalid, permits, each)
	}
	return int(n / shrink), time.Duration((us*whole+shrink-1)/shrink) * time.Microsecond, nil
}

// window is as long as it takes for the share of the limit to be one permit at least.
func (s share) window(limit int, window time.Duration) time.Duration {
	if n := int64(limit) * s.part; n < s.whole {
		return time.Duration(min((window.Microseconds()*s.whole+n-1)/n, maxSpan+1)) * time.Microsecond
	}
	return window
}
