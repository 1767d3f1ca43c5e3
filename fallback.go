package headgate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// A Fallback says what a limiter does when Redis is out: FailClosed, FailOpen, KeepWaiting or Local. See WithFallback.
type Fallback struct {
	mode  mode
	share float64
}

type mode int

const (
	failClosed mode = iota
	failOpen
	keepWaiting
	local
)

// FailClosed returns a *StoreError, which is never a denial. It is what a limiter without WithFallback does, too; but that
// one asks Redis every time, and waits for it as long as the context and the client allow.
func FailClosed() Fallback { return Fallback{mode: failClosed} }

// FailOpen admits every request, at once and without limit. The Decision's Source is SourceOpen; its Limit and Remaining
// are the limiter's. What it admits is charged nowhere.
func FailOpen() Fallback { return Fallback{mode: failOpen} }

// KeepWaiting has Wait and WaitN ask again until Redis answers, the context ends or WithMaxWait has passed; the error is
// then a *StoreError, and matches the context's. It asks again only after failures that prove that nothing was charged: if
// a reply was lost the error says Unknown and is returned at once, for a second charge is not the limiter's to make. The
// other verbs fail as with FailClosed. Callers who wait like that have no place in line: theirs is given out when Redis is
// back. WithMaxWait cuts no call short that may have charged: while Redis hangs, the client's timeouts count.
func KeepWaiting() Fallback { return Fallback{mode: keepWaiting} }

// Local decides in process, by the same algorithm with a share of what it grants: algos.Share says how each is divided. For
// a fleet of N processes that see about the same traffic take 1.0/N, for which the fleet together grants no more than the
// limit in the long run. Each of them grants at least one permit at once, though (and a WarmUp one request of any size), so
// where the burst is smaller than the fleet the fleet's is N; and in each window of a calendar. Local(1) gives each process the whole limit, as go-zero's TokenLimiter does, so that a fleet of N grants up to N
// times the limit; it is right where each key's requests all go to one process.
//
// The share is at least 1/10,000 and at most 1, and taken as a fraction with a denominator of at most 10,000: 1.0/3 is a
// third exactly.
//
// The Decision's Source is SourceLocal, its Limit the share of it. Reservations made in process are cancelled there. A
// process begins an outage with a full share, whatever it was granted before, and what it grants is not charged in Redis
// afterwards: at each change of sides, out and back, up to one burst (or window) of the side that takes over comes on top
// of what the other has granted and of reservations that lie ahead. What was counted in process stays until it would have
// expired, so that changing sides often grants no second burst; but each side refills by its own rate all the while, so a
// Redis that fails and answers by turns grants its rate and the share of it together.
//
// At most 50,000 keys of a limiter are counted at a time. A request for another one, or for more permits than the share
// ever grants at once, gets the *StoreError of FailClosed: no key that is counted makes room for one that is not.
//
// A shared limiter goes by the parameters that the process saw last.
func Local(share float64) Fallback { return Fallback{mode: local, share: share} }

// WithFallback says what the limiter does when Redis is out, instead of failing each time.
//
// A decision then waits for Redis for so long as WithStoreTimeout says. When calls fail several times in a row and for a
// tenth of a second nothing is answered, decisions no longer ask Redis at all; when they were only slow, after the longest
// time that a limiter of the Store waits. A goroutine then looks for its return, by a SET of a key of its own that expires
// at once, in the hash slot that failed, at most 1.5 s apart. One looks for all limiters of a Store. When it finds Redis, or
// anybody's call is answered, decisions go back. WithLogger logs both changes. A probe that hangs ends by the client's
// timeouts, after Close too; while three do, there is no further one.
//
// Redis is out when connections are refused or break, when calls or the client's pool time out, and when it replies
// LOADING, BUSY, READONLY, CLUSTERDOWN, MASTERDOWN, NOREPLICAS, TRYAGAIN, OOM, MISCONF, or that it has too many clients.
// Never taken for that are a context that ends, a denial, bad parameters, and what matches ErrMisconfigured.
//
// What was granted after its caller had turned to the fallback is given back in Redis when its reply comes; if that is
// lost it drains as if used. Reset, and the methods of a Shared limiter that set or read its parameters, have no fallback.
// A shared limiter whose parameters the process has not yet seen has nothing to decide by: unless it fails open, it fails.
//
// Close the limiter when it is used no more, so that nobody looks for Redis on its behalf; otherwise that ends a minute
// after the last decision. Memory never fails, and takes no notice of the option.
func WithFallback(fallback Fallback) Option {
	return func(l *Limiter) error {
		if fallback.mode == local && (!(fallback.share >= 1/float64(maxDenominator)) || fallback.share > 1) { // NaN too
			return invalidf("Local: a share of %v; it must be at least 1/%d and at most 1 (1.0/3 is a third, 1/3 is 0)", fallback.share, maxDenominator)
		}
		l.fallback, l.fallsBack = fallback, true
		return nil
	}
}

