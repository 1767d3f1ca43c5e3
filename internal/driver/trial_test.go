package driver_test

import (
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A half is one of the two that answer: Go in process, or Lua on a server.
type half struct {
	run func(r algos.Rule, now int64, requests ...driver.Request) []driver.Reply
	// kept is what it remembers: the same as before if nothing was written.
	kept func() string
}

func (h half) ask(r algos.Rule, now, cost, bound int64) driver.Reply {
	return h.run(r, now, driver.Request{Cost: cost, Bound: bound})[0]
}

func (p *process) half() half {
	saves := 0
	return half{
		func(r algos.Rule, now int64, requests ...driver.Request) []driver.Reply {
			replies, saved := p.decide(r, now, requests...)
			if saved {
				saves++
			}
			return replies
		},
		func() string { return fmt.Sprintf("save %d", saves) },
	}
}

func (s server) half(x *trial) half {
	return half{
		func(r algos.Rule, now int64, requests ...driver.Request) []driver.Reply {
			return s.run(x.T, r, now, requests...)
		},
		func() string {
			bytes, until := s.stored()
			return fmt.Sprintf("%q until %d", bytes, until)
		},
	}
}

// A trial is one check of a subject, with its parameters drawn.
type trial struct {
	*rapid.T
	subject
	algorithm algos.Algorithm
	rule      algos.Rule
	fresh     func() half // a limiter that nobody has used yet
	pauses    *rapid.Generator[int64]
}

func (s subject) trial(t *rapid.T) *trial {
	a := s.draw.Draw(t, "algorithm")
	return &trial{T: t, subject: s, algorithm: a, rule: rule(t, a), pauses: spread(s.times(a))}
}

func (x *trial) pause() int64 { return x.pauses.Draw(x.T, "pause") }

func (x *trial) epoch() int64 {
	// Some time, the first days of 1970, and half a day before summer time ends and begins in Paris.
	return rapid.SampledFrom([]int64{epoch, 1 << 40, 1_792_843_200 * second, 1_806_148_800 * second}).Draw(x.T, "epoch")
}

func (x *trial) cost() int64 {
	return int64(rapid.IntRange(1, min(x.rule.Max(), 1000)).Draw(x.T, "cost"))
}

func (x *trial) bound(cost int64) int64 {
	furthest := x.rule.Horizon(cost)
	return rapid.SampledFrom([]int64{0, min(x.pause(), furthest), furthest, furthest}).Draw(x.T, "bound")
}

// requests draws a batch of up to size requests, some of which give back; it returns the receipts that are left.
func (x *trial) requests(receipts []driver.Request, size int) (requests, left []driver.Request) {
	left = receipts
	for range rapid.IntRange(1, size).Draw(x.T, "size") {
		if len(left) > 0 && rapid.IntRange(0, 2).Draw(x.T, "give back") == 0 {
			i := rapid.IntRange(0, len(left)-1).Draw(x.T, "which")
			requests = append(requests, left[i])
			if rapid.IntRange(0, 9).Draw(x.T, "again later") > 0 {
				left = append(left[:i:i], left[i+1:]...)
			}
			continue
		}
		cost := x.cost()
		bound := rapid.SampledFrom([]int64{driver.Ask, x.bound(cost)}).Draw(x.T, "ask or")
		requests = append(requests, driver.Request{Cost: cost, Bound: bound})
	}
	if again := requests[0]; again.Cost > 0 && rapid.IntRange(0, 3).Draw(x.T, "all equal") == 0 {
		for i := range requests {
			requests[i] = again
		}
	}
	return requests, left
}

// conform holds every subject to a promise: many histories in Go, and some in Lua on a real server.
func conform(t *testing.T, promise func(x *trial)) {
	t.Helper()
	for _, s := range subjects {
		t.Run("Go/"+s.name, func(t *testing.T) {
			checkN(t, s.checks, func(t *rapid.T) {
				x := s.trial(t)
				x.fresh = func() half { return (&process{state: x.rule.NewState()}).half() }
				promise(x)
			})
		})
	}
	t.Run("Lua", func(t *testing.T) {
		rdb := redistest.Start(t).Client()
		limiters := 0
		for _, s := range subjects {
			t.Run(s.name, func(t *testing.T) {
				checkN(t, luaChecks, func(t *rapid.T) {
					x := s.trial(t)
					x.fresh = func() half {
						limiters++
						return server{rdb: rdb, key: fmt.Sprint(limiters), guarded: limiters%2 == 0}.half(x)
					}
					promise(x)
				})
			})
		}
	})
}

// As often as it takes to find what breaks a promise once in a thousand histories, for the algorithms with most in them.
const (
	manyChecks = 3000
	luaChecks  = 6
)

// check runs a property manyChecks times; -rapid.checks may ask for more.
func check(t *testing.T, property func(t *rapid.T)) {
	t.Helper()
	checkN(t, manyChecks, property)
}

// checkN runs a property n times, or in proportion to what -rapid.checks asks for.
func checkN(t *testing.T, n int, property func(t *rapid.T)) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	asked := checks.Value.String()
	if asked != checks.DefValue {
		many, _ := strconv.Atoi(asked)
		n = max(n*many/manyChecks, 1)
	}
	_ = flag.Set("rapid.checks", strconv.Itoa(n))
	defer func() { _ = flag.Set("rapid.checks", asked) }()
	rapid.Check(t, property)
}

