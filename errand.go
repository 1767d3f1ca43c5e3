package headgate

import (
	"context"
	"slices"
	"time"

	"github.com/headgate-go/headgate/internal/driver"
)

// Leases are fetched by an errand of their own. Who finds too little in the leases at hand waits for the errand that is
// under way, in line; the next one then brings what all of them ask for, on top of a lease.

// An errand is the fetching of a lease: which one, told by its address.
type errand struct {
	late bool // nobody waits for it any more
}

// A borrower is a request that waits for a lease.
type borrower struct {
	of     *lent
	cost   int64
	by     *errand // that brings what it asks for, on top of a lease
	reply  driver.Reply
	served chan bool // whether there is a reply; there is none if the lease was refused
}

// borrower is one that nobody else uses.
func (l *lender) borrower(of *lent, cost int64) *borrower {
	b, ok := l.borrowers.Get().(*borrower)
	if !ok {
		b = &borrower{served: make(chan bool, 1)}
	}
	b.of, b.cost, b.by = of, cost, nil
	return b
}

// begin notes that a lease is fetched from now on. Under mu.
func (h *lent) begin(most int64) {
	h.coming = new(errand)
	h.size = min(2*h.size, most)
}

// fetch takes leases, one after the other for as long as callers wait for them.
func (l *lender) fetch(h *lent) {
	defer l.errands.Done()
	for l.fetchOne(h) {
	}
}

// fetchOne takes a lease, and with it what callers wait for, if all of it may be used now. It tells whether it has begun
// another one.
func (l *lender) fetchOne(h *lent) (again bool) {
	h.lock()
	this, size, resets := h.coming, h.size, h.resets
	total := size
	for _, b := range h.waiting {
		if total+b.cost <= int64(l.rule.Max()) {
			b.by = this
			total += b.cost
		}
	}
	h.unlock()
	overdue := time.AfterFunc(patience, func() { h.giveUp(this) })
	began := l.now()
	ask := []driver.Request{{Cost: 1, Bound: driver.Ask}, {Cost: total}} // the first tells how long the line is
	replies, err := l.call(context.Background(), line{l.plan, h.key}, ask, nil)
	overdue.Stop()

	h.lock()
	now := max(l.now(), h.asked.Load())
	var served, dismissed []*borrower
	if err != nil {
		h.notBefore = now + leaseAgain.Microseconds()
	} else if before, reply := replies.At(0), replies.At(1); reply.Wait < 0 {
		h.size = max(size/4, 1) // the next one is of twice that
		h.notBefore = began + min(-reply.Wait, leaseAgain.Microseconds())
	} else if h.resets == resets {
		fresh := lease{number: l.fetched.Add(1), left: total, receipt: reply.Receipt}
		// The instant before the call is no later than that of the grant. Spans are rounded, so a microsecond is taken off.
		if reply.Reset > before.Reset {
			fresh.ends = began + reply.Reset - 1
		} else { // the permits fill a hole, wherever it was
			fresh.ends = began + l.rule.Span(total) - 1
		}
		h.leases[1] = fresh
		served = h.serve(served, now, this)
		h.spoil(l.rule, now)
		if h.leases[0].left == 0 && size == l.most { // the limiter refills it faster than it comes
			h.notBefore = now + leaseAgain.Microseconds()
		}
		served = h.serve(served, now, nil)
		h.scarce = len(served) > 0
		again = h.scarce && now >= h.notBefore && h.leases[1].left == 0 && !h.gone
	}
	if again {
		h.begin(l.most)
	} else {
		h.coming = nil
		h.waiting, dismissed = nil, h.waiting
	}
	h.unlock()
	tell(served, true)
	tell(dismissed, false)
	return again
}

// leave takes a request back, unless it has been answered.
func (b *borrower) leave() bool {
	b.of.lock()
	defer b.of.unlock()
	i := slices.Index(b.of.waiting, b)
	if i < 0 {
		return false
	}
	b.of.waiting = slices.Delete(b.of.waiting, i, i+1)
	return true
}

// serve gives permits to those who wait, in the order in which they came: of the lease that an errand brought to those whom
// it counted, or, if by is nil, of both leases to all. It appends those to served. Under mu.
func (h *lent) serve(served []*borrower, now int64, by *errand) []*borrower {
	waiting := h.waiting
	h.waiting = nil
	for _, b := range waiting {
		from := h.lease(b.cost)
		if by != nil {
			from = &h.leases[1]
		}
		if by != nil && b.by != by || from.left < b.cost {
			h.waiting = append(h.waiting, b)
			continue
		}
		b.reply = h.take(from, b.cost, now)
		served = append(served, b)
	}
	return served
}

// giveUp has nobody wait any longer for a lease that does not come.
func (h *lent) giveUp(on *errand) {
	h.lock()
	on.late = true
	var dismissed []*borrower
	if h.coming == on {
		h.waiting, dismissed = nil, h.waiting
	}
	h.unlock()
	tell(dismissed, false)
}

// tell lets them know whether they have been served.
func tell(all []*borrower, served bool) {
	for _, b := range all {
		b.served <- served
	}
}
