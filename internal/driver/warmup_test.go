package driver_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A user is one caller of one limiter, which answers in process and in Redis, as in Guava's tests: who gets a slot
// sleeps until then.
type user struct {
	process
	server
	now int64
}

func newUser(r algos.Rule, rdb *redis.Client, key string) *user {
	return &user{process{r.NewState()}, server{rdb: rdb, key: key}, epoch}
}

func (u *user) run(t rapid.TB, r algos.Rule, request driver.Request) driver.Reply {
	inGo, inLua := u.process.run(r, u.now, request)[0], u.server.run(t, r, u.now, request)[0]
	if inGo != inLua {
		t.Fatalf("%v at %d: Go %v, Lua %v", request, u.now, inGo, inLua)
	}
	return inGo
}

// acquire is what Guava's acquire is: it returns how long it slept.
func (u *user) acquire(t rapid.TB, r algos.Rule, cost int64) (slept int64) {
	reply := u.run(t, r, driver.Request{Cost: cost, Bound: r.Horizon(cost)})
	if reply.Wait < 0 {
		t.Fatalf("refused: %v", reply)
	}
	u.now += reply.Wait
	return reply.Wait
}

// free is how long until the limiter is free, which is how long what was acquired last takes.
func (u *user) free(t rapid.TB, r algos.Rule) int64 {
	return driver.Ask - u.run(t, r, driver.Request{Cost: 1, Bound: driver.Ask}).Wait
}

// Guava's RateLimiterTest, as it is published, in seconds. ".5" acquires a permit and sleeps half a second for it, "4:2"
// acquires four and sleeps two; "U.5" is half a second of the user's own sleep, "R4" sets the rate to 4; "T.2" and "F.2"
// try to acquire with a timeout of .2 s, and do or do not. With a "~" only the digits given are published.
//
// Guava's bursty limiter begins with nothing saved. This one has a second's worth, so its rows begin by acquiring that
// in one request, which leaves it as Guava's begins. Timeouts below zero are a caller's zero, and Guava's rows of
// infinite rates, of rates of zero and below, and of Double.MIN_VALUE have no counterpart: Rule refuses such rates.
func TestGuavasTables(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for i, test := range []struct {
		rate, period, cold int
		row                string
	}{
		{5, 0, 0, "5:0 0 .2 .2"},
		{5, 0, 0, "5:0 0 U.2 0 .2"},
		{5, 0, 0, "5:0 0 U.4 0 0 .2"},
		{5, 0, 0, "5:0 U1 U1 0 0 3:0 0 .2"},
		{1, 0, 0, "1:0 0 1 2:1 4:2 8:4 8"},
		{1, 0, 0, "1:0 0 1 R2 1 2:.5 4:1 2"},
		{5, 0, 0, "5:0 T0 F0 F0 U.1 F0"},
		{5, 0, 0, "5:0 T0 T.2 F.1 U.1 T.1"},
		{5, 0, 0, "5:0 T0 U.1 T1e7"},
		{5, 0, 0, "5:0 5:T0 U.9 F0 U.1 T0"},
		{2, 4, 3, "0 1.375 1.125 .875 .625 .5 .5 .5 U.5 U4 0 1.375 1.125 .875 .625 .5 .5 .5 U.5 U2 0 .5 .5 .5 .5 .5 .5 .5"},
		{2, 4, 0, "0 1.38~ 1.13~ .88~ .63~ .5 .5 .5"},
		{5, 4, 10, "0 1.7525 1.2575 .7625 .3002~ .2 .2 .2 U.2 U4 0 1.7525 1.2575 .7625 .3002~ .2 .2 .2 U.2 U1 0 .2 .2 .2 .2 .2 .2 .2"},
		{5, 4, 1, "0 .2 .2 .2 .2 .2 .2 .2 U.34 0 .2 .2 .2 .2 .2 .2 .2"},
		{2, 4, 3, "0 1.375 1.125 .875 .625 .5 .5 .5 U4.5 0 1.375 1.125 R4 .875 .34375 .28125 .25 .25 " +
			"U4.25 0 .71875 .65625 .59375 .53125 .46875 .40625 .34375 .28125 .25 .25"},
		{5, 4, 10, "0 1.7525 1.2575 .7625 .3002~ .2 .2 .2 U4.2 0 1.75~ 1.26~ R10 .76~ .20~ .10~ .10~ " +
			"U4.1 0 .94~ .81~ .69~ .57~ .44~ .32~ .20~ .10~ .10~ .10~"},
		// google/guava #7130: a request of any size goes, and the next one waits for it.
		{5, 0, 0, "5:0 T0 U.2 5000:0 F999 T1000"},
		{5, 4, 3, "5000:0 F999"},
		// google/guava #2730: here without the drain, for the fifty permits must take 8 s even with a second's worth saved.
		{5, 0, 0, "5:0 5:0 5:1 5:1 5:1 5:1 5:1 5:1 5:1 5:1"},
	} {
		t.Run(fmt.Sprint(i, " ", test.row), func(t *testing.T) {
			limiter := algos.WarmUp{Rate: test.rate, Per: time.Second, Period: time.Duration(test.period) * time.Second, ColdFactor: test.cold}
			r := rule(t, limiter)
			u := newUser(r, rdb, fmt.Sprint("guava:", i))
			for j, word := range strings.Fields(test.row) {
				cost, op := int64(1), word
				if n, rest, ok := strings.Cut(word, ":"); ok {
					cost, op = seconds(t, n)/1e6, rest
				}
				switch op[0] {
				case 'U':
					u.now += seconds(t, op[1:])
				case 'R':
					limiter.Rate = int(seconds(t, op[1:]) / 1e6)
					r = rule(t, limiter)
				case 'T', 'F':
					reply := u.run(t, r, driver.Request{Cost: cost, Bound: min(seconds(t, op[1:]), r.Horizon(cost))})
					if (op[0] == 'T') != (reply.Wait >= 0) {
						t.Fatalf("word %d, %s: %v", j, word, reply)
					}
					u.now += max(reply.Wait, 0)
				default:
					number, rounded := strings.CutSuffix(op, "~")
					tolerance := int64(1)
					if rounded {
						tolerance += int64(math.Pow10(6-len(number)+1+strings.Index(number, "."))) * 6 / 10
					}
					if slept := u.acquire(t, r, cost); slept < seconds(t, number)-tolerance || slept > seconds(t, number)+tolerance {
						t.Fatalf("word %d, %s: slept %d µs", j, word, slept)
					}
				}
			}
		})
	}
}

