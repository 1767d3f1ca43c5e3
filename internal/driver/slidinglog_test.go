package driver_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// newLog is a sliding log in process and on the server.
func newLog(t *testing.T, rdb *redis.Client) (*both, algos.SlidingLog) {
	return newBoth(t, server{rdb: rdb, key: t.Name()}), algos.SlidingLog{Limit: 10, Window: 10 * time.Second}
}

func (b *both) entries() int64 { return b.s.rdb.ZCard(b.t.Context(), b.s.key).Val() }

func TestRetryAfterIsWhenEnoughPermitsHaveExpired(t *testing.T) {
	b, l := newLog(t, redistest.Start(t).Client())
	r := rule(t, l)
	for i := range int64(10) {
		b.ask(r, epoch+i*second, 1, 0)
	}
	now := int64(epoch + 9_500_000)
	if reply := b.ask(r, now, 5, 0); reply.Wait != -4_500_000 {
		t.Errorf("5 permits after %d µs; the fifth expires in 4.5 s", -reply.Wait)
	}
	if reply := b.ask(r, now+4_499_999, 5, 0); reply.Wait != -1 {
		t.Errorf("1 µs before: %+v", reply)
	}
	if reply := b.ask(r, now+4_500_000, 5, 0); reply.Wait != 0 || reply.Remaining != 0 {
		t.Errorf("after 4.5 s: %+v", reply)
	}
}

// sockudo #251 and others: a member that is the time counts all requests of an instant once.
func TestRequestsOfOneInstantAllCount(t *testing.T) {
	b, l := newLog(t, redistest.Start(t).Client())
	r := rule(t, l)
	granted := 0
	for range 50 {
		if b.ask(r, epoch, 1, 0).Wait == 0 {
			granted++
		}
	}
	if granted != 10 || b.entries() != 10 {
		t.Errorf("%d granted, %d entries", granted, b.entries())
	}
}

// rolling-rate-limiter #9: refused requests that are written down lock a steady caller out for ever. That is what
// CountDenied is for, and nothing else does it.
func TestASteadyCallerIsLockedOutOnlyWhereRefusalsCount(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, counted := range []bool{false, true} {
		t.Run(fmt.Sprint(counted), func(t *testing.T) {
			b, _ := newLog(t, rdb)
			r := rule(t, algos.SlidingLog{Limit: 2, Window: 4 * time.Second, CountDenied: counted})
			for i := range int64(60) {
				want := int64(0) // 2 in each 4 s, or only ever 2
				if i%4 >= 2 || counted && i >= 2 {
					want = -(4 - i%4) * second
				}
				if counted && i >= 2 { // when one of the two newest, this attempt and the one before, has expired
					want = -3 * second
				}
				if reply := b.ask(r, epoch+i*second, 1, 0); reply.Wait != want {
					t.Fatalf("call %d: %+v; want %d", i, reply, want)
				}
				if n := b.entries(); n > 4 {
					t.Fatalf("%d entries after call %d", n, i)
				}
			}
			if reply := b.ask(r, epoch+62*second, 1, 0); counted && reply.Wait != 0 {
				t.Errorf("3 s after the last attempt: %+v", reply)
			}
		})
	}
}

// Peek writes nothing down, and of a flood of refused requests the newest few are kept.
func TestRefusalsThatCountAreBounded(t *testing.T) {
	b, l := newLog(t, redistest.Start(t).Client())
	l.CountDenied = true
	r := rule(t, l)
	for i := range int64(600) {
		b.ask(r, epoch+i, 1+i%3, 0)
		before, _ := b.s.stored()
		b.ask(r, epoch+i, 1, driver.Ask)
		if after, _ := b.s.stored(); before != after {
			t.Fatal("a question was written down")
		}
		if n := b.entries(); n > 20 { // what was granted, and the newest that were refused
			t.Fatalf("%d entries after %d requests", n, i+1)
		}
	}
	// What was granted still counts for a caller with a higher limit.
	if reply := b.ask(rule(t, algos.SlidingLog{Limit: 20, Window: l.Window}), epoch+600, 11, 0); reply.Wait >= 0 {
		t.Errorf("%+v", reply)
	}
}

// Southclaws/swirl #2: a log that dies a window after its first entry.
func TestTheLogLivesAsLongAsItsLastEntry(t *testing.T) {
	b, _ := newLog(t, redistest.Start(t).Client())
	r := rule(t, algos.SlidingLog{Limit: 10, Window: time.Hour})
	const minute = 60 * second
	b.ask(r, epoch, 1, 0)
	if reply := b.ask(r, epoch+59*minute, 8, 0); reply.Wait != 0 || reply.Reset != 60*minute {
		t.Errorf("%+v", reply)
	}
	if reply := b.ask(r, epoch+61*minute, 3, 0); reply.Wait != -58*minute || reply.Remaining != 2 {
		t.Errorf("3 at 1:01: %+v", reply)
	}
	if reply := b.ask(r, epoch+61*minute, 2, 0); reply.Wait != 0 {
		t.Errorf("2 at 1:01: %+v", reply)
	}
}

