package headgate

import (
	"context"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// A Limiter gives out the permits of one limit: an algorithm with its parameters, bound to one key of a store. All
// limiters with the same store, prefix, key and algorithm share that limit, in whatever process they are.
//
// A Limiter is immutable, safe for concurrent use, and needs no closing unless an option says so: see Close.
type Limiter struct {
	store  Store
	seat   *seat   // of a store in memory, for one that is not shared
	plan   *plan   // nil for one whose terms are in the store:
	shared *shared // what it knows of them
	path   string  // the key and its parts, escaped
	parts  string  // of a shared limiter: its parts alone, escaped
	key    string  // where the state is stored, for one that is not shared
	err    error   // what was wrong with the parts

	observer
	prefix  string
	maxWait time.Duration // negative: no bound
	lease   int           // permits taken at a time; 0: as many as are asked for

	fallsBack    bool // an option asked for it:
	fallback     Fallback
	storeTimeout time.Duration // 0: by default
}

// New makes a limiter. It makes no call to the store.
//
// The key names the limit: "openai:rpm", say. The error matches ErrInvalid if the key is empty, an option is out of
// range, or the algorithm's parameters cannot be held exactly.
func New(store Store, key string, algorithm algos.Algorithm, opts ...Option) (*Limiter, error) {
	l, err := newLimiter(store, key)
	if err != nil {
		return nil, err
	}
	if l.plan, err = newPlan(algorithm); err != nil {
		return nil, err
	}
	l.name = l.plan.rule.Name()
	if err := l.apply(opts); err != nil {
		return nil, err
	}
	l.plan.observer = l.observer
	if err := l.lend(); err != nil {
		return nil, err
	}
	l.key = storedKey(l.prefix, l.path, l.plan.rule.Suffix())
	if err := l.fallBack(store); err != nil {
		return nil, err
	}
	return l, nil
}

func newLimiter(store Store, key string) (*Limiter, error) {
	if store == nil {
		return nil, invalidf("the store is nil")
	}
	if key == "" {
		return nil, invalidf("the key is empty")
	}
	return &Limiter{store: store, path: escape(key), prefix: "hg", maxWait: -1, seat: new(seat)}, nil
}

func (l *Limiter) apply(opts []Option) error {
	for _, opt := range opts {
		if opt == nil {
			return invalidf("an option is nil")
		}
		if err := opt(l); err != nil {
			return err
		}
	}
	return nil
}

// lend has the limiter take leases, if it is to.
func (l *Limiter) lend() error {
	rule, steady := l.plan.rule.(algos.Lender)
	switch {
	case l.lease == 0:
		return nil
	case !steady:
		return invalidf("WithLease: %s does not refill steadily, so its permits cannot be held; use TokenBucket or Funnel", l.plan.rule.Name())
	case l.lease > rule.Limit():
		return invalidf("WithLease: %d permits are more than the burst of %d", l.lease, rule.Limit())
	}
	if redis, ok := l.store.(*redisStore); ok {
		l.store = newLender(redis, l.plan, rule, int64(l.lease))
	}
	return nil
}

// For returns a limiter with the same algorithm and options and a key of its own, made of this limiter's key and the
// parts: limiter.For("sms", phone). Different lists of parts never make the same key. It costs a few small allocations
// and no call, so its result may be used once and dropped.
//
// Without parts, or with an empty one, every call on the result returns an error that matches ErrInvalid: an empty
// user name must not become a limit that all nameless users share.
func (l *Limiter) For(parts ...string) *Limiter {
	both := struct { // in one allocation, side by side
		seat
		Limiter
	}{Limiter: *l}
	sub := &both.Limiter
	sub.seat = &both.seat
	if len(parts) == 0 {
		sub.err = invalidf("For: no parts")
	}
	if sub.store == nil {
		return sub // every call says that it was not made by New
	}
	for i, part := range parts {
		if part == "" {
			sub.err = invalidf("For: part %d is empty", i)
		}
		sub.path += "/" + escape(part)
		if sub.shared != nil {
			sub.parts += "/" + escape(part)
		}
	}
	if sub.shared == nil {
		sub.key = storedKey(sub.prefix, sub.path, sub.plan.rule.Suffix())
	}
	return sub
}

// Allow asks for one permit now; see AllowN.
func (l *Limiter) Allow(ctx context.Context) (Decision, error) { return l.AllowN(ctx, 1) }

// AllowN asks for n permits now, and does not wait. If the decision is Allowed they are charged and may be used; if
// not, nothing was charged, and that is no error. Use WaitN to sleep until the slot instead, and ReserveN to learn
// when it is.
//
// Errors: ErrInvalid if n < 1, ErrNeverAllowed if n is more than the limiter ever grants, the context's error if it
// has ended before the call, and *StoreError if the store failed or the context ended during the call.
func (l *Limiter) AllowN(ctx context.Context, n int) (d Decision, err error) {
	if l.hook == nil && ctx.Err() == nil { // by the shortest way, which skips nothing that would have done anything
		switch s := l.store.(type) {
		case *memoryStore:
			if e := l.seat.Load(); e != nil && e.allow(s, l.plan, n, &d) {
				return d, nil
			}
		case *lender:
			if l.err == nil && s.allow(l.key, n, &d) {
				return d, nil
			}
		}
	}
	ctx, end := l.begin(ctx, VerbAllow, n)
	var g grant
	if err = l.decide(ctx, n, 0, &g); err == nil {
		g.tell(&d)
	}
	if end != nil {
		end(outcome(&g, d, err))
	}
	return d, err
}

// Peek tells what Allow would answer now, and consumes nothing. Errors as for AllowN.
func (l *Limiter) Peek(ctx context.Context) (Decision, error) {
	ctx, end := l.begin(ctx, VerbPeek, 1)
	var g grant
	err := l.decide(ctx, 1, driver.Ask, &g)
	var d Decision
	if err == nil {
		g.Wait++ // it was refused, by a bound one microsecond short of now
		d = g.decision()
	}
	if end != nil {
		end(outcome(&g, d, err))
	}
	return d, err
}

// Reset makes the limiter as new. Slots already given out are not called back: their holders will use them, beside
// all that the new limiter grants.
func (l *Limiter) Reset(ctx context.Context) error {
	ctx, end := l.begin(ctx, VerbReset, 0)
	err := l.usable(ctx)
	if err == nil {
		err = l.reset(ctx)
	}
	if end != nil {
		end(Outcome{Err: err})
	}
	return err
}

func (l *Limiter) reset(ctx context.Context) error {
	if l.shared == nil {
		return l.store.reset(ctx, l.key)
	}
	p, err := l.refresh(ctx) // a state of other terms is nobody's
	if err != nil {
		return err
	}
	return l.store.reset(ctx, l.stateKey(p))
}

// Close gives back what the limiter holds, and ends what the options of New have it do in the background, for those that For
// made of it too; it may be called more than once, and on any of them. The limiter can still be used, as one without such
// options. One whose options say nothing of Close need not be closed. The context bounds how long Close waits; the error is
// its own or a *StoreError, and what could not be given back drains as if it had been used.
func (l *Limiter) Close(ctx context.Context) error {
	if l.store == nil {
		return invalidf("the limiter was not made by New")
	}
	return l.store.close(ctx)
}

// usable tells what keeps a call from being made at all.
func (l *Limiter) usable(ctx context.Context) error {
	if l.store == nil {
		return invalidf("the limiter was not made by New")
	}
	if l.err != nil {
		return l.err
	}
	return ctx.Err()
}

// decide is the one path to the store: it asks for n permits no further off than bound, in microseconds. It answers into
// g, which is not worth copying on its way.
func (l *Limiter) decide(ctx context.Context, n int, bound int64, g *grant) error {
	if err := l.usable(ctx); err != nil {
		return err
	}
	if n < 1 {
		return invalidf("%d permits asked for; at least 1 is needed", n)
	}
	if l.shared != nil {
		return l.decideShared(ctx, n, bound, g)
	}
	return l.decideBy(ctx, l.plan, l.key, n, bound, g)
}

// decideBy decides by a plan.
func (l *Limiter) decideBy(ctx context.Context, p *plan, key string, n int, bound int64, g *grant) (err error) {
	if n > p.most {
		return neverAllowed(n, p.most)
	}
	if bound > 0 {
		bound = min(bound, p.rule.Horizon(int64(n)))
	}
	request := driver.Request{Cost: int64(n), Bound: bound}
	switch s := l.store.(type) { // those that answer without a call answer where it is wanted
	case *memoryStore:
		if p.shared == nil {
			g.plan, g.key = p, key
			s.decideAt(l.seat, request, g)
			return nil
		}
	case *lender:
		return s.decideInto(ctx, p, key, request, 0, g)
	case *redisStore:
		return s.decideInto(ctx, p, key, request, 0, g)
	}
	*g, err = l.store.decide(ctx, p, key, request, 0)
	return err
}

// decision tells a user what a grant says.
func (g *grant) decision() (d Decision) {
	g.tell(&d)
	return d
}

// tell writes the decision where it is wanted, which is quicker.
func (g *grant) tell(d *Decision) {
	d.Allowed = g.Wait >= 0
	d.Limit = g.plan.limit
	d.Remaining = int(g.Remaining)
	d.RetryAfter = micros(max(-g.Wait, 0))
	d.ResetAfter = micros(g.Reset)
	d.Source = g.store.source()
}
