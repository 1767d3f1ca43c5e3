package headgate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

const (
	// hot is how soon a key must be asked for again for a lease to be taken.
	hot = time.Second
	// leaseAgain is when a lease is tried again after one failed, was refused, or came too late.
	leaseAgain = 100 * time.Millisecond
)

// A lender is a Store for one limiter that takes permits many at a time and hands them out in process.
//
// Permits own places on the limiter's line (see package algos), and each may be used from its slot until its place begins:
// the places of the permits that are used in any stretch of time w then begin within w and a burst's span, which is all
// that the proof needs. A lease is taken only if all of it may be used at once, the place that begins first is used first,
// and what is left is forgotten as the places begin: that is at the limiter's rate.
type lender struct {
	*redisStore
	plan *plan
	rule algos.Lender
	most int64     // permits in a lease
	base time.Time // instants are µs since then

	latest atomic.Pointer[lent] // the key that was asked for last
	mu     sync.RWMutex
	keys   map[string]*lent
	closed bool
	errand sync.WaitGroup // fetches
	ended  chan struct{}  // closed when everything was given back
}

// lent is what one key has.
type lent struct {
	key string

	mu      sync.Mutex
	leases  [2]lease        // the second is fetched ahead
	fetched int64           // leases so far
	size    int64           // of the last one, or half of what was refused
	asked   int64           // when somebody came last
	not     int64           // before when there is nothing to fetch
	coming  <-chan struct{} // while one is fetched; closed when it has come, or takes too long
	gone    bool            // it is no longer in keys
	resets  int             // what was fetched before one is forgotten
}

// A lease is permits of one grant that are left: the last of it.
type lease struct {
	number  int64 // which of the key's it is
	left    int64
	ends    int64 // when the last one's place ends at the earliest
	receipt algos.Receipt
}

func newLender(store *redisStore, p *plan, rule algos.Lender, most int64) *lender {
	return &lender{redisStore: store, plan: p, rule: rule, most: most, base: time.Now(), keys: make(map[string]*lent), ended: make(chan struct{})}
}

func (*lender) source() Source { return SourceLease }

func (l *lender) now() int64 { return time.Since(l.base).Microseconds() }

func (l *lender) decide(ctx context.Context, p *plan, key string, request driver.Request, life uint64) (grant, error) {
	switch {
	case request.Cost < 0:
		return grant{Reply: driver.Reply{Wait: l.takeBack(key, request)}}, nil
	case request.Bound == driver.Ask:
		return l.redisStore.decide(ctx, p, key, request, life)
	}
	reply, ok, coming := l.hand(key, request.Cost)
	if coming != nil { // it takes no longer than a call of one's own
		select {
		case <-ctx.Done():
			return grant{}, storeError("decide", key, fmt.Errorf("%w: %w", errUnsent, ctx.Err()))
		case <-coming:
		}
		reply, ok, _ = l.hand(key, request.Cost)
	}
	if !ok {
		return l.redisStore.decide(ctx, p, key, request, life)
	}
	return grant{Reply: reply, store: l, plan: p, key: key}, nil
}

// hand gives out cost permits of a lease, if it has them, and sees to it that there will be some. If it has not, and some
// are on their way, the channel is closed when they have come.
func (l *lender) hand(key string, cost int64) (reply driver.Reply, ok bool, coming <-chan struct{}) {
	h := l.lock(key)
	if h == nil {
		return driver.Reply{}, false, nil
	}
	defer h.mu.Unlock()
	now := l.now()
	h.spoil(l.rule, now)
	first, second := &h.leases[0], &h.leases[1]
	from := first
	if first.left < cost {
		from = second
	}
	if ok = from.left >= cost; ok {
		from.left -= cost
		reply = driver.Reply{
			Remaining: max(first.left, second.left), Reset: max(first.ends, second.ends) - now,
			Receipt: algos.Receipt{Period: from.number, Number: from.left},
		}
	}
	again := now-h.asked < hot.Microseconds()
	h.asked = now
	if again && h.coming == nil && now >= h.not && second.left == 0 && first.left <= h.size/2 {
		ctx, arrived := context.WithTimeout(context.Background(), patience)
		h.coming = ctx.Done()
		h.size = min(2*h.size, l.most)
		l.errand.Add(1)
		go l.fetch(h, h.size, arrived)
	}
	if !ok && cost <= h.size {
		coming = h.coming
	}
	return reply, ok, coming
}

