package driver_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// warmUps draws limiters of all kinds, some too fast for a microsecond, some that no machine outlives.
func warmUps() *rapid.Generator[algos.WarmUp] {
	return rapid.Custom(func(t *rapid.T) algos.WarmUp {
		return algos.WarmUp{
			Rate: rapid.OneOf(rapid.SampledFrom([]int{1, 2, 5, 7, 10, 500, 7919, 1_000_000, 3_000_000}), rapid.IntRange(1, 100_000)).Draw(t, "rate"),
			Per:  rapid.SampledFrom([]time.Duration{time.Microsecond, 7 * time.Microsecond, time.Millisecond, time.Second, time.Second, time.Hour}).Draw(t, "per"),
			Period: rapid.OneOf(
				rapid.SampledFrom([]time.Duration{0, 0, time.Microsecond, 100 * time.Microsecond, time.Second, 4 * time.Second, time.Minute, 9000 * time.Hour}),
				rapid.Map(rapid.Int64Range(1, 1e8), func(us int64) time.Duration { return time.Duration(us) * time.Microsecond })).Draw(t, "period"),
			ColdFactor: rapid.SampledFrom([]int{0, 1, 2, 3, 4, 10, 100}).Draw(t, "cold factor"),
		}
	}).Filter(func(w algos.WarmUp) bool {
		_, err := w.Rule() // refused ones have a test of their own
		return err == nil
	})
}

// pauses draws a span of time that matters to the limiter: from nothing to several warm-up periods.
func pauses(w algos.WarmUp) *rapid.Generator[int64] {
	each := float64(w.Per.Microseconds()) / float64(w.Rate)
	return rapid.Custom(func(t *rapid.T) int64 {
		scale := rapid.SampledFrom([]float64{0, each, each, 3 * each, 30 * each, float64(w.Period.Microseconds()), 2 * second, 3}).Draw(t, "scale")
		return min(int64(scale*rapid.Float64Range(0, 1.1).Draw(t, "pause")), 1<<45)
	})
}

// costs draws permits: few, or as many as are stored and more.
func costs(r algos.Rule) *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(1, min(int64(r.Limit()), int64(r.Max())/2)*2))
}

func TestWarmUpGivesTheSameAnswersInLuaAndInGo(t *testing.T) {
	rdb := redistest.Start(t).Client()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		warmUpTwins(t, server{rdb: rdb, key: fmt.Sprint("warm:", run)}, true)
	})
}

func TestWarmUpGivesTheSameAnswersOnMiniredis(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		warmUpTwins(t, server{rdb: rdb, key: fmt.Sprint("warm:", run)}, false)
	})
}

func warmUpTwins(t *rapid.T, s server, expires bool) {
	kinds := rapid.SliceOfN(warmUps(), 1, 3).Draw(t, "limiters")
	p := process{rule(t, kinds[0]).NewState()}
	now := rapid.SampledFrom([]int64{epoch, 1, 1<<53 - 1<<48}).Draw(t, "epoch")
	var receipts []driver.Request
	var params []int64 // that the state is counted by
	for range rapid.IntRange(1, 25).Draw(t, "calls") {
		w := rapid.SampledFrom(kinds).Draw(t, "limiter")
		r := rule(t, w)
		back := rapid.IntRange(0, 9).Draw(t, "clock") == 0 && now > epoch
		if pause := pauses(w).Draw(t, "pause"); back {
			now -= pause
		} else {
			now += pause
		}
		var requests []driver.Request
		for range rapid.SampledFrom([]int{1, 1, 1, 4}).Draw(t, "size") {
			if n := len(receipts); n > 0 && rapid.IntRange(0, 2).Draw(t, "give back") == 0 {
				i := rapid.OneOf(rapid.Just(n-1), rapid.IntRange(0, n-1)).Draw(t, "which")
				requests = append(requests, receipts[i])
				if rapid.IntRange(0, 9).Draw(t, "again later") > 0 {
					receipts = slices.Delete(receipts, i, i+1)
				}
				continue
			}
			requests = append(requests, driver.Request{
				Cost:  costs(r).Draw(t, "cost"),
				Bound: rapid.SampledFrom([]int64{0, driver.Ask, pauses(w).Draw(t, "bound"), r.Horizon(1)}).Draw(t, "bound"),
			})
		}
		bytes, until := s.stored()
		before := params
		params, _ = r.Params(now)
		inGo := p.run(r, now, requests...)
		asked := time.Now()
		inLua := s.run(t, r, now, requests...)
		if !slices.Equal(inGo, inLua) {
			t.Fatalf("%+v asked %v at %d:\nGo  %v\nLua %v", w, requests, now, inGo, inLua)
		}
		charged := false
		for i, request := range requests {
			charged = charged || request.Cost < 0 || inLua[i].Wait >= 0
			if request.Cost > 0 && inLua[i].Wait >= 0 {
				receipts = append(receipts, driver.Request{Cost: -request.Cost, Receipt: inLua[i].Receipt})
			}
		}
		bytesAfter, untilAfter := s.stored()
		if !charged && !back && slices.Equal(before, params) && (bytes != bytesAfter || expires && until != untilAfter) {
			t.Fatalf("a denial wrote: %s until %v, then %s until %v", bytes, until, bytesAfter, untilAfter)
		}
		if strings.ContainsAny(bytesAfter, "en") {
			t.Fatalf("%q was stored", bytesAfter)
		}
		if expires && charged && bytesAfter != "" {
			// The hour is that of the server helper, which the key lasts longer.
			reset := time.Hour + time.Duration(inLua[len(inLua)-1].Reset)*time.Microsecond
			least, most := asked.Add(reset), time.Now().Add(reset+3*time.Millisecond)
			if expiry := time.UnixMilli(untilAfter.Milliseconds()); expiry.Before(least) || expiry.After(most) {
				t.Fatalf("the key expires at %v, not from %v to %v", expiry, least, most)
			}
		}
	}
}