// seconds reads a number of them, in microseconds.
func seconds(t testing.TB, number string) int64 {
	s, err := strconv.ParseFloat(number, 64)
	if err != nil {
		t.Fatal(err)
	}
	return int64(math.Round(s * 1e6))
}

// google/guava #2730: with a warm-up period below a microsecond the slope was NaN, and nothing was limited.
func TestTheShortestWarmUpPeriodStillLimits(t *testing.T) {
	r := rule(t, algos.WarmUp{Rate: 5, Per: time.Second, Period: time.Microsecond})
	u := newUser(r, redistest.Start(t).Client(), "short")
	for i := range 10 {
		if slept := u.acquire(t, r, 5); i > 0 && slept < 999_999 {
			t.Errorf("acquire %d of five permits at 5/s: slept %d µs", i, slept)
		}
	}
}

// Guava's own law: the permits that a cold limiter has stored above its threshold take the warm-up period, however they
// are acquired. There are 2 × period / (stable + cold interval) of them; here that is ten.
func TestWarmingUpTakesThePeriodHoweverThePermitsAreAcquired(t *testing.T) {
	rdb := redistest.Start(t).Client()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		per := rapid.SampledFrom([]time.Duration{time.Second / 4, time.Second / 2, time.Second, 2 * time.Second, 10 * time.Second}).Draw(t, "interval")
		cold := rapid.SampledFrom([]int{2, 3, 10}).Draw(t, "cold")
		period := time.Duration(1+cold) * 10 * per / 2
		r := rule(t, algos.WarmUp{Rate: 1, Per: per, Period: period, ColdFactor: cold})
		run++
		u := newUser(r, rdb, fmt.Sprint("law:", run))
		for left := int64(10); left > 0; {
			n := rapid.Int64Range(1, left).Draw(t, "permits")
			u.acquire(t, r, n)
			left -= n
		}
		u.now += u.free(t, r)
		if took := u.now - epoch; took < period.Microseconds() || took > period.Microseconds()+11 {
			t.Fatalf("warming up took %d µs of %v", took, period)
		}
		u.acquire(t, r, 1)
		if each := u.free(t, r); each > per.Microseconds()+1 {
			t.Fatalf("a warm permit takes %d µs of %v", each, per)
		}
	})
}

// Guava: after a quiet time one second's worth of work may take less than a second, and what is beyond may not.
func TestABurstIsNeverMoreThanOneSecondsWork(t *testing.T) {
	r := rule(t, algos.WarmUp{Rate: 1, Per: time.Second})
	u := newUser(r, redistest.Start(t).Client(), "burst")
	for _, rate := range []int64{1000, 1, 10, 1_000_000, 10, 1} {
		u.now += 3600 * second
		r = rule(t, algos.WarmUp{Rate: int(rate), Per: time.Second})
		for _, work := range []struct{ least, most int64 }{{0, second - 1}, {second, second + 10}} {
			begun := u.now
			for left := rate; left > 0; {
				n := (left + 2) / 3
				u.acquire(t, r, n)
				left -= n
			}
			if work.least > 0 {
				u.now += u.free(t, r)
			}
			if took := u.now - begun; took < work.least || took > work.most {
				t.Errorf("%d permits at %d/s took %d µs", rate, rate, took)
			}
		}
	}
}

