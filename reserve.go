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
	made    context.Context // of the operation that made it, as the hook returned it, if there is one
	state   atomic.Int32

	mu     sync.Mutex
	ready  chan struct{} // closed at the slot
	gone   chan struct{} // closed when the reservation is cancelled
	timers []*time.Timer // stopped then, so that a cancelled reservation holds no memory until its slot
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
	ctx, end := l.begin(ctx, VerbReserve, n)
	r := &Reservation{}
	within, err := applyReserveOptions(opts)
	var d Decision
	if err == nil {
		d, err = l.reserve(ctx, r, n, within)
	}
	if end != nil {
		end(outcome(&r.grant, d, err))
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// reserve makes r a reservation of n permits whose slot lies no further off than bound, or tells why not.
func (l *Limiter) reserve(ctx context.Context, r *Reservation, n int, bound time.Duration) (Decision, error) {
	if l.maxWait >= 0 {
		bound = min(bound, l.maxWait)
	}
	g := &r.grant
	if err := l.decide(ctx, n, bound.Microseconds(), g); err != nil {
		return Decision{}, err
	}
	d := g.decision()
	r.limiter, r.cost, r.slot = l, n, time.Now().Add(micros(g.Wait))
	if l.hook != nil {
		r.made = ctx
	}
	if g.Wait < 0 {
		return d, &DeniedError{Decision: d}
	}
	return d, nil
}

// Delay is how long until the slot, zero from then on. Once it has returned zero the permits count as used. The slot of
// a cancelled reservation never comes: its Delay is the longest Duration.
func (r *Reservation) Delay() time.Duration {
	delay := r.untilSlot()
	if r.state.Load() == cancelled || delay == 0 && !r.use() {
		return math.MaxInt64
	}
	return delay
}

func (r *Reservation) untilSlot() time.Duration { return max(time.Until(r.slot), 0) }

// Wait sleeps until the slot. If the context ends before it, or has a deadline before it, the permits are given back
// at once and the error tells: the context's, or a *DeniedError that matches context.DeadlineExceeded too. If the
// reservation is cancelled, before or during the sleep, Wait returns ErrCancelled.
func (r *Reservation) Wait(ctx context.Context) error {
	r.mu.Lock()
	if r.gone == nil {
		r.gone = make(chan struct{})
	}
	gone := r.gone
	r.mu.Unlock()
	_, err := r.await(ctx, gone)
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
		if r.untilSlot() == 0 && r.use() {
			close(ready) // at once, and not by and by on another goroutine
		} else {
			r.atSlot(func() { close(ready) })
		}
	}
	return r.ready
}

// atSlot has f called at the slot, unless the reservation is cancelled by then. Under mu.
func (r *Reservation) atSlot(f func()) {
	if r.state.Load() == cancelled {
		return
	}
	r.timers = append(r.timers, time.AfterFunc(r.untilSlot(), func() {
		if r.use() {
			f()
		}
	}))
}

// AfterFunc calls f on a goroutine of its own at the slot; until then it holds none. Calling stop before the slot
// cancels the reservation and reports true: the permits go back, and neither f nor anything else that waits for the
// slot is called. Later, or on a cancelled reservation, stop does nothing and reports false. It waits for the store
// for a tenth of a second at most.
func (r *Reservation) AfterFunc(f func()) (stop func() bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.atSlot(f)
	return func() bool {
		if !r.cancel() {
			return false
		}
		ctx, done := context.WithTimeout(context.Background(), giveBackWithin)
		defer done()
		_ = r.giveBack(ctx) // if it fails, the permits drain as if used: nobody is over the limit for it
		return true
	}
}

// Cancel gives the permits back: whoever asks next gets them, as far as that admits nobody beyond the limit. Slots
// already given out do not move. Only the first call does anything, and only if it comes before the slot has passed
// and before the holder was told that it has come, by Delay, Wait, Ready or AfterFunc: the permits then count as used.
// It returns a *StoreError if the store failed: the permits then drain as if they had been used. Whether anything came back
// it does not say; a hook is told, as Outcome.Returned.
//
// The context bounds the call. A Cancel is clean-up, so it also works under a context that has ended; it then waits
// for the store for a tenth of a second at most.
func (r *Reservation) Cancel(ctx context.Context) error {
	if !r.cancel() {
		return nil
	}
	return r.giveBack(ctx)
}

// cancel takes the reservation from its holder, and reports whether it was still to be had.
func (r *Reservation) cancel() bool {
	return !time.Now().After(r.slot) && r.take()
}

// take is what cancel does, late or not.
func (r *Reservation) take() bool {
	if !r.state.CompareAndSwap(held, cancelled) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, timer := range r.timers {
		timer.Stop()
	}
	r.timers = nil
	if r.gone != nil {
		close(r.gone)
	}
	return true
}

// giveBackWithin is how long giving back may hold a caller whose context has ended, or who gave none.
const giveBackWithin = 100 * time.Millisecond

// giveBack returns the permits. It is called once, by whoever took the reservation from its holder: a second call
// would sell a slot twice that somebody else may have taken since.
func (r *Reservation) giveBack(ctx context.Context) error {
	ctx, end := r.begin(ctx, VerbCancel, 0)
	if ctx.Err() != nil {
		var done context.CancelFunc
		ctx, done = context.WithTimeout(context.WithoutCancel(ctx), giveBackWithin)
		defer done()
	}
	request := driver.Request{Cost: -int64(r.cost), Receipt: r.grant.Receipt}
	var back grant
	err := r.grant.plan.giveBack(func(p *plan) (err error) {
		back, err = r.grant.store.decide(ctx, p, r.grant.key, request, r.grant.life)
		return err
	})
	if end != nil {
		end(Outcome{Returned: int(back.Wait), Err: err})
	}
	return err
}