// A life is what a limiter goes through: requests, cancels of what waits, and the passing of time. Each answer is
// checked on the way.
type life struct {
	half
	now     int64 // by the server's clock
	lag     int64 // how much longer it was for those who hold slots
	last    driver.Reply
	uses    []use // by the time of those who hold them
	since   int   // the first that can be given back
	cancels bool
}

func (x *trial) life(h half) *life {
	return &life{half: h, now: x.epoch(), cancels: rapid.Bool().Draw(x.T, "cancels")}
}

// live goes on for up to so many requests and cancels more.
func (x *trial) live(l *life, length int) {
	for range rapid.IntRange(0, length).Draw(x.T, "length") {
		x.pass(l)
		waiting := slices.DeleteFunc(indices(l.uses), func(i int) bool { return i < l.since || l.uses[i].cancelled || l.uses[i].slot < l.now+l.lag })
		if l.cancels && len(waiting) > 0 && rapid.IntRange(0, 2).Draw(x.T, "cancel") == 0 {
			u := &l.uses[rapid.SampledFrom(waiting).Draw(x.T, "which")]
			x.cancel(l, u)
			continue
		}
		cost := x.cost()
		x.request(l, cost, x.bound(cost))
	}
}

// pass lets time go by: as long as matters to the algorithm, or exactly as long as it said.
func (x *trial) pass(l *life) {
	l.now += rapid.SampledFrom([]int64{x.pause(), x.pause(), x.pause(), max(-l.last.Wait, 0), l.last.Reset}).Draw(x.T, "passes")
}

func (x *trial) request(l *life, cost, bound int64) {
	l.last = l.ask(x.rule, l.now, cost, bound)
	switch {
	case l.last.Wait < 0:
		x.exactRetry(l, cost, bound, -l.last.Wait)
	case l.last.Wait > bound:
		x.Fatalf("slot in %d µs, beyond the bound of %d", l.last.Wait, bound)
	default:
		l.uses = append(l.uses, use{at: l.now + l.lag, slot: l.now + l.lag + l.last.Wait, cost: cost, receipt: l.last.Receipt})
	}
}

func (x *trial) cancel(l *life, u *use) {
	u.cancelled = true
	if back := l.run(x.rule, l.now, u.back())[0]; back.Wait < 0 || back.Wait > u.cost {
		x.Fatalf("%d permits of %d came back", back.Wait, u.cost)
	}
}

func (x *trial) lawful(uses []use) {
	if err := x.law(x.algorithm, uses); err != nil {
		x.Fatalf("over the limit: %v: %+v", err, uses)
	}
}

func (u use) back() driver.Request { return driver.Request{Cost: -u.cost, Receipt: u.receipt} }

func indices(uses []use) []int {
	all := make([]int, len(uses))
	for i := range all {
		all[i] = i
	}
	return all
}