// Who comes at its slot, rounded up as it is, keeps the rate: nothing of a microsecond is lost, cold or warm. So do those
// who queue.
func TestTheRateIsKeptForLong(t *testing.T) {
	for _, rate := range []int64{1, 7, 1_000_000, 3_000_000} {
		for _, cost := range []int64{1, 5} {
			for _, period := range []time.Duration{0, 10 * time.Second} {
				r := rule(t, algos.WarmUp{Rate: int(rate), Per: time.Second, Period: period})
				p, now := process{r.NewState()}, int64(epoch)
				// As long as it warms up, 10 s for the 5 × rate permits that are stored cold: in steps of a thousandth of it.
				cold, stored := int64(0), rate
				if period > 0 {
					cold, stored = 5*second, 10*rate
				}
				for taken := int64(0); taken < stored; taken += max(stored/1000, 1) {
					now += p.ask(r, now, max(stored/1000, 1), r.Horizon(1)).Wait
				}
				if period == 0 {
					stored = 0
				}
				now += driver.Ask - p.ask(r, now, 1, driver.Ask).Wait
				if took := now - epoch; took < stored*second/rate+cold || took > stored*second/rate+cold+2 {
					t.Errorf("%d/s, %v: using up what was stored took %d µs", rate, period, took)
				}
				const grants = 100_000
				begun := now
				for range grants {
					reply := p.ask(r, now, cost, r.Horizon(1))
					now += reply.Wait
				}
				now += driver.Ask - p.ask(r, now, 1, driver.Ask).Wait
				want := float64(grants*cost) * 1e6 / float64(rate)
				if took := float64(now - begun); took < want-1 || took > want*(1+1e-6)+1 {
					t.Errorf("%d/s, %v: %d permits took %.0f µs, not %.1f", rate, period, grants*cost, took, want)
				}
			}
		}
	}
}

// A busy period is counted anew before its permits are too many for Lua.
func TestAWarmUpThatIsBusyForYearsKeepsItsRate(t *testing.T) {
	r := rule(t, algos.WarmUp{Rate: 999, Per: time.Microsecond, Period: time.Second})
	u := newUser(r, redistest.Start(t).Client(), "years")
	const calls, cost = 600, 1<<44 - 1
	for range calls {
		u.acquire(t, r, cost)
	}
	u.now += u.free(t, r)
	want := int64(calls*cost/999 + second/2) // half of the period is what being cold costs
	if took := u.now - epoch; took < want || took > want+100 {
		t.Errorf("%d µs instead of %d", took, want)
	}
}

func TestRemainingIsTheLimitWhileAWarmUpIsFree(t *testing.T) {
	for _, test := range []struct {
		w     algos.WarmUp
		limit int
	}{
		{algos.WarmUp{Rate: 2, Per: time.Second, Period: 4 * time.Second}, 8},
		{algos.WarmUp{Rate: 5, Per: time.Second, Period: 4 * time.Second, ColdFactor: 10}, 13},
		{algos.WarmUp{Rate: 1, Per: time.Minute, Period: time.Second}, 1},
		{algos.WarmUp{Rate: 5, Per: time.Second}, 5},
	} {
		r := rule(t, test.w)
		p := process{r.NewState()}
		asked := p.ask(r, epoch, 1, driver.Ask)
		taken := p.ask(r, epoch, int64(r.Limit())+1, 0)
		if r.Limit() != test.limit || asked.Remaining != int64(test.limit) || taken.Wait != 0 || taken.Remaining != 0 {
			t.Errorf("%+v: limit %d; new %v, taken from %v", test.w, r.Limit(), asked, taken)
		}
	}
}

// What Guava does too: a limiter stores permits until somebody is granted, even if callers are refused meanwhile. One
// who asks every 1.2 intervals, and is granted every third time, uses up one permit in 3.6 intervals. The limiter settles
// where a permit takes 2.6 of them, for then it idles for one, which stores a permit. Once warm it grants every time.
func TestAPollerThatFindsTheLimiterColdDoesNotWarmIt(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, test := range []struct {
		every   int64 // µs between polls; an interval is 100,000
		granted int   // of 300
	}{
		{90_000, 150}, // warm, and every second poll comes too early
		{101_000, 100}, {120_000, 100}, {140_000, 100}, {150_000, 150}, {199_000, 150}, {250_000, 150}, {290_000, 150}, {300_000, 300},
	} {
		r := rule(t, algos.WarmUp{Rate: 10, Per: time.Second, Period: 5 * time.Second})
		u := newUser(r, rdb, fmt.Sprint("poller:", test.every))
		poll := func(polls int) (granted int) {
			for range polls {
				if u.run(t, r, driver.Request{Cost: 1}).Wait >= 0 {
					granted++
				}
				u.now += test.every
			}
			return granted
		}
		poll(200)
		if granted := poll(300); granted < test.granted-1 || granted > test.granted+1 {
			t.Errorf("asking every %d µs, cold: granted %d times of 300", test.every, granted)
		}
		for range 50 {
			u.acquire(t, r, 1)
		}
		u.now += u.free(t, r)
		if granted := poll(100); test.every > 100_000 && granted != 100 {
			t.Errorf("asking every %d µs, warm: granted %d times of 100", test.every, granted)
		}
	}
}

