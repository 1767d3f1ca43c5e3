package driver_test

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What becomes of the limiter when all that waits is cancelled: where giving back is exact, or each is the last in its
// turn, it is as if they had never come; otherwise it is at least that far on, and no further than with them.
func TestCancellingAllThatWaitLeavesNoTrace(t *testing.T) {
	conform(t, func(x *trial) {
		with, without, uncancelled := x.fresh(), x.fresh(), x.fresh()
		now := x.epoch()
		for range rapid.IntRange(0, 5).Draw(x.T, "before") { // all have the same past
			now += x.pause()
			cost := x.cost()
			for _, h := range []half{with, without, uncancelled} {
				h.ask(x.rule, now, cost, 0)
			}
		}
		var waiting []use
		for range rapid.IntRange(1, 20).Draw(x.T, "waiters") {
			cost := x.cost()
			reply := with.ask(x.rule, now, cost, x.rule.Horizon(cost))
			uncancelled.ask(x.rule, now, cost, x.rule.Horizon(cost))
			if reply.Wait == 0 { // used at once, so it is part of every past
				without.ask(x.rule, now, cost, 0)
			} else if reply.Wait > 0 {
				waiting = append(waiting, use{slot: now + reply.Wait, cost: cost, receipt: reply.Receipt})
			}
		}
		if len(waiting) > 0 { // some time passes, but no slot
			now += rapid.Int64Range(0, waiting[0].slot-now).Draw(x.T, "pause")
		}
		leavesNoTrace := x.gives == exactly
		if x.gives == theTail && rapid.Bool().Draw(x.T, "from the end") {
			slices.Reverse(waiting)
			leavesNoTrace = true
		} else {
			waiting = rapid.Permutation(waiting).Draw(x.T, "order")
		}
		for _, u := range waiting {
			with.run(x.rule, now, u.back())
		}
		got, best, worst := probe(with, x.rule, now), probe(without, x.rule, now), probe(uncancelled, x.rule, now)
		if leavesNoTrace && !slices.Equal(got, best) {
			x.Fatalf("after cancelling all:\n%v\nhad they never come:\n%v", got, best)
		}
		for i := range got {
			if got[i].Wait > best[i].Wait || got[i].Wait < worst[i].Wait {
				x.Fatalf("question %d: %d, where it is %d had they never come, and %d had they stayed", i, got[i].Wait, best[i].Wait, worst[i].Wait)
			}
		}
	})
}

func TestACancelledSlotGoesToTheNextThatFits(t *testing.T) {
	conform(t, func(x *trial) {
		h, now := x.fresh(), x.epoch()
		var uses []use
		for range rapid.IntRange(2, 20).Draw(x.T, "waiters") {
			cost := x.cost()
			if reply := h.ask(x.rule, now, cost, x.rule.Horizon(cost)); reply.Wait >= 0 {
				uses = append(uses, use{slot: now + reply.Wait, cost: cost, receipt: reply.Receipt})
			}
		}
		gone := rapid.SampledFrom(uses).Draw(x.T, "which")
		back := h.run(x.rule, now, gone.back())[0].Wait
		if back < 0 || back > gone.cost || x.gives == exactly && back != gone.cost {
			x.Fatalf("%d permits of %d came back", back, gone.cost)
		}
		if !x.countsUp {
			if again := h.run(x.rule, now, gone.back())[0]; again.Wait != 0 {
				x.Fatalf("giving back twice returned %d", again.Wait)
			}
		}
		if x.gives != exactly {
			return
		}
		cost := rapid.Int64Range(1, gone.cost).Draw(x.T, "cost")
		if reply := h.ask(x.rule, now, cost, x.rule.Horizon(cost)); reply.Wait < 0 || now+reply.Wait > gone.slot {
			x.Fatalf("the slot in %d µs was given up, the next request waits %d µs", gone.slot-now, reply.Wait)
		}
	})
}
