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
	ctx, end := l.begin(ctx, VerbWait, n, 0)
	var r Reservation
	d, err := l.wait(ctx, &r, n)
	end(Outcome{Decision: d, Delay: micros(max(r.grant.Wait, 0)), Err: err})
	return err
}

func (l *Limiter) wait(ctx context.Context, r *Reservation, n int) (Decision, error) {
	bound := time.Duration(math.MaxInt64)
	deadline, limited := ctx.Deadline()
	if limited {
		if bound = time.Until(deadline); bound <= 0 && ctx.Err() == nil {
			return Decision{}, context.DeadlineExceeded // the context is about to end
		}
	}
	d, err := l.reserve(ctx, r, n, max(bound, 0))
	if err == nil {
		return d, r.sleep(ctx, nil)
	}
	if refusal, ok := errors.AsType[*DeniedError](err); ok {
		refusal.deadline = limited && (l.maxWait < 0 || bound < l.maxWait) && bound < micros(r.grant.plan.rule.Horizon(int64(n)))
	}
	return d, err
}

// sleep waits for the slot, or gives the permits back and tells why. It ends when gone is closed, too.
func (r *Reservation) sleep(ctx context.Context, gone <-chan struct{}) error {
	if r.state.Load() == cancelled {
		return ErrCancelled
	}
	delay := r.untilSlot()
	if deadline, ok := ctx.Deadline(); ok && r.slot.After(deadline) && ctx.Err() == nil {
		// Within the bound when it was decided; the reply took the rest of the time.
		d := r.limiter.decision(r.grant)
		d.Allowed, d.RetryAfter = false, r.slot.Sub(deadline)
		return r.abandon(ctx, &DeniedError{Decision: d, deadline: true})
	}
	if delay > 0 {
		ctx, end := r.limiter.begin(ctx, VerbSleep, r.cost, delay)
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && r.untilSlot() == 0 {
				break // the slot was at the deadline, and so in time, whichever timer fired first
			}
			end(Outcome{Err: ctx.Err()})
			return r.abandon(ctx, ctx.Err())
		case <-gone:
			end(Outcome{Err: ErrCancelled})
			return ErrCancelled
		}
		end(Outcome{})
	}
	if !r.use() {
		return ErrCancelled
	}
	return nil
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
