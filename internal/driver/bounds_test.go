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
