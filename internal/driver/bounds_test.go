package driver_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

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

// throttled #26, apisix PR #12605: a TTL rounded down makes a limiter forget what is owed.
func TestTheTTLCoversWhatIsOwedToTheMicrosecond(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, test := range []struct {
		bucket algos.TokenBucket
		owed   time.Duration // rounded up
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
		source := strings.Replace(script.Source, "'PX', ttl)", "'PX', ttl)\nreplies = { ttl }", 1)
		args := []any{""}
		params, _ := r.Params(epoch)
		for _, n := range params {
			args = append(args, n)
		}
		ttl, err := rdb.Eval(t.Context(), source, []string{fmt.Sprint("ttl", test.bucket)}, append(args, 1, 0)...).Int64Slice()
		// One more than rounded up, for the part of a millisecond in which the script began.
		if want := test.owed.Milliseconds() + 1; err != nil || len(ttl) != 1 || ttl[0] != want {
			t.Errorf("%+v: TTL %v, %v; want %v", test.bucket, ttl, err, want)
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
		request := driver.Request{Cost: 1 << 45, Bound: r.Horizon(1)}
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
		take := driver.Request{Cost: 1, Bound: r.Horizon(1)}
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
	checkHoles(t, r, s)
	for i := range int64(1000) { // each of them goes to the next that asks
		if reply := s.run(t, r, epoch, driver.Request{Cost: 1, Bound: r.Horizon(1)})[0]; reply.Wait != (2*i+1)*second {
			t.Fatalf("open place %d: %v", i, reply)
		}
	}
	if reply := s.run(t, r, epoch, driver.Request{Cost: 1, Bound: r.Horizon(1)})[0]; reply.Wait != 2200*second {
		t.Errorf("after the last: %v", reply)
	}
}

// Callers who leave a long queue in any order: Lua looks for their place among the holes by halves, Go from the first on.
func TestManyLeaveALongQueue(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 1, Per: time.Microsecond, Burst: 1 << 44})
	random := rand.New(rand.NewPCG(3, 4))
	b := newBoth(t, server{rdb: rdb, key: "queue"})
	both := func(request driver.Request) driver.Reply { return b.run(r, epoch, request) }
	both(driver.Request{Cost: 1<<44 - 1000}) // so that the places' numbers take all their bytes
	var taken []driver.Request               // to be given back
	take := func() {
		cost := 1 + random.Int64N(3)
		reply := both(driver.Request{Cost: cost, Bound: r.Horizon(cost)})
		taken = append(taken, driver.Request{Cost: -cost, Receipt: reply.Receipt})
	}
	for range 2200 {
		take()
	}
	for i := 2199; i > 0; i -= 2 { // more than there may be holes
		both(taken[i])
		taken = slices.Delete(taken, i, i+1)
	}
	for len(taken) > 0 {
		i := random.IntN(len(taken))
		both(taken[i])
		both(driver.Request{Cost: 1 + random.Int64N(30), Bound: driver.Ask}) // which fits where neighbours have left
		switch random.IntN(10) {
		case 0:
			continue // and once more, later on
		case 1:
			take()
		}
		taken = slices.Delete(taken, i, i+1)
	}
}

// What follows a line's numbers is Headgate's, or the whole is not.
func TestALineWithAnotherTailIsForeign(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 5})
	b := newBoth(t, server{rdb: rdb, key: "foreign"})
	all := b.batch(r, epoch, slices.Repeat([]driver.Request{{Cost: 1, Bound: r.Horizon(1)}}, 12)...)
	plain, _ := b.s.stored()
	var back []driver.Request
	for i := 6; i < 12; i += 2 {
		back = append(back, driver.Request{Cost: -1, Receipt: all[i].Receipt})
	}
	b.batch(r, epoch, back...)
	whole, _ := b.s.stored()
	states := []string{plain + "x", plain + "@1+0,", plain + "1-2,", plain + "@1+0,1", whole[:35] + "x" + whole[36:]}
	for n := len(plain) + 1; n < len(whole); n++ {
		states = append(states, whole[:n])
	}
	script := b.s.script(t, r)
	for _, state := range states {
		rdb.Set(t.Context(), "foreign", state, time.Hour)
		for _, args := range [][]any{{1, 0}, {1, driver.Ask}, {-1, all[7].Receipt.Period, all[7].Receipt.Number}} {
			err := script.Run(t.Context(), rdb, []string{"foreign", fmt.Sprint(epoch)}, append([]any{"", 1, second, 5}, args...)...).Err()
			if err == nil || !strings.HasPrefix(err.Error(), "FOREIGN") {
				t.Errorf("%q, %v: %v", state, args, err)
			}
		}
		if got, _ := b.s.stored(); got != state {
			t.Errorf("%q became %q", state, got)
		}
	}
}