// WithStoreTimeout is how long a decision waits for Redis, in all its calls, before it counts as failed; for FailOpen and Local, half of the
// time until the context's deadline too, if that is less. d is above 0. With WithFallback the default is a quarter of a
// second; for KeepWaiting there is none, since a call that is cut short may have charged. On its own it makes the limiter
// one with FailClosed.
func WithStoreTimeout(d time.Duration) Option {
	return func(l *Limiter) error {
		if d <= 0 {
			return invalidf("WithStoreTimeout: %v is not positive", d)
		}
		l.storeTimeout, l.fallsBack = d, true
		return nil
	}
}

// defaultStoreTimeout is many times what Redis takes when it is well.
const defaultStoreTimeout = 250 * time.Millisecond

// A fallback is a store for one limiter, and those of its For, which decides otherwise when that within is out.
type fallback struct {
	Store
	observer
	circuit *circuit
	mode    mode
	timeout time.Duration // 0 for none
	local   *localStore   // for Local
	part    int           // of the algorithm
	of      int
	scaled  atomic.Pointer[scaled]
	closed  atomic.Bool
}

// fallBack puts a fallback around the limiter's store, if an option asked for it and the store can fail. base is the store
// innermost.
func (l *Limiter) fallBack(base Store) error {
	r, ok := base.(*redisStore)
	if !l.fallsBack || !ok {
		return nil
	}
	f := &fallback{
		Store: l.store, observer: l.observer, circuit: &r.circuit, mode: l.fallback.mode, timeout: l.storeTimeout,
	}
	if f.timeout == 0 && f.mode != keepWaiting {
		f.timeout = defaultStoreTimeout
	}
	if f.mode == local {
		f.local = newLocalStore()
		f.part, f.of = fraction(l.fallback.share)
		if l.plan != nil {
			if _, err := f.share(l.plan); err != nil {
				return fmt.Errorf("Local: %w", err)
			}
		}
	}
	f.circuit.join(f.timeout)
	l.store = f
	return nil
}

// errSlow is of calls that took longer than the limiter waits; it is a timeout for those who ask.
var errSlow = fmt.Errorf("it took longer than the limiter waits for it: %w", os.ErrDeadlineExceeded)

// decide implements Store. What Redis granted is given back to Redis, by the grant's own store.
func (f *fallback) decide(ctx context.Context, p *plan, key string, request driver.Request, life uint64) (grant, error) {
	if request.Cost < 0 || f.closed.Load() {
		return f.Store.decide(ctx, p, key, request, life)
	}
	if o := f.circuit.now(); o != nil {
		return f.without(ctx, p, key, request, &StoreError{Op: "decide", Err: o.err})
	}
	within, done := f.within(ctx)
	defer done()
	g, err := f.Store.decide(within, p, key, request, life)
	if failure := f.failure(within, err); failure != nil && ctx.Err() == nil {
		f.noteSlow(key, failure)
		return f.without(ctx, p, key, request, failure)
	}
	return g, err
}

// terms implements Store. Only reading them, which a decision may have to, is cut short.
func (f *fallback) terms(ctx context.Context, key string, c change) (text string, changed bool, err error) {
	if c.verb != VerbRate || f.closed.Load() {
		return f.Store.terms(ctx, key, c)
	}
	if o := f.circuit.now(); o != nil {
		return "", false, &StoreError{Op: "terms", Err: o.err}
	}
	within, done := f.within(ctx)
	defer done()
	text, changed, err = f.Store.terms(within, key, c)
	if failure := f.failure(within, err); failure != nil && ctx.Err() == nil {
		f.noteSlow(key, failure)
		return "", false, failure
	}
	return text, changed, err
}

// within is the time that a call may take.
func (f *fallback) within(ctx context.Context) (context.Context, context.CancelFunc) {
	until, ok := ctx.Value(budget{f}).(time.Time)
	if !ok {
		until, ok = f.until(ctx)
	}
	if !ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, time.Until(until))
}

// until is when a decision that begins now is made without Redis, if ever.
func (f *fallback) until(ctx context.Context) (until time.Time, ok bool) {
	if f.timeout == 0 {
		return time.Time{}, false
	}
	limit := f.timeout
	if deadline, ok := ctx.Deadline(); ok && (f.mode == failOpen || f.mode == local) {
		limit = min(limit, time.Until(deadline)/2)
	}
	return time.Now().Add(limit), true
}

// A budget names, in a context, until when the calls of one decision may take together.
type budget struct{ *fallback }

// budgeted is the context for a decision that may take several calls.
func (l *Limiter) budgeted(ctx context.Context) context.Context {
	if f, ok := l.store.(*fallback); ok {
		if until, ok := f.until(ctx); ok {
			return context.WithValue(ctx, budget{f}, until)
		}
	}
	return ctx
}

// failure is an error that means that Redis is out, if the caller's own context has not ended; nil for all others.
func (*fallback) failure(within context.Context, err error) *StoreError {
	failure, ok := errors.AsType[*StoreError](err)
	switch {
	case !ok:
		return nil
	case isOutage(failure.Err):
		return failure
	case errors.Is(failure.Err, context.DeadlineExceeded) && within.Err() != nil:
		return &StoreError{Op: failure.Op, Unknown: failure.Unknown, Err: errSlow}
	}
	return nil
}

