package driver_test

import (
	"math/big"
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
	replies := make([]driver.Reply, len(requests))
	driver.Run(p.state, rule, now, requests, replies)
	return replies
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

// buckets draws token buckets of all kinds: everyday ones, and rates that do not divide a microsecond.
func buckets() *rapid.Generator[algos.TokenBucket] {
	return rapid.Custom(func(t *rapid.T) algos.TokenBucket {
		return algos.TokenBucket{
			Rate: rapid.OneOf(
				rapid.SampledFrom([]int{1, 5, 10, 500, 1000, 1_000_000, 10_000_000}),
				rapid.SampledFrom([]int{3, 7, 13, 17, 700, 7919, 9_999_991}),
				rapid.IntRange(1, 100_000)).Draw(t, "rate"),
			Per: rapid.OneOf(
				rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, time.Second, time.Minute, 30 * 24 * time.Hour}),
				rapid.Map(rapid.Int64Range(1, 1e9), func(us int64) time.Duration { return time.Duration(us) * time.Microsecond })).Draw(t, "per"),
			Burst: rapid.OneOf(rapid.IntRange(1, 8), rapid.IntRange(1, 1000)).Draw(t, "burst"),
		}
	}).Filter(func(b algos.TokenBucket) bool {
		_, err := b.Rule() // refused ones have tests of their own
		return err == nil
	})
}

// permitTime is what one permit of the bucket takes, exactly.
func permitTime(b algos.TokenBucket) *big.Rat { return big.NewRat(b.Per.Microseconds(), int64(b.Rate)) }

// steps draws a span of time that matters to the bucket: from nothing to several bursts.
func steps(b algos.TokenBucket) *rapid.Generator[int64] {
	one, _ := permitTime(b).Float64()
	return rapid.Custom(func(t *rapid.T) int64 {
		scale := rapid.SampledFrom([]float64{0, 0.3, 1, 1, 3, float64(b.Burst), 3 * float64(b.Burst)}).Draw(t, "scale")
		return min(int64(one*scale*rapid.Float64Range(0, 1).Draw(t, "step")), 1<<44)
	})
}

// A use is permits at their slot, as a witness outside the limiter would see them.
type use struct {
	slot, cost int64
	cancelled  bool
	receipt    algos.Receipt
}

// overfull replays uses against the definition of a token bucket, by brute force: over every stretch between two
// uses, no more than the burst and what the rate brings, with one microsecond for slots that are rounded up.
func overfull(b algos.TokenBucket, uses []use) bool {
	used := slices.DeleteFunc(slices.Clone(uses), func(u use) bool { return u.cancelled })
	slices.SortStableFunc(used, func(a, b use) int { return int(a.slot - b.slot) })
	perMicro := new(big.Rat).Inv(permitTime(b))
	for i := range used {
		var sum int64
		for j := i; j < len(used); j++ {
			sum += used[j].cost
			most := new(big.Rat).Mul(perMicro, big.NewRat(used[j].slot-used[i].slot+1, 1))
			most.Add(most, big.NewRat(int64(b.Burst), 1))
			if big.NewRat(sum, 1).Cmp(most) > 0 {
				return true
			}
		}
	}
	return false
}

const epoch = 1_795_000_000_000_000

// A history draws requests, cancels and the passing of time, and checks each answer on the way.
func TestNoHistoryOverfillsTheBucket(t *testing.T) {
	check(t, func(t *rapid.T) {
		b := buckets().Draw(t, "bucket")
		r := rule(t, b)
		p := process{r.NewState()}
		step := steps(b)
		now := int64(epoch)
		var uses []use
		for range rapid.IntRange(1, 40).Draw(t, "length") {
			now += step.Draw(t, "pause")
			waiting := slices.DeleteFunc(indices(uses), func(i int) bool { return uses[i].cancelled || uses[i].slot < now })
			if len(waiting) > 0 && rapid.IntRange(0, 2).Draw(t, "cancel") == 0 {
				u := &uses[rapid.SampledFrom(waiting).Draw(t, "which")]
				p.run(r, now, driver.Request{Cost: -u.cost, Receipt: u.receipt})
				u.cancelled = true
				continue
			}
			cost := int64(rapid.IntRange(1, b.Burst).Draw(t, "cost"))
			bound := rapid.SampledFrom([]int64{0, step.Draw(t, "bound"), r.Horizon(1)}).Draw(t, "bound")
			reply := p.ask(r, now, cost, bound)
			if reply.Wait < 0 {
				exactRetry(t, &p, r, now, cost, bound, -reply.Wait)
				continue
			}
			if reply.Wait > bound {
				t.Fatalf("slot in %d µs, beyond the bound of %d", reply.Wait, bound)
			}
			uses = append(uses, use{slot: now + reply.Wait, cost: cost, receipt: reply.Receipt})
		}
		if overfull(b, uses) {
			t.Fatalf("over the limit: %+v", uses)
		}
	})
}

func indices(uses []use) []int {
	all := make([]int, len(uses))
	for i := range all {
		all[i] = i
	}
	return all
}

// exactRetry checks P3 without taking anything: with a bound one shorter, the same request a microsecond before its
// time and at its time are refused by two and by one.
func exactRetry(t *rapid.T, p *process, r algos.Rule, now, cost, bound, retry int64) {
	if retry < 1 {
		t.Fatalf("refused with a retry-after of %d µs", retry)
	}
	if early := p.ask(r, now+retry-1, cost, bound); early.Wait != -1 {
		t.Fatalf("1 µs before retry-after: %d", early.Wait)
	}
	if onTime := p.ask(r, now+retry, cost, bound-1); onTime.Wait != -1 {
		t.Fatalf("at retry-after, with a bound 1 µs too near: %d", onTime.Wait)
	}
	if again := p.ask(r, now, cost, bound); again.Wait != -retry {
		t.Fatalf("a refusal changed the next one: %d, then %d", -retry, again.Wait)
	}
}

