package driver_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// A process is a limiter in process, at whatever instant the test says.
type process struct {
	state algos.State
}

func (p *process) run(rule algos.Rule, now int64, requests ...driver.Request) []driver.Reply {
	replies, _ := p.decide(rule, now, requests...)
	return replies
}

func (p *process) decide(rule algos.Rule, now int64, requests ...driver.Request) (replies []driver.Reply, saved bool) {
	replies = make([]driver.Reply, len(requests))
	saved = driver.Run(p.state, rule, now, requests, replies)
	return replies, saved
}

func (p *process) ask(rule algos.Rule, now, cost, bound int64) driver.Reply {
	return p.run(rule, now, driver.Request{Cost: cost, Bound: bound})[0]
}

func rule(t interface{ Fatal(...any) }, a algos.Algorithm) algos.Rule {
	r, err := a.Rule()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const epoch = 1_795_000_000_000_000

const hour = 3600 * second

func (x *trial) exactRetry(l *life, cost, bound, retry int64) {
	exactInTheory(x.T, l, x.rule, l.now, cost, bound, retry)
	if !x.countsRefusals { // otherwise what is asked in earnest counts
		exactRetry(x.T, l, x.rule, l.now, cost, bound, retry)
	}
}

// An asker is a limiter of either kind.
type asker interface {
	ask(r algos.Rule, now, cost, bound int64) driver.Reply
}

// exactInTheory checks P3 by asking: just before its time the request would wait a microsecond too long, and at its time
// as long as it may.
func exactInTheory(t *rapid.T, h asker, r algos.Rule, now, cost, bound, retry int64) {
	if retry < 1 {
		t.Fatalf("refused with a retry-after of %d µs", retry)
	}
	if early := h.ask(r, now+retry-1, cost, driver.Ask); early.Wait != driver.Ask-bound-1 {
		t.Fatalf("1 µs before retry-after: %d, with a bound of %d", early.Wait, bound)
	}
	if onTime := h.ask(r, now+retry, cost, driver.Ask); onTime.Wait != driver.Ask-bound {
		t.Fatalf("at retry-after: %d, with a bound of %d", onTime.Wait, bound)
	}
}

// exactRetry checks P3 in earnest, and without taking anything: with a bound one shorter, the same request a microsecond
// before its time and at its time are refused by two and by one.
func exactRetry(t *rapid.T, h asker, r algos.Rule, now, cost, bound, retry int64) {
	if retry < 1 {
		t.Fatalf("refused with a retry-after of %d µs", retry)
	}
	if early := h.ask(r, now+retry-1, cost, bound); early.Wait != -1 {
		t.Fatalf("1 µs before retry-after: %d", early.Wait)
	}
	if onTime := h.ask(r, now+retry, cost, bound-1); onTime.Wait != -1 {
		t.Fatalf("at retry-after, with a bound 1 µs too near: %d", onTime.Wait)
	}
	if again := h.ask(r, now, cost, bound); again.Wait != -retry {
		t.Fatalf("a refusal changed the next one: %d, then %d", -retry, again.Wait)
	}
}

func TestNoHistoryGoesOverTheLimit(t *testing.T) {
	conform(t, func(x *trial) {
		l := x.life(x.fresh())
		x.live(l, 40)
		x.lawful(l.uses)
	})
}

func TestARequestIsAdmittedExactlyAtRetryAfter(t *testing.T) {
	conform(t, func(x *trial) {
		l := x.life(x.fresh())
		for range 20 {
			l.now += x.pause()
			cost := x.cost()
			bound := rapid.SampledFrom([]int64{0, 0, x.bound(cost)}).Draw(x.T, "bound or none")
			reply := l.ask(x.rule, l.now, cost, bound)
			if reply.Wait >= 0 {
				continue
			}
			if !x.countsRefusals {
				if early := l.ask(x.rule, l.now-reply.Wait-1, cost, bound); early.Wait >= 0 {
					x.Fatalf("admitted before retry-after: %d", early.Wait)
				}
			}
			l.now -= reply.Wait
			if late := l.ask(x.rule, l.now, cost, bound); late.Wait != bound {
				x.Fatalf("at retry-after, with a bound of %d: %d", bound, late.Wait)
			}
		}
	})
}

func TestADenialWritesNothing(t *testing.T) {
	conform(t, func(x *trial) {
		l := x.life(x.fresh())
		x.live(l, 10)
		for range 10 {
			l.now += x.pause()
			cost := x.cost()
			bound := x.bound(cost)
			if x.countsRefusals {
				bound = driver.Ask
			}
			before := l.kept()
			if reply := l.ask(x.rule, l.now, cost, bound); reply.Wait < 0 && l.kept() != before {
				x.Fatalf("a denial wrote: %s, then %s", before, l.kept())
			}
		}
	})
}

// A burst is not part of what a bucket remembers.
func TestADenialByAnotherBurstWritesNothingEither(t *testing.T) {
	one := algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 2}
	other := one
	other.Burst = 1
	p := process{state: rule(t, one).NewState()}
	p.ask(rule(t, one), epoch, 2, 0)
	if reply, saved := p.decide(rule(t, other), epoch, driver.Request{Cost: 1}); reply[0].Wait >= 0 || saved {
		t.Errorf("%+v, saved: %v", reply, saved)
	}
}

