package driver_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// brandur/redis-cell #54 refuses after a raise. Here what was used stays used, in permits, and the rest is the caller's.
func TestChangingTheParametersKeepsWhatWasTaken(t *testing.T) {
	rdb := redistest.Start(t).Client()
	perSecond := func(rate, burst int) algos.TokenBucket {
		return algos.TokenBucket{Rate: rate, Per: time.Second, Burst: burst}
	}
	for _, test := range []struct {
		name          string
		before, after algos.TokenBucket
		take          int64
		remaining     int64
		reset         int64 // µs
	}{
		{"a raised rate never refuses", algos.TokenBucket{Rate: 10, Per: 20 * time.Second, Burst: 16},
			algos.TokenBucket{Rate: 1000, Per: 20 * time.Second, Burst: 16}, 4, 12, 80_000},
		{"a lowered rate keeps the debt in permits", perSecond(10, 10), perSecond(5, 10), 4, 6, 800_000},
		{"a raised burst is there at once", perSecond(10, 10), perSecond(10, 20), 3, 17, 300_000},
		{"a cut burst keeps what was used", perSecond(10, 10), perSecond(10, 5), 3, 2, 300_000},
		{"a burst cut below what was used leaves none", perSecond(10, 10), perSecond(10, 5), 8, 0, 800_000},
		{"from a million a second to one a year", perSecond(1_000_000, 1000),
			algos.TokenBucket{Rate: 1, Per: 365 * 24 * time.Hour, Burst: 1}, 1000, 0, 71 * 365 * 24 * 3600 * second},
	} {
		t.Run(test.name, func(t *testing.T) {
			before, after := rule(t, test.before), rule(t, test.after)
			s := server{rdb: rdb, key: test.name}
			p := process{before.NewState()}
			take, ask := driver.Request{Cost: test.take}, driver.Request{Cost: 1, Bound: driver.Ask}
			s.run(t, before, epoch, take)
			p.run(before, epoch, take)
			inGo, inLua := p.run(after, epoch, ask)[0], s.run(t, after, epoch, ask)[0]
			if inGo != inLua {
				t.Errorf("Go %v, Lua %v", inGo, inLua)
			}
			if inLua.Remaining != test.remaining || inLua.Reset != test.reset {
				t.Errorf("remaining %d, reset %d", inLua.Remaining, inLua.Reset)
			}
		})
	}
}

// The bound under changing rates, of requests that go now: whatever the rate and burst were when, no stretch of time
// holds more than the largest burst and what the rates brought. A rate holds from the first call that has it.
func TestNoChangeOfParametersOverfillsTheBucket(t *testing.T) {
	check(t, func(t *rapid.T) {
		kinds := rapid.SliceOfN(buckets(), 2, 3).Draw(t, "buckets")
		burst := 0
		for _, b := range kinds {
			burst = max(burst, b.Burst)
		}
		for _, b := range kinds {
			if owed := new(big.Rat).Mul(permitTime(b), big.NewRat(int64(burst), 1)); owed.Cmp(big.NewRat(1<<51, 1)) > 0 {
				t.Skip("no limiter owes more than 71 years")
			}
		}
		// At the fastest rate: a microsecond as slots are rounded up, and two as the line is where the rate changes.
		rounding := new(big.Rat)
		for _, b := range kinds {
			if three := new(big.Rat).Quo(big.NewRat(3, 1), permitTime(b)); three.Cmp(rounding) > 0 {
				rounding = three
			}
		}
		p := process{rule(t, kinds[0]).NewState()}
		now := int64(epoch)
		brought := new(big.Rat) // permits that the rates have brought so far
		var last algos.TokenBucket
		type grant struct {
			cost    int64
			brought *big.Rat
		}
		var grants []grant
		for range rapid.IntRange(1, 30).Draw(t, "length") {
			b := rapid.SampledFrom(kinds).Draw(t, "bucket")
			r := rule(t, b)
			pause := steps(b).Draw(t, "pause")
			if last != (algos.TokenBucket{}) {
				brought = new(big.Rat).Add(brought, new(big.Rat).Quo(big.NewRat(pause, 1), permitTime(last)))
			}
			now += pause
			last = b
			cost := int64(rapid.IntRange(1, b.Burst).Draw(t, "cost"))
			if p.ask(r, now, cost, 0).Wait == 0 {
				grants = append(grants, grant{cost, brought})
			}
		}
		for i := range grants {
			var sum int64
			for _, g := range grants[i:] {
				sum += g.cost
				most := new(big.Rat).Sub(g.brought, grants[i].brought)
				most.Add(most, big.NewRat(int64(burst), 1))
				most.Add(most, rounding)
				if big.NewRat(sum, 1).Cmp(most) > 0 {
					t.Fatalf("%d granted where %s fit", sum, most.FloatString(3))
				}
			}
		}
	})
}

