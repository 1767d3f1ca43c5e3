package headgate

import (
	"context"
	"errors"
	"math"
	"time"
)

// Wait sleeps until one permit may be used; see WaitN.
func (l *Limiter) Wait(ctx context.Context) error { return l.WaitN(ctx, 1) }

// WaitN takes a slot for n permits and sleeps until it: one call to the store and one sleep, however many wait. It
// returns nil when the permits may be used. Use AllowN to learn whether they could be used now, and ReserveN to do
// something else until the slot.
//
// If the slot lies beyond the context's deadline or WithMaxWait, WaitN returns at once with a *DeniedError, which
// matches ErrDenied and, for the deadline, context.DeadlineExceeded, and charges nothing. If the context ends during
// the sleep, the permits are given back and the context's error is returned; giving back holds the caller for a tenth
// of a second at most. Otherwise errors are those of AllowN.
func (l *Limiter) WaitN(ctx context.Context, n int) error {
	ctx, end := l.begin(ctx, VerbWait, n)
	var r Reservation
	d, slept, err := l.wait(ctx, &r, n)
	if end != nil {
		o := outcome(&r.grant, d, err)
		o.Slept = slept
		end(o)
	}
	return err
}

// wait is waitOnce, or as often as it takes until Redis answers.
func (l *Limiter) wait(ctx context.Context, r *Reservation, n int) (d Decision, slept time.Duration, err error) {
	f, ok := l.store.(*fallback)
	if !ok || f.mode != keepWaiting {
		return l.waitOnce(ctx, r, n, l.maxWait)
	}
	err = f.patiently(ctx, l.maxWait, func(ctx context.Context, most time.Duration) (err error) {
		d, slept, err = l.waitOnce(ctx, r, n, most)
		return err
	})
	return d, slept, err
}

// waitOnce waits for no slot further off than most, if that is not negative.
func (l *Limiter) waitOnce(ctx context.Context, r *Reservation, n int, most time.Duration) (d Decision, slept time.Duration, err error) {
	bound := time.Duration(math.MaxInt64)
	deadline, limited := ctx.Deadline()
	if limited {
		if bound = time.Until(deadline); bound <= 0 && ctx.Err() == nil {
			return Decision{}, 0, context.DeadlineExceeded // the context is about to end
		}
	}
	own := most >= 0 && most <= bound
	if own {
		bound = most
	}
	d, err = l.reserve(ctx, r, n, max(bound, 0))
	if err == nil {
		slept, err = r.await(ctx, nil)
		return d, slept, err
	}
	if refusal, ok := errors.AsType[*DeniedError](err); ok {
		refusal.deadline = limited && !own && bound < micros(r.grant.plan.rule.Horizon(int64(n)))
	}
	return d, 0, err
}

// await waits for the slot, or gives the permits back and tells why. It ends when gone is closed, too.
func (r *Reservation) await(ctx context.Context, gone <-chan struct{}) (slept time.Duration, err error) {
	if r.state.Load() == cancelled {
		return 0, ErrCancelled
	}
	delay := r.untilSlot()
	if deadline, ok := ctx.Deadline(); ok && r.slot.After(deadline) && ctx.Err() == nil {
		// Within the bound when it was decided; the reply took the rest of the time.
		d := r.grant.decision()
		d.Allowed, d.RetryAfter = false, r.slot.Sub(deadline)
		return 0, r.abandon(ctx, &DeniedError{Decision: d, deadline: true})
	}
	if delay > 0 {
		began := time.Now()
		err = r.sleep(ctx, delay, gone)
		slept = time.Since(began)
	}
	switch {
	case errors.Is(err, ErrCancelled):
		return slept, err
	case err != nil:
		return slept, r.abandon(ctx, err)
	case !r.use():
		return slept, ErrCancelled
	}
	return slept, nil
}

// sleep lasts for the delay, unless the context ends or gone is closed before.
func (r *Reservation) sleep(ctx context.Context, delay time.Duration, gone <-chan struct{}) (err error) {
	ctx, end := r.begin(ctx, VerbSleep, delay)
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-gone:
		err = ErrCancelled
	case <-ctx.Done():
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) || r.untilSlot() > 0 {
			err = ctx.Err()
		} // else the slot was at the deadline, and so in time, whichever timer fired first
	}
	if end != nil {
		end(Outcome{Err: err})
	}
	return err
}

// abandon gives back the permits of a wait that came to nothing, and returns why.
func (r *Reservation) abandon(ctx context.Context, why error) error {
	if !r.take() {
		if r.state.Load() == cancelled {
			return ErrCancelled
		}
		return why // used: somebody else was told that the slot had come
	}
	// The permits drain as if used if this fails: nobody is over the limit for it.
	_ = r.giveBack(ctx)
	return why
}
