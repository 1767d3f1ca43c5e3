package driver_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// logs draws sliding logs, most of them so short that boundaries meet.
func logs() *rapid.Generator[algos.SlidingLog] {
	return rapid.Custom(func(t *rapid.T) algos.SlidingLog {
		return algos.SlidingLog{
			Limit:       rapid.OneOf(rapid.IntRange(1, 5), rapid.IntRange(1, 40), rapid.Just(1<<45)).Draw(t, "limit"),
			Window:      time.Duration(rapid.SampledFrom([]int64{1, 7, 10, 1000, second, 3600 * second}).Draw(t, "window")) * time.Microsecond,
			CountDenied: rapid.Bool().Draw(t, "count denied"),
		}
	})
}

// logCost draws a number of permits.
func logCost(l algos.SlidingLog) *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64Range(1, min(int64(l.Limit), 3)), rapid.Int64Range(1, int64(l.Limit)), rapid.Just(int64(l.Limit)))
}

// logStep draws a span of time that matters to the log: nothing, a part of the window, or just about all of it.
func logStep(l algos.SlidingLog) *rapid.Generator[int64] {
	window := l.Window.Microseconds()
	return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, window), rapid.Int64Range(0, window/4),
		rapid.Int64Range(max(window-1, 0), window+1), rapid.Int64Range(0, 4*window))
}

func TestTheSlidingLogAnswersTheSameInLuaAndGo(t *testing.T) {
	rdb := redistest.Start(t).Client()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		logTwins(t, server{rdb: rdb, key: fmt.Sprint("log:", run), clientClock: rapid.Bool().Draw(t, "client clock")}, true)
	})
}

func TestTheSlidingLogAnswersTheSameOnMiniredis(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		logTwins(t, server{rdb: rdb, key: fmt.Sprint("log:", run)}, false)
	})
}

func logTwins(t *rapid.T, s server, expires bool) {
	kinds := rapid.SliceOfN(logs(), 1, 3).Draw(t, "logs")
	p := process{rule(t, kinds[0]).NewState()}
	now := rapid.SampledFrom([]int64{epoch, 1, 1 << 40, 1<<53 - 1<<42}).Draw(t, "epoch")
	saved := int64(0) // the clock at the last save of something
	var receipts []driver.Request
	for range rapid.IntRange(1, 25).Draw(t, "calls") {
		l := rapid.SampledFrom(kinds).Draw(t, "log")
		r := rule(t, l)
		if rapid.IntRange(0, 9).Draw(t, "clock") == 0 {
			now = max(now-logStep(l).Draw(t, "back"), 0)
		} else {
			now += logStep(l).Draw(t, "pause")
		}
		var requests []driver.Request
		for range rapid.SampledFrom([]int{1, 1, 1, 4}).Draw(t, "size") {
			if len(receipts) > 0 && rapid.IntRange(0, 2).Draw(t, "give back") == 0 {
				i := rapid.IntRange(0, len(receipts)-1).Draw(t, "which")
				requests = append(requests, receipts[i])
				if rapid.IntRange(0, 9).Draw(t, "again later") > 0 {
					receipts = slices.Delete(receipts, i, i+1)
				}
				continue
			}
			requests = append(requests, driver.Request{
				Cost:  logCost(l).Draw(t, "cost"),
				Bound: rapid.SampledFrom([]int64{0, driver.Ask, logStep(l).Draw(t, "bound"), r.Horizon(1)}).Draw(t, "bound"),
			})
		}
		text, until := s.stored()
		inGoAt := now
		if s.clientClock { // one that is behind is late: its now is that of the last save
			inGoAt = max(now, saved)
		}
		inGo := p.run(r, inGoAt, requests...)
		inLua := s.run(t, r, now, requests...)
		if !slices.Equal(inGo, inLua) {
			t.Fatalf("%+v asked %v at %d, where there was\n%sGo  %v\nLua %v", l, requests, now, text, inGo, inLua)
		}
		charged := false
		for i, request := range requests {
			if request.Cost < 0 || inLua[i].Wait >= 0 || l.CountDenied && request.Bound != driver.Ask {
				charged = true
			}
			if request.Cost > 0 && inLua[i].Wait >= 0 {
				receipts = append(receipts, driver.Request{Cost: -request.Cost, Receipt: inLua[i].Receipt})
			}
		}
		reset := inLua[len(inLua)-1].Reset
		back := now < saved && !s.clientClock
		after, untilAfter := s.stored()
		if !charged && !back && (text != after || expires && len(kinds) == 1 && until != untilAfter) {
			t.Fatalf("a denial wrote:\n%suntil %v, then\n%suntil %v", text, until, after, untilAfter)
		}
		if charged || back && reset > 0 {
			saved = inGoAt
		}
		if charged && reset == 0 {
			saved = 0
			if after != "" {
				t.Fatalf("a limiter that is as new leaves\n%s", after)
			}
		}
		if expires && charged && after != "" {
			ttl := untilAfter - time.Duration(time.Now().UnixMilli())*time.Millisecond - time.Hour
			if owed := time.Duration(reset) * time.Microsecond; ttl < owed-time.Second || ttl > owed+time.Second {
				t.Fatalf("TTL %v for a limiter that is as new after %v", ttl, owed)
			}
		}
	}
}