// A changed rate counts from the first call that has it, be it refused: what it says holds.
func TestRetryAfterIsExactAfterAChangeOfParameters(t *testing.T) {
	check(t, func(t *rapid.T) {
		before, after := buckets().Draw(t, "before"), buckets().Draw(t, "after")
		old, r := rule(t, before), rule(t, after)
		p := process{old.NewState()}
		now := int64(epoch)
		taken := int64(rapid.IntRange(1, before.Burst).Draw(t, "taken"))
		p.ask(old, now, taken, 0)
		pause := steps(before).Draw(t, "pause")
		now += pause
		cost := int64(rapid.IntRange(1, after.Burst).Draw(t, "cost"))

		// What is owed in permits, exactly, and how long the new rate takes to make room for cost.
		owed := new(big.Rat).Sub(big.NewRat(taken, 1), new(big.Rat).Quo(big.NewRat(pause, 1), permitTime(before)))
		if owed.Sign() < 0 {
			owed.SetInt64(0)
		}
		wait := owed.Add(owed, big.NewRat(cost-int64(after.Burst), 1))
		wait.Mul(wait, permitTime(after))
		if wait.Cmp(big.NewRat(1<<44, 1)) > 0 {
			t.Skip("further than a bucket owes")
		}
		least := int64(0)
		if wait.Sign() > 0 {
			least = new(big.Int).Quo(new(big.Int).Add(wait.Num(), new(big.Int).Sub(wait.Denom(), big.NewInt(1))), wait.Denom()).Int64()
		}
		reply := p.ask(r, now, cost, driver.Ask)
		if got := -reply.Wait - 1; got < least || got > least+2 {
			t.Fatalf("%d µs to wait, and %d at least", got, least)
		}
		if reply = p.ask(r, now, cost, 0); reply.Wait < 0 {
			if early := p.ask(r, now-reply.Wait-1, cost, 0); early.Wait >= 0 {
				t.Fatal("admitted before retry-after")
			}
			if late := p.ask(r, now-reply.Wait, cost, 0); late.Wait != 0 {
				t.Fatalf("refused at retry-after: %d", late.Wait)
			}
		}
	})
}

// Processes with different parameters that take turns on one key, as during a deploy: what each change rounds up is not
// added up, so that the limiter drains however often they are refused.
func TestTakingTurnsWithDifferentParametersAddsNoDebt(t *testing.T) {
	check(t, func(t *rapid.T) {
		one, other := buckets().Draw(t, "one"), buckets().Draw(t, "other")
		a, b := rule(t, one), rule(t, other)
		p := process{a.NewState()}
		cost := int64(one.Burst)
		p.ask(a, epoch, cost, 0)
		now := epoch + min(steps(one).Draw(t, "pause"), rule(t, one).Horizon(1))
		p.ask(b, now, 1, driver.Ask)
		first := p.ask(a, now, cost, driver.Ask)
		for range 500 {
			p.ask(b, now, 1, driver.Ask)
			p.ask(a, now, cost, driver.Ask)
		}
		// A microsecond or two, and what 2^-40 µs at the other rate is worth at this one, each time.
		mine, _ := permitTime(one).Float64()
		others, _ := permitTime(other).Float64()
		most := int64(2 + 1000*(mine/others+mine/1000)/(1<<40))
		if last := p.ask(a, now, cost, driver.Ask); last.Wait < first.Wait-most || last.Wait > first.Wait+most {
			t.Fatalf("%d µs to wait; %d after a thousand turns", -first.Wait-1, -last.Wait-1)
		}
	})
}
