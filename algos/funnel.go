package algos

import "time"

// Funnel is a funnel that leaks Rate permits in every Per, and into which a request pours its permits if they fit: a
// TokenBucket seen from the other side, which answers in the words of redis-cell. A full bucket is an empty funnel;
// a Decision's Limit is the capacity, Remaining what is left of it, ResetAfter how long until it has run empty.
//
// It replaces redis-cell one for one:
//
//	CL.THROTTLE key max_burst count period n
//
// is
//
//	limiter, err := headgate.New(store, key, algos.Funnel{Capacity: maxBurst + 1, Rate: count, Per: time.Duration(period) * time.Second})
//	d, err := limiter.AllowN(ctx, n)
//	limited, capacity, left, retryAfter, fullReset := d.Throttle()
//
// with the same five numbers (redis-cell's limit is its max_burst + 1). It differs where redis-cell says nothing
// useful: n above the capacity is ErrNeverAllowed, for n of zero call Peek, and seconds are rounded up.
//
// Bounds, horizon, giving back and changed parameters are those of TokenBucket. Its state is its own: a Funnel and a
// TokenBucket on one key do not meet.
type Funnel struct {
	Capacity int           // permits that an empty funnel takes; at least 1
	Rate     int           // permits that leak in each Per; at least 1
	Per      time.Duration // at least 1 µs
}

// Rule implements Algorithm.
func (f Funnel) Rule() (Rule, error) {
	p, err := newPace("Funnel", f.Rate, f.Per)
	if err != nil {
		return nil, err
	}
	return newTokenBucket("funnel", "fn", "Funnel.Capacity", p, f.Capacity)
}
