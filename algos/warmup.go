package algos

import (
	_ "embed"
	"fmt"
	"math"
	"time"
)

//go:embed warmup.lua
var warmUpLua string

// WarmUp is Guava's RateLimiter, for all processes together: SmoothWarmingUp, and SmoothBursty where Period is 0. A
// request of any size goes as soon as the limiter is free, and the next one pays: it waits until then. A limiter
// that idles stores permits, and grows cold by it. Permits taken from a cold one take up to ColdFactor × Per/Rate each,
// the next ones less, and after Period of work it has its rate. That is for a service that must fill its caches first;
// Sentinel's warm-up is modelled on it.
//
// With Period 0 nothing grows cold: a second's worth of permits is stored at most, and goes at once. A limiter that
// nobody has used is as one that has idled for long, as everywhere in Headgate: cold, or with its second's worth, where
// Guava's bursty limiter begins without.
//
// Slots are as by Guava's law, rounded up to a microsecond. To idle is to be free for a microsecond or more: a caller who
// comes at its slot keeps the rate exactly. Slots are promised up to 2^45 µs (about 407 days) and 2^45 permits ahead,
// and one request may take as long and be for as many. While the limiter is free, Remaining equals Limit, which is what a
// cold limiter has stored; otherwise it is 0. A request for more goes too.
//
// Use Wait, not Allow: who waits warms a limiter; who polls may not. As with Guava it stores permits until somebody is
// granted, whoever is refused meanwhile. With ColdFactor 3, a lone caller that asks Allow evenly at no more than the
// rate, and finds the limiter cold, is granted every third time for good if that is more than about two thirds of the
// rate, every second time if more than about a third: asking at 0.83 of the rate it gets 0.28 of it. It is granted every
// time once the limiter is warm, for instance by Wait.
//
// Rate and Per are bounded as in TokenBucket, Period by 2^45 µs; and with Rate/Per in lowest terms,
// Rate × Period × (ColdFactor + 5) must be below 2^53 µs.
//
// Giving back is exact at the end of the queue: what cancels from the last to the first is as if it had never come.
// What cancels in the middle drains as if used.
//
// The parameters may change while the limiter is in use, as by Guava's setRate: the next request still pays for the
// one before by the old ones, and what is stored stays in proportion. What was taken before can then no longer be given
// back.
type WarmUp struct {
	Rate       int           // permits in each Per once warm; at least 1
	Per        time.Duration // at least 1 µs
	Period     time.Duration // how long a cold limiter takes to reach its rate; 0: a plain bursty limiter
	ColdFactor int           // how many times slower a cold limiter is; 1 to 100, 0 stands for 3, Guava's default
}

// Rule implements Algorithm.
func (w WarmUp) Rule() (Rule, error) {
	p, err := newPace("WarmUp", w.Rate, w.Per)
	if err != nil {
		return nil, err
	}
	period, cold := w.Period.Microseconds(), int64(w.ColdFactor)
	if cold == 0 {
		cold = defaultCold
	}
	switch {
	case w.Period < 0 || w.Period%time.Microsecond != 0 || period > maxSpan:
		return nil, fmt.Errorf("%w: WarmUp.Period is %v; it must be a whole number of microseconds, from 0 to 2^45 (about 407 days)", ErrInvalid, w.Period)
	case cold < 1 || cold > maxCold:
		return nil, fmt.Errorf("%w: WarmUp.ColdFactor is %d; it must be from 1 to %d, or 0 for 3", ErrInvalid, w.ColdFactor, maxCold)
	case period > (1<<53-1)/((cold+5)*p.rate):
		return nil, fmt.Errorf("%w: WarmUp.Period is %v; at %d per %v it cannot be held exactly: Rate in lowest terms × Period × (ColdFactor + 5) must be below 2^53 µs", ErrInvalid, w.Period, w.Rate, w.Per)
	}
	r := &warmUp{pace: p, period: period, cold: cold}
	if period == 0 {
		r.gain, r.each, r.full = 1, p.per, 1e6*p.rate
	} else {
		r.gain, r.each, r.full = cold+5, 2*(cold+1)*p.per, (cold+5)*period*p.rate
	}
	r.most = min(p.permits(maxSpan, 0), maxPermits)
	r.limit = min(max(r.full/r.each, 1), r.most)
	return r, nil
}

// defaultCold is Guava's.
const defaultCold = 3

// maxCold keeps 2 × (ColdFactor + 1) × Per below 2^53.
const maxCold = 100

// warmUp is the checked WarmUp. What is stored is counted in units so small that storing and using it is exact: of
// Guava's maxPermits, Period / (Per/Rate) × (ColdFactor + 5) / (2 × (ColdFactor + 1)), each is a whole number of units.
type warmUp struct {
	pace
	period, cold int64
	gain         int64 // units that idling stores in 1/rate µs
	each         int64 // units that make a permit
	full         int64 // units that are stored at most
	most, limit  int64
}

func (r *warmUp) Name() string        { return "warm_up" }
func (r *warmUp) Suffix() string      { return "wu" }
func (r *warmUp) Limit() int          { return int(r.limit) }
func (r *warmUp) Max() int            { return int(r.most) }
func (r *warmUp) Horizon(int64) int64 { return r.horizon() }
func (r *warmUp) Lua() string         { return warmUpLua }
func (r *warmUp) NewState() State     { return new(warmth) }

func (r *warmUp) Params(int64) (params []int64, until int64) {
	return []int64{r.rate, r.per, r.period, r.cold, r.limit}, forever
}

