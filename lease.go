package headgate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

const (
	// hot is how soon a key must be asked for again for a lease to be taken.
	hot = time.Second
	// leaseAgain is how long no lease is tried after one failed or came too late, and at most after one was refused.
	leaseAgain = 100 * time.Millisecond
)

// A lender is a Store for one limiter that takes permits many at a time and hands them out in process.
//
// Permits own places on the limiter's line (see package algos), and each may be used from its slot until its place begins:
// the places of the permits that are used in any stretch of time w then begin within w and a burst's span, which is all
// that the proof needs. A lease is taken only if all of it may be used at once, the place that begins first is used first,
// and what is left is forgotten as the places begin: that is at the limiter's rate. What callers wait for is taken together
// with a lease, and is theirs at once, as if they had asked Redis.
type lender struct {
	*redisStore
	plan *plan
	rule algos.Lender
	most int64     // permits in a lease
	base time.Time // instants are µs since then

	latest  atomic.Pointer[lent] // the key that was asked for last
	mu      sync.RWMutex
	keys    map[string]*lent
	closed  bool
	errands sync.WaitGroup // fetches
	fetched atomic.Int64   // leases so far
	ended   chan struct{}  // closed when everything was given back

	borrowers sync.Pool // that nobody uses
}

// lent is what one key has.
type lent struct {
	key   string
	asked atomic.Int64          // when somebody came last
	stock atomic.Pointer[stock] // what is handed out without the lock; nil while somebody has it

	mu        sync.Mutex  // taken by lock, which closes the stock, and left by unlock, which opens it
	leases    [2]lease    // the second is fetched ahead
	size      int64       // of the last one, or a quarter of one that was refused: the next one is of twice that
	notBefore int64       // until then none is fetched
	coming    *errand     // while one is fetched
	waiting   []*borrower // for it, in the order in which they came
	scarce    bool        // somebody had to wait for the last one: the next is fetched as soon as there is room for it
	gone      bool        // it is no longer in keys
	resets    int         // what was fetched before one is forgotten
}

// A lease is permits of one grant that are left: the last of it.
type lease struct {
	number  int64 // which of the lender's it is, from 1
	left    int64
	ends    int64 // when the last one's place ends at the earliest
	begins  int64 // before when no place of those that are left begins; 0 if that is to be reckoned
	receipt algos.Receipt
}

func newLender(store *redisStore, p *plan, rule algos.Lender, most int64) *lender {
	return &lender{redisStore: store, plan: p, rule: rule, most: most, base: time.Now(), keys: make(map[string]*lent), ended: make(chan struct{})}
}

func (*lender) source() Source { return SourceLease }

func (l *lender) now() int64 { return time.Since(l.base).Microseconds() }

func (l *lender) decide(ctx context.Context, p *plan, key string, request driver.Request, life uint64) (g grant, err error) {
	err = l.decideInto(ctx, p, key, request, life, &g)
	return g, err
}

// decideInto is decide, and quicker: a grant is not worth copying on its way.
func (l *lender) decideInto(ctx context.Context, p *plan, key string, request driver.Request, life uint64, g *grant) error {
	switch {
	case request.Cost < 0:
		g.Wait = l.takeBack(key, request)
		return nil
	case request.Bound == driver.Ask:
		return l.redisStore.decideInto(ctx, p, key, request, life, g)
	}
	ok, b, due := l.hand(key, request.Cost, &g.Reply)
	if due != nil {
		go l.fetch(due)
		runtime.Gosched() // a caller who never waits would keep it from its processor
	}
	if b != nil { // for as long as a call takes, and no longer than patience
		defer l.borrowers.Put(b) // nobody else knows of it any more
		if ctx.Done() == nil {
			ok = <-b.served
		} else {
			select {
			case ok = <-b.served:
			case <-ctx.Done():
				if b.leave() {
					return storeError("decide", key, fmt.Errorf("%w: %w", errUnsent, ctx.Err()))
				}
				ok = <-b.served // it came just now
			}
		}
		g.Reply = b.reply
	}
	if !ok {
		return l.redisStore.decideInto(ctx, p, key, request, life, g)
	}
	g.store, g.plan, g.key = l, p, key
	return nil
}

// hand gives out cost permits of a lease, if it has them. If it has not, and some are on their way, the request waits for
// those. The caller is to fetch some if any are due. The clock is read before the lock is taken, as by Memory.
func (l *lender) hand(key string, cost int64, reply *driver.Reply) (ok bool, b *borrower, due *lent) {
	now := l.now()
	if l.handQuickly(key, cost, now, reply) {
		return true, nil, nil
	}
	h := l.lock(key)
	if h == nil {
		return false, nil, nil
	}
	defer h.unlock()
	last := h.asked.Load()
	now = max(now, last)
	h.spoil(l.rule, now)
	first, second := &h.leases[0], &h.leases[1]
	if from := h.lease(cost); from.left >= cost {
		ok, *reply = true, h.take(from, cost, now)
	}
	again := now-last < hot.Microseconds()
	h.asked.Store(now)
	if again && h.coming == nil && now >= h.notBefore && second.left == 0 && (h.scarce || first.left <= h.size/2) {
		h.begin(l.most)
		l.errands.Add(1)
		due = h
	}
	if !ok && h.coming != nil && !h.coming.late && cost <= h.size {
		b = l.borrower(h, cost)
		h.waiting = append(h.waiting, b)
	}
	return ok, b, due
}