func TestWarmUpParametersThatCannotBeHeldAreRefused(t *testing.T) {
	for _, test := range []struct {
		w    algos.WarmUp
		want string
	}{
		{algos.WarmUp{Rate: 0, Per: 1e9}, "WarmUp.Rate is 0"},
		{algos.WarmUp{Rate: 1, Per: 1}, "WarmUp.Per is 1ns"},
		{algos.WarmUp{Rate: 1, Per: 1e9, Period: -1e9}, "WarmUp.Period is -1s"},
		{algos.WarmUp{Rate: 1, Per: 1e9, Period: 1500}, "WarmUp.Period is 1.5µs"},
		{algos.WarmUp{Rate: 1, Per: 1e9, Period: (1<<45 + 1) * time.Microsecond}, "from 0 to 2^45"},
		{algos.WarmUp{Rate: 7919, Per: 1e9, Period: 1000 * time.Hour}, "below 2^53"},
		{algos.WarmUp{Rate: 1, Per: 1e9, ColdFactor: -1}, "WarmUp.ColdFactor is -1"},
		{algos.WarmUp{Rate: 1, Per: 1e9, ColdFactor: 101}, "WarmUp.ColdFactor is 101"},
	} {
		if _, err := test.w.Rule(); !errors.Is(err, algos.ErrInvalid) || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("%+v: %v; want %q", test.w, err, test.want)
		}
	}
	for _, w := range []algos.WarmUp{
		{Rate: 1, Per: 1e9, Period: 1 << 45 * time.Microsecond, ColdFactor: 100},
		{Rate: 1<<24 - 1, Per: 1 << 20 * time.Microsecond, Period: time.Minute},
		{Rate: 1, Per: 1 << 45 * time.Microsecond},
	} {
		if r, err := w.Rule(); err != nil || r.Limit() < 1 || r.Limit() > r.Max() {
			t.Errorf("%+v: %v", w, err)
		}
	}
}

func TestWhatIsNotAWarmUpsStateIsForeign(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.WarmUp{Rate: 1, Per: time.Second})
	script, err := driver.NewScript(r)
	if err != nil {
		t.Fatal(err)
	}
	params, _ := r.Params(epoch)
	args := []any{""}
	for _, n := range params {
		args = append(args, n)
	}
	for _, content := range []string{"", "1", "1 2 3", "1 2 3 4 5 0 1 0 3", "1 2 3 4 5 1 0 0 3", "1 2 3 4 5 1 1 0 x"} {
		rdb.Set(t.Context(), "foreign", content, time.Hour)
		if err := rdb.Eval(t.Context(), script.Source, []string{"foreign"}, append(args, 1, 0)...).Err(); err == nil || !strings.HasPrefix(err.Error(), "FOREIGN") {
			t.Errorf("%q: %v", content, err)
		}
	}
}

// throttled #26: a TTL rounded down makes a limiter forget what is owed, and here how warm it is.
func TestTheTTLCoversHowWarmALimiterIs(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, test := range []struct {
		w    algos.WarmUp
		cost int
		ttl  int64 // ms
	}{
		{algos.WarmUp{Rate: 1, Per: time.Second}, 1, 1001},                            // it comes back in as long
		{algos.WarmUp{Rate: 1, Per: time.Second}, 2, 2001},                            // and after what is owed
		{algos.WarmUp{Rate: 2, Per: time.Second, Period: 4 * time.Second}, 1, 1876},   // 1.375 s, and .5 s to cool
		{algos.WarmUp{Rate: 2, Per: time.Second, Period: 4 * time.Second}, 80, 46001}, // 6 s, 36 s, and 4 s
		{algos.WarmUp{Rate: 7, Per: time.Second}, 1, 144},
	} {
		r := rule(t, test.w)
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
		ttl, err := rdb.Eval(t.Context(), source, []string{fmt.Sprint("ttl", test)}, append(args, test.cost, 0)...).Int64Slice()
		if err != nil || len(ttl) != 1 || ttl[0] != test.ttl {
			t.Errorf("%+v: TTL %v, %v; want %d", test.w, ttl, err, test.ttl)
		}
	}
}
