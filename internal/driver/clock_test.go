package driver_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

const second = 1_000_000

// allow asks for one permit now.
func allow(s server, t *testing.T, r algos.Rule, now int64) bool {
	return s.run(t, r, now, driver.Request{Cost: 1})[0].Wait == 0
}

// Clients whose clocks disagree, by ClientClock: golang/go #56287 and #71360, spring-cloud-gateway PR #1688, and the
// row of x/time/rate's TestLimiterJumpBackwards in which it mints a permit.
func TestAClientWhoseClockIsBehindMintsNothing(t *testing.T) {
	rdb := redistest.Start(t).Client()

	t.Run("alternating between a stale and a good clock admits one", func(t *testing.T) {
		s := server{rdb: rdb, key: "a", clientClock: true}
		r := rule(t, algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 10})
		s.run(t, r, epoch+second, driver.Request{Cost: 9})
		admitted := 0
		for range 100 {
			for _, now := range []int64{epoch, epoch + second} {
				if allow(s, t, r, now) {
					admitted++
				}
			}
		}
		if admitted != 1 {
			t.Errorf("%d admitted; one permit was left", admitted)
		}
	})

	t.Run("one slow host admits nobody twice", func(t *testing.T) {
		s := server{rdb: rdb, key: "b", clientClock: true}
		r := rule(t, algos.TokenBucket{Rate: 2, Per: time.Second, Burst: 4})
		for i, want := range []bool{true, true, true, true, false, false, false, false, false, false, false} {
			now := int64(epoch)
			if i == 5 {
				now -= 10 * second
			}
			if got := allow(s, t, r, now); got != want {
				t.Errorf("call %d: %v", i, got)
			}
		}
	})

	t.Run("jumping back and forth", func(t *testing.T) {
		s := server{rdb: rdb, key: "c", clientClock: true}
		r := rule(t, algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 3})
		for i, row := range []struct {
			at   int64 // tenths of a second
			want bool
		}{
			{1, true}, {0, true}, {0, true}, {0, false}, {0, false},
			{1, false}, // x/time/rate admits here
			{1, false}, {2, true}, {2, false}, {2, false},
		} {
			if got := allow(s, t, r, epoch+row.at*second/10); got != row.want {
				t.Errorf("call %d, at %d: %v", i, row.at, got)
			}
		}
	})
}

// A failover to a server whose clock is an hour behind costs what is owed, and not an hour.
func TestAServerClockSetBackByAnHourCostsAtMostTheDebt(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 5})
	s := server{rdb: rdb, key: "back"}
	p := process{r.NewState()}
	both := func(now int64, cost, bound int64) driver.Reply {
		t.Helper()
		request := driver.Request{Cost: cost, Bound: bound}
		inGo, inLua := p.run(r, now, request)[0], s.run(t, r, now, request)[0]
		if inGo != inLua {
			t.Fatalf("Go %v, Lua %v", inGo, inLua)
		}
		return inLua
	}
	both(epoch, 5, 0)
	waiting := both(epoch, 2, second) // 200 ms of debt beyond the burst
	now := int64(epoch - 3600*second)
	if got := both(now, 5, 0); got.Wait != -700_000 {
		t.Errorf("after the step: %+v; want a retry-after of 700 ms", got)
	}
	before, _ := s.stored()
	both(now+1, 5, 0)
	if after, _ := s.stored(); before != after {
		t.Error("the denial after the one that put the clock right wrote")
	}
	// What was reserved before the step can be cancelled after it.
	back := driver.Request{Cost: -2, Receipt: waiting.Receipt}
	if got := s.run(t, r, now, back)[0]; got.Wait != 2 {
		t.Errorf("%d permits came back", got.Wait)
	}
	p.run(r, now, back)
	if got := both(now+500_000, 5, 0); got.Wait != 0 {
		t.Errorf("half a second later: %+v", got)
	}
	// Forward by an hour: one burst, and not an hour's worth.
	if got := both(now+3600*second, 1, 0); got.Remaining != 4 {
		t.Errorf("an hour later: %+v", got)
	}
}

// A busy period that never ends: its count starts anew after years, and nobody notices.
func TestALimiterThatIsBusyForYearsKeepsCounting(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for name, bucket := range map[string]algos.TokenBucket{
		"a few a year":      {Rate: 1, Per: 200 * 24 * time.Hour, Burst: 2},
		"a million a year":  {Rate: 1_000_003, Per: 365 * 24 * time.Hour, Burst: 1000},
		"ten a microsecond": {Rate: 10, Per: time.Microsecond, Burst: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := rule(t, bucket)
			s := server{rdb: rdb, key: name}
			p := process{r.NewState()}
			now := int64(epoch)
			var granted int64
			for range 60 { // a quarter of a year each
				request := driver.Request{Cost: int64(bucket.Burst), Bound: 1 << 43}
				for range 3 {
					inGo, inLua := p.run(r, now, request)[0], s.run(t, r, now, request)[0]
					if inGo != inLua {
						t.Fatalf("%d: Go %v, Lua %v", now, inGo, inLua)
					}
					if inGo.Wait >= 0 {
						granted += request.Cost
					}
				}
				now += 90 * 24 * 3600 * second
			}
			// The witness: no more than the rate brings in the time, and the bound, and a burst.
			most := float64(bucket.Rate)*float64(now-epoch+1<<43)/float64(bucket.Per.Microseconds()) + float64(bucket.Burst)
			if float64(granted) > most {
				t.Errorf("%d granted; %f is the most", granted, most)
			}
		})
	}
}

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