// spoil forgets the permits whose places have begun.
func (h *lent) spoil(rule algos.Lender, now int64) {
	for i := range h.leases {
		lease := &h.leases[i]
		if lease.left == 0 {
			continue
		}
		if good := rule.Permits(max(lease.ends-now, 0)); good < lease.left {
			lease.left = good
		}
	}
	if h.leases[0].left == 0 {
		h.leases[0], h.leases[1] = h.leases[1], lease{}
	}
}

// fetch takes a lease, if all of it may be used now.
func (l *lender) fetch(h *lent, size int64, arrived func()) {
	defer l.errand.Done()
	defer arrived()
	h.mu.Lock()
	resets := h.resets
	h.mu.Unlock()
	began := l.now()
	ask := []driver.Request{{Cost: 1, Bound: driver.Ask}, {Cost: size}} // the first tells how long the line is
	replies, err := l.call(context.Background(), line{l.plan, h.key}, ask, nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.coming = nil
	if err != nil {
		h.not = l.now() + leaseAgain.Microseconds()
		return
	}
	before, reply := replies.At(0), replies.At(1)
	if reply.Wait < 0 {
		h.size = max(size/4, 1) // the next one is of twice that
		h.not = began + min(-reply.Wait, leaseAgain.Microseconds())
		return
	}
	if h.resets != resets {
		return
	}
	h.fetched++
	fresh := lease{number: h.fetched, left: size, receipt: reply.Receipt}
	// The instant before the call is no later than that of the grant. Spans are rounded, so a microsecond is taken off.
	if reply.Reset > before.Reset {
		fresh.ends = began + reply.Reset - 1
	} else { // the permits fill a hole, wherever it was
		fresh.ends = began + l.rule.Span(size) - 1
	}
	h.leases[1] = fresh
	h.spoil(l.rule, l.now())
	if h.leases[0].left == 0 && size == l.most { // the limiter refills it faster than it comes
		h.not = l.now() + leaseAgain.Microseconds()
	}
}

// takeBack puts permits that were handed out last back in their lease, and tells how many; others drain as if they had been
// used.
func (l *lender) takeBack(key string, request driver.Request) int64 {
	h := l.lock(key)
	if h == nil {
		return 0
	}
	defer h.mu.Unlock()
	for i := range h.leases {
		if lease := &h.leases[i]; lease.number == request.Receipt.Period && lease.left == request.Receipt.Number {
			lease.left -= request.Cost
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
		h.mu.Lock()
		if !h.gone {
			return h
		}
		h.mu.Unlock()
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
		h = &lent{key: key, size: 1, asked: -hot.Microseconds()}
		l.keys[key] = h
	}
	return h
}

// sweep looks at a few keys and forgets those that have nothing and are not hot. Called for each new key, it keeps the map
// at a small multiple of the others. Under mu.
func (l *lender) sweep() {
	now, looked := l.now(), 0
	for key, h := range l.keys {
		h.mu.Lock()
		h.spoil(l.rule, now)
		if h.leases[0].left == 0 && h.coming == nil && now-h.asked >= hot.Microseconds() {
			h.gone = true
			delete(l.keys, key)
		}
		h.mu.Unlock()
		if looked++; looked == 4 {
			return
		}
	}
}

// reset forgets the lease, too.
func (l *lender) reset(ctx context.Context, key string) error {
	l.drop(key)
	defer l.drop(key) // and what was taken until it was done
	return l.redisStore.reset(ctx, key)
}

// drop forgets the lease of a key, and one that is on its way.
func (l *lender) drop(key string) {
	if h := l.lock(key); h != nil {
		h.leases = [2]lease{}
		h.resets++
		h.mu.Unlock()
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
		h.mu.Lock()
		h.gone = true // no fetch begins from now on
		h.mu.Unlock()
	}
	_, err := bounded(ctx, func(ctx context.Context) (_ struct{}, err error) {
		defer close(l.ended)
		l.errand.Wait()
		for key, h := range keys {
			err = errors.Join(err, l.giveBack(ctx, key, h))
		}
		return struct{}{}, err
	})
	return err
}

func (l *lender) giveBack(ctx context.Context, key string, h *lent) error {
	h.mu.Lock()
	h.spoil(l.rule, l.now())
	var back []driver.Request
	for _, lease := range h.leases {
		if lease.left > 0 {
			back = append(back, driver.Request{Cost: -lease.left, Receipt: lease.receipt})
		}
	}
	h.mu.Unlock() // before the call: a request that still knows of h would wait for it
	if back == nil {
		return nil
	}
	if _, err := l.call(ctx, line{l.plan, key}, back, nil); err != nil {
		return storeError("give back", key, err)
	}
	return nil
}
