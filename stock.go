package headgate

import (
	"math"
	"sync/atomic"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// A stock is permits of a key's first lease that are handed out without a lock: as many as there are to hand out before
// anything else is to be done. What else there is to know of the leases does not change while it is open.
type stock struct {
	left   atomic.Int64 // of the lease; sold while somebody has the lock
	least  int64        // that may be left
	until  int64        // before when no place begins
	number int64        // of the lease
	other  int64        // permits of the other lease
	ends   int64        // when the last place of both does
}

// sold is what is left of a stock that is closed.
const sold = math.MinInt64

// lock has others wait, and notes what they have taken from the stock.
func (h *lent) lock() {
	h.mu.Lock()
	if s := h.stock.Swap(nil); s != nil {
		h.leases[0].left = s.left.Swap(sold)
	}
}

// unlock opens a stock of what may be handed out with nothing else to be done: until half of the last lease is left, if the
// next one is to be fetched then.
func (h *lent) unlock() {
	defer h.mu.Unlock()
	first, second := &h.leases[0], &h.leases[1]
	least, until := int64(0), first.begins
	switch {
	case h.gone:
		return
	case second.left > 0:
		until = min(until, second.begins)
	case h.coming == nil && h.scarce:
		return
	case h.coming == nil:
		least = h.size/2 + 1
	}
	if first.left <= least {
		return
	}
	s := &stock{least: least, until: until, number: first.number, other: second.left, ends: max(first.ends, second.ends)}
	s.left.Store(first.left)
	h.stock.Store(s)
}

// handQuickly gives out permits of the stock, if it has them and the key is the one that was asked for last, and reports
// whether it had.
func (l *lender) handQuickly(key string, cost, now int64, reply *driver.Reply) bool {
	h := l.latest.Load()
	if h == nil || h.key != key {
		return false
	}
	s := h.stock.Load()
	if s == nil || now >= s.until {
		return false
	}
	for {
		left := s.left.Load()
		rest := left - cost
		if left == sold || rest < s.least {
			return false
		}
		if s.left.CompareAndSwap(left, rest) {
			if last := h.asked.Load(); now > last {
				h.asked.CompareAndSwap(last, now) // if it fails, somebody else has come just now
			}
			*reply = driver.Reply{Remaining: max(rest, s.other), Reset: s.ends - now, Receipt: algos.Receipt{Period: s.number, Number: rest}}
			return true
		}
	}
}

// allow is decide for what is asked most, n permits now, if there is a stock of them.
func (l *lender) allow(key string, n int, d *Decision) bool {
	var reply driver.Reply
	if n < 1 || !l.handQuickly(key, int64(n), l.now(), &reply) {
		return false
	}
	d.Allowed = true
	d.Limit = l.plan.limit
	d.Remaining = int(reply.Remaining)
	d.ResetAfter = micros(reply.Reset)
	d.Source = SourceLease
	return true
}