// redis/redis #1118 and others: Lua prints numbers of more than 14 digits as 1.7e+15.
func TestNoMicrosecondIsLostNearTheEndOfExactNumbers(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 1_000_000, Per: time.Second, Burst: 1})
	for _, start := range []int64{epoch, 1<<53 - 2000} {
		s := server{rdb: rdb, key: fmt.Sprint(start)}
		for i := range int64(1000) {
			if !allow(s, t, r, start+i) || allow(s, t, r, start+i) {
				t.Fatalf("microsecond %d after %d: not exactly one", i, start)
			}
		}
		if text, _ := s.stored(); strings.Contains(text, "e+") {
			t.Errorf("%q was stored", text)
		}
	}
}

// throttled #26, apisix PR #12605: a TTL rounded down makes a limiter forget what is owed. Within one script the clock
// of TTLs stands still.
func TestTheTTLCoversWhatIsOwedToTheMicrosecond(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, test := range []struct {
		bucket algos.TokenBucket
		least  time.Duration
	}{
		{algos.TokenBucket{Rate: 10_000, Per: time.Second, Burst: 1}, time.Millisecond},
		{algos.TokenBucket{Rate: 1, Per: 100_001 * time.Microsecond, Burst: 1}, 101 * time.Millisecond},
		{algos.TokenBucket{Rate: 1, Per: 100_999 * time.Microsecond, Burst: 1}, 101 * time.Millisecond},
		{algos.TokenBucket{Rate: 1, Per: 100 * time.Millisecond, Burst: 1}, 100 * time.Millisecond},
		{algos.TokenBucket{Rate: 7, Per: time.Second, Burst: 1}, 143 * time.Millisecond},
	} {
		r := rule(t, test.bucket)
		script, err := driver.NewScript(r)
		if err != nil {
			t.Fatal(err)
		}
		source := strings.Replace(script.Source, "return replies", "return call('PTTL', KEYS[1])", 1)
		args := []any{""}
		for _, n := range r.Params() {
			args = append(args, n)
		}
		ttl, err := rdb.Eval(t.Context(), source, []string{fmt.Sprint("ttl", test.bucket)}, append(args, 1, 0)...).Int64()
		// One more than rounded up, for the part of a millisecond in which the script began.
		if got := time.Duration(ttl) * time.Millisecond; err != nil || got < test.least+time.Millisecond || got > test.least+2*time.Millisecond {
			t.Errorf("%+v: TTL %v, %v; want %v and one more", test.bucket, got, err, test.least)
		}
	}
}

// A busy period whose line ended within the last microsecond is not folded: it is about to be over.
func TestFoldingNeverTakesMoreThanWasTaken(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 999, Per: time.Microsecond, Burst: 1 << 45})
	s, p := server{rdb: rdb, key: "fold"}, process{r.NewState()}
	now := int64(epoch)
	for range 8 {
		request := driver.Request{Cost: 1 << 45, Bound: r.Horizon()}
		inGo, inLua := p.run(r, now, request)[0], s.run(t, r, now, request)[0]
		if inGo != inLua || inGo.Wait < 0 {
			t.Fatalf("Go %v, Lua %v", inGo, inLua)
		}
		now += inGo.Reset // the line ended a part of a microsecond ago
	}
}

// However many cancel in the middle of a queue, what a call must look through is bounded, and what is beyond drains.
func TestHolesAreBounded(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
	s, p := server{rdb: rdb, key: "holes"}, process{r.NewState()}
	var receipts []driver.Request
	for range 2200 {
		take := driver.Request{Cost: 1, Bound: r.Horizon()}
		reply := s.run(t, r, epoch, take)[0]
		p.run(r, epoch, take)
		receipts = append(receipts, driver.Request{Cost: -1, Receipt: reply.Receipt})
	}
	returned := int64(0)
	for i := 1; i < len(receipts)-1; i += 2 {
		inGo, inLua := p.run(r, epoch, receipts[i])[0], s.run(t, r, epoch, receipts[i])[0]
		if inGo != inLua {
			t.Fatalf("cancel %d: Go %v, Lua %v", i, inGo, inLua)
		}
		returned += inLua.Wait
	}
	if returned != 1000 {
		t.Errorf("%d permits came back", returned)
	}
	if bytes, _ := s.stored(); len(bytes) > 16_000 {
		t.Errorf("%d bytes of state", len(bytes))
	}
	for i := range int64(1000) { // each of them goes to the next that asks
		if reply := s.run(t, r, epoch, driver.Request{Cost: 1, Bound: r.Horizon()})[0]; reply.Wait != (2*i+1)*second {
			t.Fatalf("open place %d: %v", i, reply)
		}
	}
	if reply := s.run(t, r, epoch, driver.Request{Cost: 1, Bound: r.Horizon()})[0]; reply.Wait != 2200*second {
		t.Errorf("after the last: %v", reply)
	}
}