// noteSlow tells the circuit of a call that nobody waited for any longer; of others it has heard.
func (f *fallback) noteSlow(key string, failure *StoreError) {
	if errors.Is(failure.Err, errSlow) {
		f.circuit.failed(f.observer, key, errSlow)
	}
}

// without decides without Redis, or returns why Redis did not.
func (f *fallback) without(ctx context.Context, p *plan, key string, request driver.Request, cause *StoreError) (grant, error) {
	switch f.mode {
	case failOpen:
		return f.open(p, key, request), nil
	case local:
		g, err := f.locally(ctx, p, key, request)
		if err != nil {
			return grant{}, &StoreError{Op: cause.Op, Unknown: cause.Unknown, Err: fmt.Errorf("%w; nor is it decided in process: %w", cause.Err, err)}
		}
		return g, nil
	}
	return grant{}, cause
}

// open admits a request.
func (f *fallback) open(p *plan, key string, request driver.Request) grant {
	reply := driver.Reply{Remaining: int64(p.limit)}
	if request.Bound == driver.Ask {
		reply.Wait = driver.Ask
	}
	return grant{Reply: reply, store: openStore{f.Store}, plan: p, key: key}
}

// An openStore takes back what was admitted without being charged.
type openStore struct{ Store }

func (openStore) source() Source { return SourceOpen }

func (openStore) decide(_ context.Context, _ *plan, _ string, request driver.Request, _ uint64) (grant, error) {
	return grant{Reply: driver.Reply{Wait: -request.Cost}}, nil
}

// degraded tells whether it was an outage that kept the terms from being read, in which the limiter decides by those that
// the process saw last.
func (l *Limiter) degraded(reason error) bool {
	f, ok := l.store.(*fallback)
	failure, failed := errors.AsType[*StoreError](reason)
	return ok && failed && (f.mode == failOpen || f.mode == local) && isOutage(failure.Err)
}

// unseen decides a request to a shared limiter whose terms could not be read, for the reason that is given.
func (l *Limiter) unseen(n int, bound int64, reason error) (grant, error) {
	f, _ := l.store.(*fallback)
	if !l.degraded(reason) || f.mode != failOpen {
		return grant{}, reason
	}
	rule, err := algos.TokenBucket{Rate: 1, Per: time.Microsecond, Burst: 1}.Rule()
	if err != nil {
		return grant{}, err
	}
	p := &plan{observer: l.observer, rule: unknownRule{rule}, limit: math.MaxInt, most: math.MaxInt}
	return f.open(p, l.key, driver.Request{Cost: int64(n), Bound: bound}), nil
}

// An unknownRule is that of a limiter whose terms nobody here has seen.
type unknownRule struct{ algos.Rule }

func (unknownRule) Name() string                           { return "" }
func (unknownRule) Rate() (permits int, per time.Duration) { return 0, time.Second }

// lastAttempt names, in a context, when a Wait no longer asks a Redis that cannot serve.
type lastAttempt struct{}

// patiently calls wait until the store does not fail, or may have charged, or the time is up, which wait is told. A
// negative time has no end.
func (f *fallback) patiently(ctx context.Context, most time.Duration, wait func(ctx context.Context, most time.Duration) error) error {
	began := time.Now()
	if most >= 0 {
		ctx = context.WithValue(ctx, lastAttempt{}, began.Add(most))
	}
	for pauses := newPauses(); ; {
		left := most
		if most >= 0 {
			left = max(most-time.Since(began), 0)
		}
		err := wait(ctx, left)
		failure, ok := errors.AsType[*StoreError](err)
		if !ok || failure.Unknown || !isOutage(failure.Err) || f.closed.Load() {
			return err
		}
		next := pauses.NextBackOff()
		if most >= 0 {
			if left == 0 {
				return err
			}
			next = min(next, max(most-time.Since(began), 0)) // the attempt took its time, too
		}
		var over chan struct{}
		if o := f.circuit.now(); o != nil {
			over = o.over
		}
		select {
		case <-over:
		case <-time.After(next):
		case <-ctx.Done():
			return &StoreError{Op: failure.Op, Err: fmt.Errorf("%w while waiting for Redis: %w", ctx.Err(), failure.Err)}
		}
	}
}

// reset implements Store: for both sides.
func (f *fallback) reset(ctx context.Context, key string) error {
	err := f.Store.reset(ctx, key)
	if err == nil && f.local != nil {
		err = f.local.reset(ctx, key)
	}
	return err
}

// close implements Store. Afterwards the limiter is one without a fallback.
func (f *fallback) close(ctx context.Context) error {
	var err error
	if !f.closed.Swap(true) {
		err = f.circuit.leave(ctx)
	}
	return errors.Join(err, f.Store.close(ctx))
}