func TestARequestIsAdmittedExactlyAtRetryAfter(t *testing.T) {
	check(t, func(t *rapid.T) {
		b := buckets().Draw(t, "bucket")
		r := rule(t, b)
		p := process{r.NewState()}
		now := int64(epoch)
		for range 30 {
			now += steps(b).Draw(t, "pause")
			cost := int64(rapid.IntRange(1, b.Burst).Draw(t, "cost"))
			reply := p.ask(r, now, cost, 0)
			if reply.Wait < 0 {
				if early := p.ask(r, now-reply.Wait-1, cost, 0); early.Wait >= 0 {
					t.Fatal("admitted before retry-after")
				}
				now -= reply.Wait
				if late := p.ask(r, now, cost, 0); late.Wait != 0 {
					t.Fatalf("refused at retry-after: %d", late.Wait)
				}
			}
		}
	})
}

func TestWithoutCancelsSlotsGoOutInOrder(t *testing.T) {
	check(t, func(t *rapid.T) {
		b := buckets().Draw(t, "bucket")
		r := rule(t, b)
		p := process{r.NewState()}
		now, last := int64(epoch), int64(0)
		for range 30 {
			now += steps(b).Draw(t, "pause")
			reply := p.ask(r, now, int64(rapid.IntRange(1, b.Burst).Draw(t, "cost")), r.Horizon(1))
			if reply.Wait >= 0 {
				if now+reply.Wait < last {
					t.Fatalf("a later request overtakes: %d after %d", now+reply.Wait, last)
				}
				last = now + reply.Wait
			}
		}
	})
}

// probe is what a limiter answers to every question that takes nothing.
func probe(p *process, r algos.Rule, now int64) []driver.Reply {
	var all []driver.Reply
	for cost := int64(1); cost <= min(int64(r.Max()), 12); cost++ {
		for _, later := range []int64{0, 1, 1000, 1_000_000} {
			all = append(all, p.ask(r, now+later, cost, driver.Ask))
		}
	}
	return all
}

func TestCancellingAllThatWaitLeavesNoTrace(t *testing.T) {
	check(t, func(t *rapid.T) {
		b := buckets().Draw(t, "bucket")
		r := rule(t, b)
		with, without := process{r.NewState()}, process{r.NewState()}
		now := int64(epoch)
		for range rapid.IntRange(0, 5).Draw(t, "before") { // both have the same past
			now += steps(b).Draw(t, "pause")
			cost := int64(rapid.IntRange(1, b.Burst).Draw(t, "cost"))
			with.ask(r, now, cost, 0)
			without.ask(r, now, cost, 0)
		}
		var waiting []use
		for range rapid.IntRange(1, 20).Draw(t, "waiters") {
			cost := int64(rapid.IntRange(1, b.Burst).Draw(t, "cost"))
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

func TestACancelledSlotGoesToTheNextThatFits(t *testing.T) {
	check(t, func(t *rapid.T) {
		b := buckets().Draw(t, "bucket")
		r := rule(t, b)
		p := process{r.NewState()}
		now := int64(epoch)
		var uses []use
		for range rapid.IntRange(2, 20).Draw(t, "waiters") {
			cost := int64(rapid.IntRange(1, b.Burst).Draw(t, "cost"))
			if reply := p.ask(r, now, cost, r.Horizon(1)); reply.Wait >= 0 {
				uses = append(uses, use{slot: now + reply.Wait, cost: cost, receipt: reply.Receipt})
			}
		}
		gone := rapid.SampledFrom(uses).Draw(t, "which")
		if back := p.run(r, now, driver.Request{Cost: -gone.cost, Receipt: gone.receipt})[0]; back.Wait != gone.cost {
			t.Fatalf("%d permits of %d came back", back.Wait, gone.cost)
		}
		cost := int64(rapid.IntRange(1, int(gone.cost)).Draw(t, "cost"))
		if reply := p.ask(r, now, cost, r.Horizon(1)); now+reply.Wait > gone.slot {
			t.Fatalf("the slot in %d µs was given up, the next request waits %d µs", gone.slot-now, reply.Wait)
		}
		if again := p.run(r, now, driver.Request{Cost: -gone.cost, Receipt: gone.receipt})[0]; cost < gone.cost && again.Wait != 0 && gone != uses[len(uses)-1] {
			t.Fatalf("giving back twice returned %d", again.Wait)
		}
	})
}

func TestABatchAnswersAsIfOneByOne(t *testing.T) {
	check(t, func(t *rapid.T) {
		b := buckets().Draw(t, "bucket")
		r := rule(t, b)
		batched, single := process{r.NewState()}, process{r.NewState()}
		now := int64(epoch)
		var receipts []driver.Request
		for range 5 {
			now += steps(b).Draw(t, "pause")
			var requests []driver.Request
			for range rapid.IntRange(1, 6).Draw(t, "size") {
				if len(receipts) > 0 && rapid.Bool().Draw(t, "give back") {
					i := rapid.IntRange(0, len(receipts)-1).Draw(t, "which")
					requests = append(requests, receipts[i])
					receipts = slices.Delete(receipts, i, i+1)
					continue
				}
				requests = append(requests, driver.Request{
					Cost:  int64(rapid.IntRange(1, b.Burst).Draw(t, "cost")),
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