func TestWithoutCancelsSlotsGoOutInOrder(t *testing.T) {
	conform(t, func(x *trial) {
		l := x.life(x.fresh())
		last := int64(0)
		for range 30 {
			l.now += x.pause()
			cost := x.cost()
			if reply := l.ask(x.rule, l.now, cost, x.bound(cost)); reply.Wait >= 0 {
				if l.now+reply.Wait < last {
					x.Fatalf("a later request overtakes: %d after %d", l.now+reply.Wait, last)
				}
				last = l.now + reply.Wait
			}
		}
	})
}

// probe is what a limiter answers to every question that takes nothing.
func probe(h asker, r algos.Rule, now int64) []driver.Reply {
	var all []driver.Reply
	for _, later := range []int64{0, 1, 1000, second} {
		for cost := int64(1); cost <= min(int64(r.Max()), 12); cost++ {
			all = append(all, h.ask(r, now+later, cost, driver.Ask))
		}
	}
	return all
}

// same tells whether two limiters say the same; how they call their receipts is their own business.
func same(a, b driver.Reply) bool {
	a.Receipt, b.Receipt = algos.Receipt{}, algos.Receipt{}
	return a == b
}

func TestAnIdleLimiterIsAsNew(t *testing.T) {
	conform(t, func(x *trial) {
		l, fresh := x.life(x.fresh()), x.fresh()
		x.live(l, 15)
		l.now += l.ask(x.rule, l.now, 1, driver.Ask).Reset
		if got, want := probe(l.half, x.rule, l.now), probe(fresh, x.rule, l.now); !slices.Equal(got, want) {
			x.Fatalf("idle:\n%v\nnew:\n%v", got, want)
		}
		l.now += 2 // it may have been as new for a part of a microsecond, which is worth something
		for range 10 {
			cost := x.cost()
			bound := x.bound(cost)
			if got, want := l.ask(x.rule, l.now, cost, bound), fresh.ask(x.rule, l.now, cost, bound); !same(got, want) {
				x.Fatalf("idle: %+v, new: %+v", got, want)
			}
			l.now += x.pause()
		}
	})
}

func TestPeekingChangesNothingAndTellsTheTruth(t *testing.T) {
	conform(t, func(x *trial) {
		l := x.life(x.fresh())
		x.live(l, 15)
		for range 5 {
			l.now += x.pause()
			cost := x.cost()
			bound := max(x.bound(cost), 0)
			before := l.kept()
			asked := l.ask(x.rule, l.now, cost, driver.Ask)
			if again := l.ask(x.rule, l.now, cost, driver.Ask); again != asked {
				x.Fatalf("asked twice: %+v, then %+v", asked, again)
			}
			if l.kept() != before {
				x.Fatalf("asking wrote: %s, then %s", before, l.kept())
			}
			wait := driver.Ask - asked.Wait
			want := wait
			if wait > bound {
				want = bound - wait
			}
			later := x.countsRefusals && want < 0 // the refusal counts itself
			if reply := l.ask(x.rule, l.now, cost, bound); reply.Wait > want || reply.Wait < want && !later {
				x.Fatalf("%d µs to wait when asked; then, with a bound of %d: %+v", wait, bound, reply)
			}
		}
	})
}