// guava is Guava's limiter as its source documents it, in microseconds and permits, and with nothing rounded.
type guava struct {
	stable, cold, threshold, most, coolDown float64
	bursty                                  bool
	stored, next                            float64
}

func newGuava(w algos.WarmUp) *guava {
	g := &guava{stable: float64(w.Per.Microseconds()) / float64(w.Rate), bursty: w.Period == 0}
	if g.bursty {
		g.most, g.coolDown = 1e6/g.stable, g.stable
	} else {
		factor, period := float64(w.ColdFactor), float64(w.Period.Microseconds())
		if factor == 0 {
			factor = 3
		}
		g.cold = g.stable * factor
		g.threshold = 0.5 * period / g.stable
		g.most = g.threshold + 2*period/(g.stable+g.cold)
		g.coolDown = period / g.most
	}
	g.stored = g.most
	return g
}

// reserve is reserveEarliestAvailable. Who comes within a microsecond of the slot, rounded as it is, is in time.
func (g *guava) reserve(now, permits float64) (slot float64) {
	if now >= g.next+1 {
		g.stored = min(g.most, g.stored+(now-g.next)/g.coolDown)
		g.next = now
	}
	slot = g.next
	fromStored := min(permits, g.stored)
	if !g.bursty {
		g.next += g.permitsToTime(fromStored)
	}
	g.next += (permits - fromStored) * g.stable
	g.stored -= fromStored
	return slot
}

// change is setRate, at now, to a limiter with other parameters.
func (g *guava) change(now float64, to *guava) {
	if now >= g.next+1 {
		g.stored = min(g.most, g.stored+(now-g.next)/g.coolDown)
		g.next = now
	}
	to.stored, to.next = g.stored/g.most*to.most, g.next
	*g = *to
}

// permitsToTime is storedPermitsToWaitTime: how long some of the stored permits take, warm ones at the stable interval
// and those above the threshold at one that climbs to the cold interval.
func (g *guava) permitsToTime(permits float64) float64 {
	slope := (g.cold - g.stable) / (g.most - g.threshold)
	above := max(g.stored-g.threshold, 0)
	coldOnes := min(above, permits)
	first, last := g.stable+slope*above, g.stable+slope*(above-coldOnes)
	return coldOnes*(first+last)/2 + (permits-coldOnes)*g.stable
}

