package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// openStore returns where the limit is kept: in the Redis at the address, or without one in this process, which then
// has the limit to itself. Nothing else in the program depends on which of them it is.
func openStore(addr string) (store headgate.Store, closeStore func()) {
	if addr == "" {
		return headgate.Memory(), func() {}
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	return headgate.Redis(rdb), func() { _ = rdb.Close() }
}

// newLimiter makes the limiter that all workers share. Every copy of the program that gives the same key shares it too.
func newLimiter(store headgate.Store, o options, calls *ledger) (*headgate.Limiter, error) {
	return headgate.New(store, "example:batch",
		algos.TokenBucket{Rate: o.rate, Per: time.Second, Burst: o.burst},
		headgate.WithHook(calls.hook))
}

// pollEvery is how long a worker that polls sleeps after a refusal. Less makes more calls, more wastes permits.
const pollEvery = 50 * time.Millisecond

// poll does what limiter.Wait does, the way it is done where a limiter only says yes or no. Each refusal is another
// call to the store, and which worker gets the next permit is luck: nobody holds a place in a queue.
func poll(limiter *headgate.Limiter) func(context.Context) error {
	return func(ctx context.Context) error {
		for {
			d, err := limiter.Allow(ctx)
			if err != nil || d.Allowed {
				return err
			}
			select {
			case <-time.After(pollEvery):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// A ledger counts what the limiter asks of its store. It listens in on the limiter's hook, as metrics would.
type ledger struct {
	decisions atomic.Int64 // answers of the store to a request for a permit, whatever they were
	granted   atomic.Int64 // permits charged by them
	returned  atomic.Int64 // permits given back, each by a call of its own
}

// hook is a headgate.Hook. An Allow is one decision and a Wait is one too, however long it sleeps.
func (l *ledger) hook(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
	switch op.Verb {
	case headgate.VerbAllow, headgate.VerbWait:
		return ctx, func(o headgate.Outcome) {
			if o.Decision.Limit == 0 {
				return // the store was not asked, or did not answer
			}
			l.decisions.Add(1)
			if o.Decision.Allowed {
				l.granted.Add(int64(op.Cost))
			}
		}
	case headgate.VerbCancel:
		return ctx, func(o headgate.Outcome) {
			if o.Err == nil {
				l.returned.Add(int64(op.Cost))
			}
		}
	default:
		return ctx, nil
	}
}