// extra is how much longer than at the rate it takes to use up what is stored, in 1/rate µs: a parabola, since above
// the warm part the interval grows in a straight line. What a bursty limiter has stored takes no time. This alone is not
// whole; it is right to a hundredth of a microsecond for the longest period, and no error adds up, since a busy period
// lasts as long as the difference of two of them says.
func (r *warmUp) extra(stored int64) float64 {
	if r.period == 0 {
		return -float64(stored)
	}
	warm := (r.cold + 1) * r.period * r.rate
	x := float64(max(stored-warm, 0))
	return float64(float64(x*x)*float64(r.cold-1)) / float64(16*warm)
}

// An effort is a busy period, during which the limiter was never free for a microsecond. It is all that is remembered:
// the rest follows from how many permits were taken in it, so giving back is taking fewer.
type effort struct {
	by     *warmUp // what it is counted by
	at     int64   // the last save
	start  int64   // ahead of at if the parameters changed while permits were owed
	name   int64   // how receipts call it
	stored int64   // units at its start
	taken  int64   // permits since
	exists bool
}

// warmth is the State of a WarmUp.
type warmth struct {
	saved effort
	effort

	now        int64
	left       int64 // units that are still stored
	debt, part int64 // how far the next free instant lies beyond now
	spare      int64 // units that idling stores on top, because that instant was rounded up
}

// Load implements State.
func (w *warmth) Load(rule Rule, now int64) (changed bool) {
	r := rule.(*warmUp)
	w.now, w.effort = now, w.saved
	if !w.exists {
		w.effort = effort{}
		w.begin(r, 0, r.full)
		return false
	}
	if now < w.at { // the clock went back: so does the busy period, with all that is owed
		w.start -= w.at - now
		changed = true
	}
	w.settle()
	free := ceil(w.debt, w.part)
	switch {
	case w.left == w.by.full && free <= 0: // as new
		w.begin(r, 0, r.full)
	case *w.by != *r:
		w.begin(r, free, w.by.convert(w.left, r))
		changed = true
	case w.taken >= foldAbove: // it has lasted for years: it is counted anew, and ends a µs later at most
		w.begin(r, free, w.left)
	}
	return changed
}

// begin begins a busy period some time from now, under another name: what came before can no longer be given back.
func (w *warmth) begin(r *warmUp, ahead, stored int64) {
	w.effort = effort{by: r, start: w.now + ahead, name: max(w.now, w.name+1), stored: stored}
	w.left, w.debt, w.part, w.spare = stored, ahead, 0, 0
}

// convert keeps what is stored in proportion, and rounds toward slower: to colder, or to less of a burst.
func (r *warmUp) convert(stored int64, to *warmUp) int64 {
	x := float64(stored) * float64(float64(to.full)/float64(r.full))
	if to.period > 0 {
		x = math.Ceil(x)
	}
	return min(int64(x), to.full)
}

// settle sets what is left and owed at now. Idling ends the busy period, and stores.
func (w *warmth) settle() {
	r := w.by
	w.left, w.debt, w.part, w.spare = w.stored, w.start-w.now, 0, 0
	if w.taken > 0 {
		if w.left = 0; w.taken <= w.stored/r.each {
			w.left = w.stored - w.taken*r.each
		}
		before, after := r.extra(w.stored), r.extra(w.left)
		up, down := math.Ceil(before), math.Floor(after)
		w.spare = int64(math.Ceil(float64(r.gain) * ((up - before) + (after - down))))
		us, part := r.span(w.taken)
		part += int64(up) - int64(down)
		over := part / r.rate
		if part < over*r.rate { // negative: the quotient was rounded up
			over--
		}
		w.debt, w.part = w.debt+us+over, part-over*r.rate
	}
	if w.debt < -1 || w.debt == -1 && w.part == 0 { // see line.drained
		stored := r.full
		if -w.debt*r.gain <= r.full/r.rate {
			stored = min(w.left+r.gain*(-w.debt*r.rate-w.part)+w.spare, stored)
		}
		w.begin(r, 0, stored)
	}
}

// Earliest implements State. Whatever the cost, it is the next request that pays.
func (w *warmth) Earliest(int64) (wait int64) { return max(ceil(w.debt, w.part), 0) }

// Take implements State.
func (w *warmth) Take(cost int64) Receipt {
	w.taken += cost
	w.settle()
	return Receipt{Period: w.name, Number: w.taken}
}

// GiveBack implements State.
func (w *warmth) GiveBack(receipt Receipt, cost int64) (returned int64) {
	if receipt.Period != w.name || receipt.Number != w.taken || cost > w.taken {
		return 0
	}
	w.taken -= cost
	w.settle()
	return cost
}

// Status implements State.
func (w *warmth) Status() Status {
	r, free := w.by, max(ceil(w.debt, w.part), 0)
	s := Status{ResetAfter: free}
	if free == 0 {
		s.Remaining = r.limit
	}
	if w.left < r.full { // it must idle
		micro := r.gain * r.rate // units stored in a microsecond
		missing := max(r.full-w.left-w.spare, 0)
		rest := missing%micro + r.gain*w.part
		s.ResetAfter = max(w.debt+missing/micro+(rest+micro-1)/micro, free+1)
	}
	return s
}

// Save implements State.
func (w *warmth) Save() {
	w.at = w.now
	w.exists = w.Status().ResetAfter > 0
	w.saved = w.effort
}
