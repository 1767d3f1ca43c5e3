package driver_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/internal/driver"
)

// The clock of a server goes back, as in a failover to one that is behind, or leaps ahead. What is owed when it goes back
// stays owed, and no more than that: the first call puts the clock right, whatever is answered, and the next writes
// nothing. Those who hold slots sleep for as long as they were told, so the law is about their time.
func TestAClockThatStepsCostsWhatIsOwedAndNoMore(t *testing.T) {
	conform(t, func(x *trial) {
		l := x.life(x.fresh())
		for range rapid.IntRange(1, 3).Draw(x.T, "steps") {
			x.live(l, 10)
			cost := x.cost()
			x.request(l, cost, x.rule.Horizon(cost))
			if rapid.IntRange(0, 3).Draw(x.T, "direction") == 0 {
				l.now += rapid.SampledFrom([]int64{hour, 24 * hour, 10_000 * hour}).Draw(x.T, "ahead")
				continue
			}
			owed, saved := probe(l.half, x.rule, l.now), l.last.Wait >= 0
			back := rapid.SampledFrom([]int64{hour, 1, min(x.pause(), 24*hour) + 1}).Draw(x.T, "back")
			if x.wall { // it is about the dates by that clock, as long as that goes forward
				x.lawful(l.uses[l.since:])
				l.since = len(l.uses)
			} else {
				l.lag += back
			}
			l.now -= back
			before := l.kept()
			after := probe(l.half, x.rule, l.now)
			if rebased := l.kept(); saved && rebased == before {
				x.Fatalf("the first call after the step did not put the clock right: %s", before)
			} else if probe(l.half, x.rule, l.now); rebased != l.kept() {
				x.Fatalf("the calls after the first wrote: %s, then %s", rebased, l.kept())
			}
			known := saved && !x.wall && (!l.cancels || !x.countsUp) // a step closes the windows that cancels opened
			for i := range after {
				if known && after[i].Wait < owed[i].Wait {
					x.Fatalf("question %d: %+v before the clock went back, %+v after", i, owed[i], after[i])
				}
			}
		}
		x.lawful(l.uses[l.since:])
	})
}

func TestABatchAnswersAsIfOneByOne(t *testing.T) {
	conform(t, func(x *trial) {
		batched, single, now := x.fresh(), x.fresh(), x.epoch()
		var receipts []driver.Request
		alone := make(map[driver.Request]driver.Request) // what the other calls the same receipt
		for range 5 {
			now += x.pause()
			requests, left := x.requests(receipts, 6)
			receipts = left
			replies := batched.run(x.rule, now, requests...)
			for i, request := range requests {
				asked := request
				if request.Cost < 0 {
					asked = alone[request]
				}
				one := single.run(x.rule, now, asked)[0]
				if !same(one, replies[i]) {
					x.Fatalf("request %d of %v: in the batch %v, alone %v", i, requests, replies[i], one)
				}
				if request.Cost > 0 && replies[i].Wait >= 0 {
					back := driver.Request{Cost: -request.Cost, Receipt: replies[i].Receipt}
					receipts = append(receipts, back)
					alone[back] = driver.Request{Cost: -request.Cost, Receipt: one.Receipt}
				}
			}
		}
	})
}

// Raising a limit refuses nothing that the old one grants, but for the microsecond or two that a change of pace may
// round up, and what was used stays used. Where permits were given back, those whose place began within that time, or a
// microsecond before it, may be taken again: slots are rounded up to one, and in it a faster pace has more places.
func TestARaisedLimitNeverRefusesMoreAndForgetsNothing(t *testing.T) {
	conform(t, func(x *trial) {
		l := x.life(x.fresh())
		x.live(l, 15)
		l.now += x.pause()
		raised := rule(x, x.raise(x.T, x.algorithm))
		costs := []int64{x.cost(), min(int64(x.rule.Max()), 1000)}
		before, after := make([]driver.Reply, 2), make([]driver.Reply, 2)
		for i, cost := range costs {
			before[i] = l.ask(x.rule, l.now, cost, driver.Ask)
		}
		for i, cost := range costs {
			after[i] = l.ask(raised, l.now, cost, driver.Ask)
		}
		for i := range costs {
			if after[i].Wait < before[i].Wait-2 {
				x.Fatalf("%d permits: %+v; with %+v: %+v", costs[i], before[i], raised, after[i])
			}
			more := int64(raised.Limit() - x.rule.Limit())
			if permits, per := raised.Rate(); slices.ContainsFunc(l.uses, func(u use) bool { return u.cancelled }) {
				more += 1 + int64(time.Duration(permits)*3*time.Microsecond/per)
			}
			if after[i].Remaining > before[i].Remaining+more {
				x.Fatalf("%d more make %d remain where %d did", more, after[i].Remaining, before[i].Remaining)
			}
		}
	})
}