// A place is what the model remembers of a request: cost permits at a slot. An open one was given up in the middle of
// the queue.
type place struct {
	slot, cost int64
	open       bool
	refused    bool
}

// A model is the sliding log by its definition, with no thought of speed.
type model struct {
	limit, window int64
	queue         []place
}

// earliest is the slot of the next cost permits, and the place among the open ones, or -1.
func (m *model) earliest(now, cost int64) (slot int64, at int) {
	for i, p := range m.queue {
		if p.open && p.slot >= now && p.cost >= cost {
			return p.slot, i
		}
	}
	if n := len(m.queue); n > 0 {
		now = max(now, m.queue[n-1].slot)
	}
	candidates := []int64{now}
	for _, p := range m.queue {
		candidates = append(candidates, max(now, p.slot+m.window))
	}
	slices.Sort(candidates)
	for _, slot = range candidates {
		sum := cost
		for _, p := range m.queue {
			if p.slot > slot-m.window {
				sum += p.cost
			}
		}
		if sum <= m.limit {
			break
		}
	}
	return slot, -1
}

func (m *model) take(slot, cost int64, at int) {
	if at < 0 {
		m.queue = append(m.queue, place{slot: slot, cost: cost})
		return
	}
	m.queue[at].cost -= cost
	m.queue = slices.Insert(m.queue, at, place{slot: slot, cost: cost})
	if m.queue[at+1].cost == 0 {
		m.queue = slices.Delete(m.queue, at+1, at+2)
	}
}

// cancel gives up the first place like the one given, and says how many permits can be taken again.
func (m *model) cancel(now, slot, cost int64) (returned int64) {
	n := len(m.queue)
	switch given := (place{slot: slot, cost: cost}); {
	case m.queue[n-1] == given:
		for m.queue = m.queue[:n-1]; len(m.queue) > 0; m.queue = m.queue[:len(m.queue)-1] {
			if tail := m.queue[len(m.queue)-1]; !tail.open || tail.slot < now {
				break
			}
		}
		return cost
	case slot >= now:
		m.queue[slices.Index(m.queue, given)].open = true
		return cost
	}
	return 0
}

// The oracle: whatever is cancelled, no window holds more than the limit, and each answer is that of the definition.
func TestNoHistoryOverfillsAWindowOfTheSlidingLog(t *testing.T) {
	check(t, func(t *rapid.T) {
		l := logs().Filter(func(l algos.SlidingLog) bool { return l.Limit < 1<<20 }).Draw(t, "log")
		r := rule(t, l)
		p := process{r.NewState()}
		m := model{limit: int64(l.Limit), window: l.Window.Microseconds()}
		now := int64(epoch)
		var uses []use
		for range rapid.IntRange(1, 40).Draw(t, "length") {
			now += logStep(l).Draw(t, "pause")
			held := slices.DeleteFunc(indices(uses), func(i int) bool { return uses[i].cancelled || uses[i].slot+m.window <= now })
			if len(held) > 0 && rapid.IntRange(0, 2).Draw(t, "cancel") == 0 {
				u := &uses[rapid.SampledFrom(held).Draw(t, "which")]
				// The model cancels the same one only if no other is like it, or all of them do the same.
				if slices.ContainsFunc(uses, func(o use) bool { return o != *u && !o.cancelled && o.slot == u.slot && o.cost == u.cost }) {
					continue
				}
				back := p.run(r, now, driver.Request{Cost: -u.cost, Receipt: u.receipt})[0]
				if want := m.cancel(now, u.slot, u.cost); back.Wait != want {
					t.Fatalf("%d permits of %d came back; want %d", back.Wait, u.cost, want)
				}
				u.cancelled = true
				continue
			}
			cost := logCost(l).Draw(t, "cost")
			bound := rapid.SampledFrom([]int64{0, logStep(l).Draw(t, "bound"), r.Horizon(1)}).Draw(t, "bound")
			slot, at := m.earliest(now, cost)
			reply := p.ask(r, now, cost, bound)
			switch {
			case slot-now <= bound:
				if reply.Wait != slot-now {
					t.Fatalf("slot in %d µs; the first that fits is in %d µs", reply.Wait, slot-now)
				}
				m.take(slot, cost, at)
				uses = append(uses, use{slot: slot, cost: cost, receipt: reply.Receipt})
			case l.CountDenied:
				m.queue = append(m.queue, place{slot: max(now, m.queue[len(m.queue)-1].slot), cost: cost, refused: true})
				if slot, _ = m.earliest(now, cost); reply.Wait != now+bound-slot {
					t.Fatalf("waits %d µs; with the refused request in the log it is %d", reply.Wait, now+bound-slot)
				}
			default:
				if reply.Wait != now+bound-slot {
					t.Fatalf("waits %d µs; the definition says %d", reply.Wait, now+bound-slot)
				}
				exactRetry(t, &p, r, now, cost, bound, -reply.Wait)
			}
		}
		slices.SortFunc(uses, func(a, b use) int { return int(a.slot - b.slot) })
		for i, first := range uses {
			var sum int64
			for _, u := range uses[i:] {
				if !u.cancelled && u.slot < first.slot+m.window {
					sum += u.cost
				}
			}
			if !first.cancelled && sum > m.limit {
				t.Fatalf("%d permits within %v from %d on: %+v", sum, l.Window, first.slot, uses)
			}
		}
	})
}