func TestNoSlotIsEarlierThanByGuavasLaw(t *testing.T) {
	check(t, func(t *rapid.T) {
		w := warmUps().Draw(t, "limiter")
		r := rule(t, w)
		p, law := process{r.NewState()}, newGuava(w)
		params, _ := r.Params(epoch)
		unit := 1 / float64(params[0])
		// What a microsecond of idling, more or less, makes of the time that permits take.
		factor := float64(params[3])
		weight := 1 + (factor-1)*(factor+5)/(2*(factor+1))
		now, late, early := int64(0), 1.0, 0.0
		for range rapid.IntRange(1, 40).Draw(t, "length") {
			if next := int64(math.Ceil(law.next)); next > now && rapid.Bool().Draw(t, "at the slot") {
				now = next
			} else {
				now += pauses(w).Draw(t, "pause")
			}
			if float64(now) < law.next && law.next-float64(now) > float64(r.Horizon(1)) {
				return
			}
			cost := costs(r).Draw(t, "cost")
			late += 3 * unit
			switch idle := float64(now) - law.next; {
			case idle > 1-early-1e-3 && idle < late+1e-3:
				early += 2 * weight // by what is rounded the two may disagree on whether this is to idle
				late += 2 * weight
			case idle >= 1:
				// What is stored is rounded up, by the time of half a unit at most where a permit is slowest. It is used up
				// as much later, and the next time to idle is shorter.
				early += unit / 2 * weight
			}
			slot := max(law.reserve(float64(now), float64(cost)), float64(now))
			reply := p.ask(r, epoch+now, cost, r.Horizon(cost))
			if reply.Wait < 0 {
				return
			}
			got := float64(now + reply.Wait)
			float := slot*1e-13*weight + float64(params[2])*1e-15 + 1e-6 // what doubles cannot tell apart
			if got < slot-early-float || got > slot+late+float {
				t.Fatalf("slot at %f, by Guava's law %f (-%f, +%f)", got, slot, early, late)
			}
		}
	})
}

func TestCancellingAWarmUpsQueueFromItsEndLeavesNoTrace(t *testing.T) {
	check(t, func(t *rapid.T) {
		w := warmUps().Draw(t, "limiter")
		r := rule(t, w)
		with, without := process{r.NewState()}, process{r.NewState()}
		now := int64(epoch)
		for range rapid.IntRange(0, 5).Draw(t, "before") { // both have the same past
			now += pauses(w).Draw(t, "pause")
			request := driver.Request{Cost: costs(r).Draw(t, "cost"), Bound: rapid.SampledFrom([]int64{0, r.Horizon(1)}).Draw(t, "bound")}
			with.run(r, now, request)
			without.run(r, now, request)
		}
		now += pauses(w).Draw(t, "pause")
		var queue []driver.Request
		var first int64 // until its slot
		for range rapid.IntRange(1, 9).Draw(t, "waiters") {
			cost := costs(r).Draw(t, "cost")
			if reply := with.ask(r, now, cost, r.Horizon(1)); reply.Wait >= 0 {
				if len(queue) == 0 {
					first = reply.Wait
				}
				queue = append(queue, driver.Request{Cost: -cost, Receipt: reply.Receipt})
			}
		}
		if len(queue) == 0 {
			return
		}
		now += rapid.Int64Range(0, first).Draw(t, "pause") // some time passes, but no slot
		for _, request := range slices.Backward(queue) {
			if back := with.run(r, now, request)[0]; back.Wait != -request.Cost {
				t.Fatalf("%d permits of %d came back", back.Wait, -request.Cost)
			}
			if again := with.run(r, now, request)[0]; again.Wait != 0 {
				t.Fatalf("giving back twice returned %d", again.Wait)
			}
		}
		for range 5 {
			request := driver.Request{Cost: costs(r).Draw(t, "cost"), Bound: r.Horizon(1)}
			got, want := with.run(r, now, request)[0], without.run(r, now, request)[0]
			got.Receipt, want.Receipt = algos.Receipt{}, algos.Receipt{}
			if got != want {
				t.Fatalf("after cancelling all: %v, had they never come: %v", got, want)
			}
			now += pauses(w).Draw(t, "pause")
		}
	})
}

// Guava's setRate, for the other parameters too: the next slot stays where it is, what is stored stays in proportion,
// and receipts from before find nothing, even where the new count has come to their number.
func TestChangingAWarmUpKeepsWhatIsStoredInProportion(t *testing.T) {
	rdb := redistest.Start(t).Client()
	kinds := []algos.WarmUp{
		{Rate: 2, Per: time.Second, Period: 4 * time.Second},
		{Rate: 3, Per: time.Second, Period: 4 * time.Second},
		{Rate: 2, Per: time.Second, Period: 9 * time.Second},
		{Rate: 2, Per: time.Second, Period: 4 * time.Second, ColdFactor: 10},
		{Rate: 5, Per: time.Second},
	}
	for i, from := range kinds {
		for j, to := range kinds {
			for _, pause := range []int64{0, second / 3, 2 * second} {
				before, after := rule(t, from), rule(t, to)
				u, law := newUser(before, rdb, fmt.Sprint("change:", i, j, pause)), newGuava(from)
				first := u.run(t, before, driver.Request{Cost: 3})
				law.reserve(0, 3)
				u.now += pause
				bytes, _ := u.stored()
				u.free(t, after) // a refusal
				if bytesAfter, _ := u.stored(); i != j && first.Reset > pause && bytes == bytesAfter {
					t.Errorf("%+v to %+v: the change was not kept", from, to)
				}
				law.change(float64(u.now-epoch), newGuava(to))
				for range 5 {
					got := float64(u.now - epoch + u.free(t, after))
					want := max(law.reserve(float64(u.now-epoch), 1), float64(u.now-epoch))
					if got < want-1e-3 || got > want+10 {
						t.Errorf("%+v to %+v: slot at %.0f, not %f", from, to, got, want)
					}
					u.run(t, after, driver.Request{Cost: 1, Bound: after.Horizon(1)})
					old := u.run(t, after, driver.Request{Cost: -1, Receipt: first.Receipt})
					if old.Wait != 0 && i != j {
						t.Errorf("%+v to %+v: %d permits came back from before", from, to, old.Wait)
					}
				}
			}
		}
	}
}

