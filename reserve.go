package headgate

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate/internal/driver"
)

// A Reservation is permits already charged, and the slot at which they may be used. Use them at or after the slot,
// or Cancel before it. All methods are safe for concurrent use.
type Reservation struct {
	limiter *Limiter
	cost    int
	grant   grant
	slot    time.Time
	state   atomic.Int32

	mu     sync.Mutex
	ready  chan struct{}
	timers []*time.Timer // stopped by Cancel, so that a cancelled reservation holds no memory until its slot
}

// The states of a reservation. From held it goes to one of the others, once.
const (
	held      = iota
	used      // its slot was reached and somebody was told so
	cancelled // it was given back
)

// Reserve takes a slot for one permit; see ReserveN.
func (l *Limiter) Reserve(ctx context.Context, opts ...ReserveOption) (*Reservation, error) {
	return l.ReserveN(ctx, 1, opts...)
}

// ReserveN charges n permits at the first slot at which they fit, and returns at once. The slot may lie ahead: see
// Delay, Wait, Ready and AfterFunc of the Reservation. Slots go out in the order in which requests reach the store,
// and do not move. Use AllowN if only now will do, and WaitN to simply sleep until the slot.
//
// The context bounds the call to the store, not the slot; Within and WithMaxWait bound the slot.
//
// Errors: *DeniedError, which matches ErrDenied, if the slot is beyond the bound; otherwise as for AllowN. Nothing
// is charged where an error is returned, unless it is a *StoreError that says Unknown.
func (l *Limiter) ReserveN(ctx context.Context, n int, opts ...ReserveOption) (*Reservation, error) {
	o := reserveOptions{within: math.MaxInt64}
	for _, opt := range opts {
		opt(&o)
	}
	ctx, end := l.begin(ctx, VerbReserve, n, 0)
	r := &Reservation{}
	d, err := l.reserve(ctx, r, n, o.within)
	end(Outcome{Decision: d, Delay: micros(max(r.grant.Wait, 0)), Err: err})
	if err != nil {
		return nil, err
	}
	return r, nil
}

// reserve makes r a reservation of n permits whose slot lies no further off than bound, or tells why not.
func (l *Limiter) reserve(ctx context.Context, r *Reservation, n int, bound time.Duration) (Decision, error) {
	if bound < 0 {
		return l.decision(grant{}), invalidf("Within: %v is negative", bound)
	}
	if l.maxWait >= 0 {
		bound = min(bound, l.maxWait)
	}
	g, err := l.decide(ctx, n, bound.Microseconds())
	d := l.decision(g)
	if err != nil {
		return d, err
	}
	if g.Wait < 0 {
		return d, &DeniedError{Decision: d}
	}
	r.limiter, r.cost, r.grant, r.slot = l, n, g, time.Now().Add(micros(g.Wait))
	return d, nil
}

// Delay is how long until the slot, zero from then on.
func (r *Reservation) Delay() time.Duration { return max(time.Until(r.slot), 0) }

// Wait sleeps until the slot. If the context ends before it, or has a deadline before it, the permits are given back
// at once and the error tells: the context's, or a *DeniedError that matches context.DeadlineExceeded too. On a
// cancelled reservation it returns an error that matches ErrInvalid.
func (r *Reservation) Wait(ctx context.Context) error {
	ctx, end := r.limiter.begin(ctx, VerbWait, r.cost, r.Delay())
	err := r.sleep(ctx)
	end(Outcome{Decision: r.limiter.decision(r.grant), Delay: micros(r.grant.Wait), Err: err})
	return err
}

// use marks the reservation as used, and reports whether it may be.
func (r *Reservation) use() bool {
	return r.state.CompareAndSwap(held, used) || r.state.Load() == used
}

// Ready returns a channel that is closed at the slot. It holds no goroutine. The channel of a cancelled reservation
// is never closed.
func (r *Reservation) Ready() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ready == nil {
		ready := make(chan struct{})
		r.ready = ready
		if delay := r.Delay(); delay > 0 {
			r.timers = append(r.timers, time.AfterFunc(delay, func() {
				if r.use() {
					close(ready)
				}
			}))
		} else if r.use() {
			close(ready)
		}
	}
	return r.ready
}

// AfterFunc calls f on a goroutine of its own at the slot; until then it holds none. Calling stop before the slot
// gives the permits back, as Cancel does, and reports true: f will not be called. Later, or on a cancelled
// reservation, stop does nothing and reports false. stop waits for the store for a tenth of a second at most.
func (r *Reservation) AfterFunc(f func()) (stop func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timers = append(r.timers, time.AfterFunc(r.Delay(), func() {
		if r.use() {
			f()
		}
	}))
	return func() bool {
		if !r.cancel() {
			return false
		}
		_ = r.giveBack(context.Background()) // the permits drain as if used: nobody is over the limit for it
		return true
	}
}

// Cancel gives the permits back: whoever asks next gets them, as far as that admits nobody beyond the limit. Slots
// already given out do not move. Only the first call before the slot does anything; from the slot on the permits
// count as used, so it is safe to defer a Cancel. It returns a *StoreError if the store failed: the permits then
// drain as if they had been used.
//
// A Cancel is clean-up, so it also works under a context that has ended; it then waits for the store for a tenth of
// a second at most.
func (r *Reservation) Cancel(ctx context.Context) error {
	if !r.cancel() {
		return nil
	}
	return r.giveBack(ctx)
}

// cancel takes the reservation from its holder, and reports whether it was still to be had.
func (r *Reservation) cancel() bool {
	if time.Now().After(r.slot) || !r.state.CompareAndSwap(held, cancelled) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, timer := range r.timers {
		timer.Stop()
	}
	r.timers = nil
	return true
}

// giveBackWithin is how long giving back may hold a caller whose context has ended.
const giveBackWithin = 100 * time.Millisecond

// giveBack returns the permits. It is called once, by whoever took the reservation from its holder: a second call
// would sell a slot twice that somebody else may have taken since.
func (r *Reservation) giveBack(ctx context.Context) error {
	ctx, end := r.limiter.begin(ctx, VerbCancel, r.cost, 0)
	if _, limited := ctx.Deadline(); !limited || ctx.Err() != nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), giveBackWithin)
		defer cancel()
	}
	l := r.limiter
	request := driver.Request{Cost: -int64(r.cost), Receipt: r.grant.Receipt}
	_, err := l.store.decide(ctx, l.plan, l.key, request, r.grant.life)
	end(Outcome{Decision: Decision{Source: l.store.source()}, Err: err})
	return err
}