func TestCancellingAllThatWaitLeavesNoTraceInTheLog(t *testing.T) {
	check(t, func(t *rapid.T) {
		l := logs().Draw(t, "log")
		l.CountDenied = false // a refusal is a trace
		r := rule(t, l)
		with, without := process{r.NewState()}, process{r.NewState()}
		now := int64(epoch)
		for range rapid.IntRange(0, 5).Draw(t, "before") { // both have the same past
			now += logStep(l).Draw(t, "pause")
			cost := logCost(l).Draw(t, "cost")
			with.ask(r, now, cost, 0)
			without.ask(r, now, cost, 0)
		}
		var waiting []use
		for range rapid.IntRange(1, 20).Draw(t, "waiters") {
			cost := logCost(l).Draw(t, "cost")
			reply := with.ask(r, now, cost, r.Horizon(1))
			if reply.Wait == 0 { // used at once, so it is part of both pasts
				without.ask(r, now, cost, 0)
			} else if reply.Wait > 0 {
				waiting = append(waiting, use{slot: now + reply.Wait, cost: cost, receipt: reply.Receipt})
			}
		}
		if len(waiting) > 0 { // some time passes, but no slot
			now += rapid.Int64Range(0, waiting[0].slot-now).Draw(t, "pause")
		}
		for _, u := range rapid.Permutation(waiting).Draw(t, "order") {
			with.run(r, now, driver.Request{Cost: -u.cost, Receipt: u.receipt})
		}
		if got, want := probe(&with, r, now), probe(&without, r, now); !slices.Equal(got, want) {
			t.Fatalf("after cancelling all:\n%v\nhad they never come:\n%v", got, want)
		}
	})
}

func TestACancelledSlotOfTheLogGoesToTheNextThatFits(t *testing.T) {
	check(t, func(t *rapid.T) {
		l := logs().Draw(t, "log")
		r := rule(t, l)
		p := process{r.NewState()}
		var uses []use
		for range rapid.IntRange(2, 20).Draw(t, "waiters") {
			cost := logCost(l).Draw(t, "cost")
			if reply := p.ask(r, epoch, cost, r.Horizon(1)); reply.Wait >= 0 {
				uses = append(uses, use{slot: epoch + reply.Wait, cost: cost, receipt: reply.Receipt})
			}
		}
		gone := rapid.SampledFrom(uses).Draw(t, "which")
		cancel := driver.Request{Cost: -gone.cost, Receipt: gone.receipt}
		if back := p.run(r, epoch, cancel)[0]; back.Wait != gone.cost {
			t.Fatalf("%d permits of %d came back", back.Wait, gone.cost)
		}
		cost := rapid.Int64Range(1, gone.cost).Draw(t, "cost")
		if reply := p.ask(r, epoch, cost, r.Horizon(1)); epoch+reply.Wait > gone.slot {
			t.Fatalf("the slot in %d µs was given up, the next request waits %d µs", gone.slot-epoch, reply.Wait)
		}
		if again := p.run(r, epoch, cancel)[0]; cost < gone.cost && again.Wait != 0 {
			t.Fatalf("giving back twice returned %d", again.Wait)
		}
	})
}

func TestTheLogAnswersABatchAsIfOneByOne(t *testing.T) {
	check(t, func(t *rapid.T) {
		l := logs().Draw(t, "log")
		r := rule(t, l)
		batched, single := process{r.NewState()}, process{r.NewState()}
		now := int64(epoch)
		var receipts []driver.Request
		for range 5 {
			now += logStep(l).Draw(t, "pause")
			var requests []driver.Request
			for range rapid.IntRange(1, 6).Draw(t, "size") {
				if len(receipts) > 0 && rapid.Bool().Draw(t, "give back") {
					i := rapid.IntRange(0, len(receipts)-1).Draw(t, "which")
					requests = append(requests, receipts[i])
					receipts = slices.Delete(receipts, i, i+1)
					continue
				}
				requests = append(requests, driver.Request{
					Cost:  logCost(l).Draw(t, "cost"),
					Bound: rapid.SampledFrom([]int64{0, driver.Ask, r.Horizon(1)}).Draw(t, "bound"),
				})
			}
			replies := batched.run(r, now, requests...)
			for i, request := range requests {
				if one := single.run(r, now, request)[0]; one != replies[i] {
					t.Fatalf("request %d of %v: in the batch %v, alone %v", i, requests, replies[i], one)
				}
				if request.Cost > 0 && replies[i].Wait >= 0 {
					receipts = append(receipts, driver.Request{Cost: -request.Cost, Receipt: replies[i].Receipt})
				}
			}
		}
	})
}