// Only the last that was taken comes back: a place before it may not, for the one behind it is still somebody's. When
// the clock goes back the queue goes with it, and after a change of parameters nothing comes back.
func TestAPlaceInTheMiddleOfAWarmUpDrains(t *testing.T) {
	every := func(s time.Duration) algos.Rule { return rule(t, algos.WarmUp{Rate: 1, Per: s * time.Second}) }
	for _, test := range []struct {
		name  string
		after algos.Rule
		later int64 // µs
		tail  int64 // permits that come back of the last place
	}{
		{"nothing happened", every(1), 0, 1},
		{"the rate is half", every(2), 0, 0},
		{"the clock went back by one place", every(1), -1 * second, 1},
		{"the clock went back by two places", every(1), -2 * second, 1},
	} {
		p := process{every(1).NewState()}
		var places []driver.Request
		for range 6 {
			reply := p.ask(every(1), epoch, 1, 10*second)
			places = append(places, driver.Request{Cost: -1, Receipt: reply.Receipt})
		}
		now := epoch + test.later
		if owed := p.ask(test.after, now, 1, driver.Ask).Wait; owed != driver.Ask-5*second {
			t.Errorf("%s: %d µs are owed", test.name, driver.Ask-owed)
		}
		for i, place := range places[:5] {
			if back := p.run(test.after, now, place)[0]; back.Wait != 0 {
				t.Errorf("%s: place %d came back", test.name, i)
			}
		}
		if back := p.run(test.after, now, places[5])[0]; back.Wait != test.tail {
			t.Errorf("%s: %d permits of the last place came back", test.name, back.Wait)
		}
		if owed := p.ask(test.after, now, 1, driver.Ask).Wait; owed != driver.Ask-(5-test.tail)*second {
			t.Errorf("%s: then %d µs are owed", test.name, driver.Ask-owed)
		}
	}
}

func TestAWarmUpAdmitsExactlyAtRetryAfterAndIsAsNewExactlyAtReset(t *testing.T) {
	check(t, func(t *rapid.T) {
		kinds := rapid.SliceOfN(warmUps(), 1, 2).Draw(t, "limiters")
		p := process{rule(t, kinds[0]).NewState()}
		now, last := int64(epoch), int64(0)
		for range rapid.IntRange(1, 20).Draw(t, "length") {
			w := rapid.SampledFrom(kinds).Draw(t, "limiter")
			r := rule(t, w)
			now += pauses(w).Draw(t, "pause")
			cost := costs(r).Draw(t, "cost")
			bound := rapid.SampledFrom([]int64{0, pauses(w).Draw(t, "bound"), r.Horizon(1)}).Draw(t, "bound")
			reply := p.ask(r, now, cost, bound)
			if reply.Wait < 0 {
				exactRetry(t, &p, r, now, cost, bound, -reply.Wait)
				continue
			}
			if now+reply.Wait < last {
				t.Fatalf("a later request overtakes: %d after %d", now+reply.Wait, last)
			}
			last = now + reply.Wait
			if early := p.ask(r, now+reply.Reset-1, 1, driver.Ask); early.Reset != 1 {
				t.Fatalf("1 µs before it is as new: %v", early)
			}
			fresh, asNew := process{r.NewState()}, process{p.state}
			if got, want := asNew.ask(r, now+reply.Reset, 1, driver.Ask), fresh.ask(r, now+reply.Reset, 1, driver.Ask); got != want || got.Reset != 0 {
				t.Fatalf("as new: %v, a new one: %v", got, want)
			}
		}
	})
}