// lease is the one to take permits from, if it has them: the first one whose places begin.
func (h *lent) lease(cost int64) *lease {
	if h.leases[0].left < cost {
		return &h.leases[1]
	}
	return &h.leases[0]
}

// take takes permits from one of the leases.
func (h *lent) take(from *lease, cost, now int64) driver.Reply {
	from.left -= cost
	return driver.Reply{
		Remaining: max(h.leases[0].left, h.leases[1].left), Reset: max(h.leases[0].ends, h.leases[1].ends) - now,
		Receipt: algos.Receipt{Period: from.number, Number: from.left},
	}
}

// spoil forgets the permits whose places have begun.
func (h *lent) spoil(rule algos.Lender, now int64) {
	for i := range h.leases {
		lease := &h.leases[i]
		if lease.left == 0 || now < lease.begins {
			continue
		}
		lease.left = min(lease.left, rule.Permits(max(lease.ends-now, 0)))
		lease.begins = lease.ends - rule.Span(lease.left) - 1 // rounded down, like the span
	}
	if h.leases[0].left == 0 {
		h.leases[0], h.leases[1] = h.leases[1], lease{}
	}
}

// takeBack puts permits that were handed out last back in their lease, and tells how many; others drain as if they had been
// used.
func (l *lender) takeBack(key string, request driver.Request) int64 {
	h := l.lock(key)
	if h == nil {
		return 0
	}
	defer h.unlock()
	for i := range h.leases {
		if lease := &h.leases[i]; lease.number == request.Receipt.Period && lease.left == request.Receipt.Number {
			lease.left -= request.Cost
			lease.begins = 0 // earlier, with these
			return -request.Cost
		}
	}
	return 0
}

// lock finds what a key has, and locks it. It is nil once the lender is closed.
func (l *lender) lock(key string) *lent {
	for {
		h := l.latest.Load()
		if h == nil || h.key != key {
			if h = l.find(key); h == nil {
				return nil
			}
			l.latest.Store(h)
		}
		h.lock()
		if !h.gone {
			return h
		}
		h.unlock()
		l.latest.CompareAndSwap(h, nil)
	}
}

func (l *lender) find(key string) *lent {
	l.mu.RLock()
	h, closed := l.keys[key], l.closed
	l.mu.RUnlock()
	if h != nil || closed {
		return h
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if h = l.keys[key]; h == nil && !l.closed {
		l.sweep()
		h = &lent{key: key, size: 1}
		h.asked.Store(-hot.Microseconds())
		l.keys[key] = h
	}
	return h
}

// sweep looks at a few keys and forgets those that have nothing and are not hot. Called for each new key, it keeps the map
// at a small multiple of the others. Under mu.
func (l *lender) sweep() {
	now, looked := l.now(), 0
	for key, h := range l.keys {
		h.lock()
		h.spoil(l.rule, now)
		if h.leases[0].left == 0 && h.coming == nil && now-h.asked.Load() >= hot.Microseconds() {
			h.gone = true
			delete(l.keys, key)
		}
		h.unlock()
		if looked++; looked == 4 {
			return
		}
	}
}

// reset forgets the lease, too.
func (l *lender) reset(ctx context.Context, key string) error {
	l.drop(key)
	return l.resetThen(ctx, key, func() { l.drop(key) }) // and what was taken until it was done
}

// drop forgets the lease of a key, and one that is on its way.
func (l *lender) drop(key string) {
	if h := l.lock(key); h != nil {
		h.leases = [2]lease{}
		h.resets++
		h.unlock()
	}
}

// close gives back what is left, and has every later request go to Redis.
func (l *lender) close(ctx context.Context) error {
	l.mu.Lock()
	keys, again := l.keys, l.closed
	l.closed, l.keys = true, nil
	l.mu.Unlock()
	if again {
		select {
		case <-l.ended:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, h := range keys {
		h.lock()
		h.gone = true // no fetch begins from now on
		h.unlock()
	}
	_, err := bounded(ctx, func(ctx context.Context) (_ struct{}, err error) {
		defer close(l.ended)
		l.errands.Wait()
		for key, h := range keys {
			err = errors.Join(err, l.giveBack(ctx, key, h))
		}
		return struct{}{}, err
	})
	return err
}

func (l *lender) giveBack(ctx context.Context, key string, h *lent) error {
	h.lock()
	h.spoil(l.rule, l.now())
	var back []driver.Request
	for _, lease := range h.leases {
		if lease.left > 0 {
			back = append(back, driver.Request{Cost: -lease.left, Receipt: lease.receipt})
		}
	}
	h.unlock() // before the call: a request that still knows of h would wait for it
	if back == nil {
		return nil
	}
	if _, err := l.call(ctx, line{l.plan, key}, back, nil); err != nil {
		return storeError("give back", key, err)
	}
	return nil
}