func TestACostOf50000IsOneEntry(t *testing.T) {
	b, _ := newLog(t, redistest.Start(t).Client())
	r := rule(t, algos.SlidingLog{Limit: 100_000, Window: time.Minute})
	b.ask(r, epoch, 50_000, 0)
	if reply := b.ask(r, epoch+second, 50_000, 0); reply.Wait != 0 || reply.Remaining != 0 || b.entries() != 2 {
		t.Errorf("%+v, %d entries", reply, b.entries())
	}
	if reply := b.ask(r, epoch+2*second, 50_001, 0); reply.Wait != -59*second {
		t.Errorf("%+v", reply)
	}
}

// Redisson's RedissonRateLimiterTest, the rows that concern windows.
func TestTheSlidingLogDoesWhatRedissonPublishes(t *testing.T) {
	rdb := redistest.Start(t).Client()
	t.Run("2 in 5 s", func(t *testing.T) {
		b, _ := newLog(t, rdb)
		r := rule(t, algos.SlidingLog{Limit: 2, Window: 5 * time.Second})
		for i, row := range []struct{ at, wait int64 }{{0, 0}, {4_000, 0}, {5_050, 0}, {5_050, -3_950}} { // ms
			if reply := b.ask(r, epoch+row.at*1000, 1, 0); reply.Wait != row.wait*1000 {
				t.Errorf("row %d: %+v", i, reply)
			}
		}
	})
	for name, row := range map[string]struct {
		limit int
		pause int64 // ms
	}{"5 in 1 s": {5, 1000}, "10 in 1 s": {10, 1050}} {
		t.Run(name, func(t *testing.T) {
			b, _ := newLog(t, rdb)
			r := rule(t, algos.SlidingLog{Limit: row.limit, Window: time.Second})
			for round := range int64(3) {
				for i := range 2 * row.limit {
					reply := b.ask(r, epoch+round*row.pause*1000, 1, 0)
					if i < row.limit != (reply.Wait == 0) || reply.Remaining != int64(max(row.limit-1-i, 0)) {
						t.Errorf("round %d, call %d: %+v", round, i, reply)
					}
				}
			}
		})
	}
	t.Run("available", func(t *testing.T) {
		b, l := newLog(t, rdb)
		l.Window = 5 * time.Second
		b.ask(rule(t, l), epoch, 1, 0)
		for limit, want := range map[int]int64{10: 9, 20: 19, 5: 4, 1: 0} { // another limit keeps what was taken
			l.Limit = limit
			if reply := b.ask(rule(t, l), epoch, 1, driver.Ask); reply.Remaining != want {
				t.Errorf("of %d: %+v", limit, reply)
			}
		}
		l.Limit = 10
		if reply := b.ask(rule(t, l), epoch+6*second, 1, driver.Ask); reply.Remaining != 10 || reply.Reset != 0 {
			t.Errorf("6 s later: %+v", reply)
		}
	})
}

