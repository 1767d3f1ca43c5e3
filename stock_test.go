package headgate

import (
	"testing"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// What is handed out without the lock is what needs nothing else to be done.
func TestTheStockIsWhatNeedsNothingElse(t *testing.T) {
	type opened struct{ left, least, until, other, ends int64 }
	first := lease{number: 1, left: 80, begins: 500, ends: 900}
	second := lease{number: 2, left: 100, begins: 400, ends: 950}
	for name, test := range map[string]struct {
		lent *lent
		want opened // nothing, if it is not open
	}{
		"a lease, until half of it is left and the next is due": {&lent{leases: [2]lease{first}, size: 100}, opened{80, 51, 500, 0, 900}},
		"a lease of which half is left":                         {&lent{leases: [2]lease{first}, size: 160}, opened{}},
		"a lease while the next is on its way":                  {&lent{leases: [2]lease{first}, size: 100, coming: new(errand)}, opened{80, 0, 500, 0, 900}},
		"a lease while the next is there, until a place of either begins": {
			&lent{leases: [2]lease{first, second}, size: 100}, opened{80, 0, 400, 100, 950},
		},
		"a lease after somebody had to wait for it, so that the next is due": {&lent{leases: [2]lease{first}, size: 100, scarce: true}, opened{}},
		"a lease after somebody had to wait for it, while the next is there": {
			&lent{leases: [2]lease{first, second}, size: 100, scarce: true}, opened{80, 0, 400, 100, 950},
		},
		"what is no longer anybody's": {&lent{leases: [2]lease{first}, size: 100, gone: true}, opened{}},
		"no lease":                    {new(lent), opened{}},
	} {
		h := test.lent
		h.mu.Lock()
		h.unlock()
		var got opened
		if s := h.stock.Load(); s != nil {
			got = opened{s.left.Load(), s.least, s.until, s.other, s.ends}
		}
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func TestAStockIsHandedOut(t *testing.T) {
	l, h := new(lender), &lent{key: "a", leases: [2]lease{{number: 7, left: 80, begins: 500, ends: 900}}, size: 100}
	h.mu.Lock()
	h.unlock()
	l.latest.Store(h)
	var reply driver.Reply
	if !l.handQuickly("a", 10, 450, &reply) || reply.Receipt.Number != 70 || reply.Receipt.Period != 7 || reply.Reset != 450 || reply.Remaining != 70 {
		t.Errorf("%+v", reply)
	}
	if got := h.asked.Load(); got != 450 {
		t.Errorf("it is not known that somebody came at 450, but at %d", got)
	}
	if l.handQuickly("a", 10, 440, &reply); h.asked.Load() != 450 {
		t.Error("a later caller is forgotten for an earlier one")
	}
	for name, quickly := range map[string]bool{
		"more than may be left before the next lease is due": l.handQuickly("a", 10, 450, &reply),
		"once a place has begun":                             l.handQuickly("a", 1, 500, &reply),
		"another key's":                                      l.handQuickly("b", 1, 450, &reply),
		"nothing":                                            l.allow("a", 0, new(Decision)),
		"less than nothing":                                  l.allow("a", -1, new(Decision)),
	} {
		if quickly {
			t.Errorf("handed out quickly: %s", name)
		}
	}
	late := h.stock.Load() // of one who found it open
	h.lock()
	if got := h.leases[0].left; got != 60 {
		t.Errorf("%d are left", got)
	}
	h.stock.Store(late)
	if l.handQuickly("a", 1, 450, &reply) {
		t.Error("handed out by one who came too late")
	}
	h.mu.Unlock()
}

// Permits that were handed out and put back are those whose places begin before those of the others.
func TestWhatIsPutBackBeginsEarlier(t *testing.T) {
	rule, err := algos.TokenBucket{Rate: 1, Per: time.Microsecond, Burst: 20}.Rule()
	if err != nil {
		t.Fatal(err)
	}
	h := &lent{key: "k", size: 10, leases: [2]lease{{number: 1, left: 10, ends: 110}}}
	l := &lender{rule: rule.(algos.Lender), keys: map[string]*lent{"k": h}}
	h.lock()
	taken := h.take(&h.leases[0], 5, 99) // the places from 100 to 105
	h.spoil(l.rule, 101)                 // of the others none has begun
	h.unlock()
	if n := l.takeBack("k", driver.Request{Cost: -5, Receipt: taken.Receipt}); n != 5 {
		t.Fatalf("%d went back", n)
	}
	h.lock()
	defer h.unlock()
	if h.spoil(l.rule, 103); h.leases[0].left > 7 {
		t.Errorf("three of what was put back have begun, and %d are left", h.leases[0].left)
	}
}