// 18 in a second for 8 threads, and a witness who sees only when each call began and ended: if 19 of them fit in less
// than a second from the first beginning to the last end, it was too many.
func TestAWitnessSeesNoMoreThanTheLimitInAnySecond(t *testing.T) {
	rdb := redistest.Start(t).Client()
	l, err := headgate.New(headgate.Redis(rdb), t.Name(), algos.SlidingLog{Limit: 18, Window: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	type call struct{ began, ended time.Duration }
	var mu sync.Mutex
	var granted []call
	var threads sync.WaitGroup
	start := time.Now()
	for range 8 {
		threads.Go(func() {
			for time.Since(start) < 2500*time.Millisecond {
				began := time.Since(start)
				d, err := l.Allow(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					mu.Lock()
					granted = append(granted, call{began, time.Since(start)})
					mu.Unlock()
				} else {
					time.Sleep(min(d.RetryAfter, 5*time.Millisecond))
				}
			}
		})
	}
	threads.Wait()
	if len(granted) != 3*18 {
		t.Errorf("%d granted in 2.5 s", len(granted))
	}
	for _, first := range granted {
		seen := 0
		for _, c := range granted {
			if c.began >= first.began && c.ended < first.began+time.Second {
				seen++
			}
		}
		if seen > 18 {
			t.Errorf("%d granted in the second from %v on", seen, first.began)
		}
	}
}

// go-zero's PeriodLimit: 5 in a second, and 100 that ask.
func TestTheLastPermitOfAWindowIsTold(t *testing.T) {
	b, _ := newLog(t, redistest.Start(t).Client())
	r := rule(t, algos.SlidingLog{Limit: 5, Window: time.Second})
	var allowed, last, over int
	for i := range int64(100) {
		switch reply := b.ask(r, epoch+i, 1, 0); {
		case reply.Wait < 0:
			over++
		case reply.Remaining == 0:
			last++
		default:
			allowed++
		}
	}
	if allowed != 4 || last != 1 || over != 95 {
		t.Errorf("%d, %d, %d", allowed, last, over)
	}
}

func TestAMissingTTLOfTheLogIsHealedAndAShortOneMadeLonger(t *testing.T) {
	b, l := newLog(t, redistest.Start(t).Client())
	r, key, ctx := rule(t, l), b.s.key, t.Context()
	b.ask(r, epoch, 10, 0)
	want := redistest.PExpireTime(ctx, b.s.rdb, key).Val()
	b.s.rdb.Persist(ctx, key)
	b.ask(r, epoch, 1, 0)
	if got := redistest.PExpireTime(ctx, b.s.rdb, key).Val(); got < want || got > want+10*time.Second {
		t.Errorf("until %v; it was %v", got, want)
	}
	longer := rule(t, algos.SlidingLog{Limit: 10, Window: 5 * time.Hour}) // by a deploy, of which some only ask
	b.ask(longer, epoch, 1, driver.Ask)
	if ttl := b.s.rdb.PTTL(ctx, key).Val(); ttl < 5*time.Hour {
		t.Errorf("%v for a window of 5 h", ttl)
	}
}

func TestTheLogLeavesAloneWhatIsNotItsOwn(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.SlidingLog{Limit: 10, Window: time.Second})
	script, err := driver.NewScript(r)
	if err != nil {
		t.Fatal(err)
	}
	rdb.Set(t.Context(), "string", "x", 0)
	for i, member := range []string{"user:17", "12:3:0:0", "00000000000000123:1:0:0", ""} {
		rdb.ZAdd(t.Context(), fmt.Sprint("zset ", i), redis.Z{Score: 1, Member: member})
	}
	for key, want := range map[string]string{"string": "WRONGTYPE", "zset 0": "FOREIGN", "zset 1": "FOREIGN", "zset 2": "FOREIGN", "zset 3": "FOREIGN"} {
		before := rdb.Dump(t.Context(), key).Val()
		err := rdb.Eval(t.Context(), script.Source, []string{key}, "", 10, second, 0, 1, 0).Err()
		if err == nil || !strings.Contains(err.Error(), want+" ") || rdb.Dump(t.Context(), key).Val() != before {
			t.Errorf("%s: %v", key, err)
		}
	}
}

func TestTheTTLOfTheLogCoversWhatCountsToTheMicrosecond(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, window := range []time.Duration{time.Microsecond, time.Millisecond, 1500 * time.Microsecond, time.Minute, 36524 * 24 * time.Hour / 100} {
		r := rule(t, algos.SlidingLog{Limit: 1, Window: window})
		script, err := driver.NewScript(r)
		if err != nil {
			t.Fatal(err)
		}
		source := strings.Replace(script.Source, "call('PEXPIRE', key, ttl)", "call('PEXPIRE', key, ttl)\nreplies = { ttl }", 1)
		ttl, err := rdb.Eval(t.Context(), source, []string{window.String()}, "", 1, window.Microseconds(), 0, 1, 0).Int64Slice()
		if want := (window + time.Millisecond - 1).Milliseconds() + 1; err != nil || len(ttl) != 1 || ttl[0] != want {
			t.Errorf("%v: TTL %v, %v; want %d", window, ttl, err, want)
		}
	}
}

func TestParametersOfASlidingLogThatCannotBeHeldAreRefused(t *testing.T) {
	for want, l := range map[string]algos.SlidingLog{
		"SlidingLog.Limit is 0;":              {Limit: 0, Window: time.Second},
		"SlidingLog.Limit is 35184372088833;": {Limit: 1<<45 + 1, Window: time.Second},
		"SlidingLog.Window is 0s;":            {Limit: 1},
		"SlidingLog.Window is 1.5µs;":         {Limit: 1, Window: 1500},
		"SlidingLog.Window is 9773h26m12":     {Limit: 1, Window: 1<<45*time.Microsecond + time.Second*51/100},
	} {
		if _, err := l.Rule(); !errors.Is(err, algos.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	r := rule(t, algos.SlidingLog{Limit: 1 << 45, Window: time.Second})
	if r.Name() != "sliding_log" || r.Suffix() != "sl" || r.Limit() != 1<<45 || r.Max() != 1<<45 || r.Horizon(1) != second {
		t.Errorf("%+v", r)
	}
	if r = rule(t, algos.SlidingLog{Limit: 1, Window: time.Second}); r.Horizon(1) != 1<<45 {
		t.Errorf("%+v", r)
	}
}

// While the first entry of a log stays, all refusals since then lie between it and the last one, those that were cleared
// too: however many permits they are, none is granted for it.
func TestNoNumberOfRefusalsComesRoundToAGrant(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.SlidingLog{Limit: 1 << 45, Window: time.Hour, CountDenied: true})
	all := driver.Request{Cost: 1 << 45}
	for _, atOnce := range []int{1, 70, 210} {
		b := newBoth(t, server{rdb: rdb, key: fmt.Sprint(atOnce)})
		granted := 0
		for call := range 210 / atOnce {
			requests := slices.Repeat([]driver.Request{all}, atOnce)
			for _, reply := range b.batch(r, int64(epoch+call), requests...) {
				if reply.Wait >= 0 {
					granted++
				}
			}
		}
		if granted != 1 {
			t.Errorf("%d were granted, of 210 in calls of %d", granted, atOnce)
		}
	}
}
