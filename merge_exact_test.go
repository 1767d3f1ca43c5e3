package headgate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A tape has what Redis was asked and answered, in its order.
type tape struct {
	mu    sync.Mutex
	calls []redis.Cmder
}

func (*tape) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*tape) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (tp *tape) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if !strings.HasPrefix(cmd.Name(), "eval") {
			return next(ctx, cmd)
		}
		tp.mu.Lock() // one at a time: on a slow machine some do not wait for a call any more, and the order would be lost
		defer tp.mu.Unlock()
		cmd.Args()[4] = time.Now().UnixMicro() // the client's clock, lest a call that waited here has an earlier one than that before it
		err := next(ctx, cmd)
		if err == nil {
			tp.calls = append(tp.calls, cmd)
		}
		return err
	}
}

// Sixty-four goroutines do what they like with one key. The calls that they share are answered as the rule in Go answers
// their requests one by one, and each caller gets the answer to his own.
func TestMergedAnswersAreThoseOfRequestsThatComeOneByOne(t *testing.T) {
	const day = 24 * time.Hour
	for name, algorithm := range map[string]algos.Algorithm{
		"token bucket":   algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 10},
		"leaky bucket":   algos.LeakyBucket{Rate: 50, Per: time.Second, Capacity: 100},
		"fixed window":   algos.FixedWindow{Limit: 30, Window: 500 * time.Millisecond},
		"sliding log":    algos.SlidingLog{Limit: 30, Window: 500 * time.Millisecond},
		"refusals count": algos.SlidingLog{Limit: 30, Window: 500 * time.Millisecond, CountDenied: true},
		"sliding window": algos.SlidingWindow{Limit: 30, Window: 500 * time.Millisecond, Cells: 10},
		"calendar":       algos.CalendarWindow{Limit: 500, Every: algos.Day, Location: time.UTC},
		"warm-up":        algos.WarmUp{Rate: 50, Per: time.Second, Period: day},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := redistest.Start(t).Client()
			var tp tape
			rdb.AddHook(&tp)
			store := Redis(rdb, ClientClock())
			store.(*redisStore).outbox.alone = true // on a slow machine several do not wait, and the tape has no pipelines
			l, err := New(store, "merged", algorithm)
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			got := make(map[string]int)
			tell := func(d Decision) {
				mu.Lock()
				defer mu.Unlock()
				got[fmt.Sprint(d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter)]++
			}
			var all sync.WaitGroup
			for i := range 64 {
				all.Go(func() {
					random := rand.New(rand.NewPCG(1, uint64(i)))
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					for range 30 {
						n := 1 + random.IntN(3)
						if random.IntN(2) == 0 {
							d, err := l.AllowN(ctx, n)
							if err != nil {
								t.Error(err)
							}
							tell(d)
							continue
						}
						r, err := l.ReserveN(context.Background(), n, Within(time.Duration(random.IntN(2000))*time.Millisecond))
						if refusal, ok := errors.AsType[*DeniedError](err); ok {
							tell(refusal.Decision)
						} else if err != nil {
							t.Error(err)
						} else if tell(r.grant.decision()); random.IntN(2) == 0 {
							if err := r.Cancel(ctx); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			all.Wait()

			state, now, requests := l.plan.rule.NewState(), int64(0), 0
			for _, cmd := range tp.calls {
				asked := readCall(t, l.plan, cmd)
				now = max(now, asked.now)
				replies := make([]driver.Reply, len(asked.requests))
				for i := range asked.requests { // one by one
					driver.Run(state, l.plan.rule, now, asked.requests[i:i+1], replies[i:i+1])
					if replies[i] != asked.replies[i] {
						t.Fatalf("%+v is answered %+v, want %+v", asked.requests[i], asked.replies[i], replies[i])
					}
					if asked.requests[i].Cost < 0 {
						continue
					}
					requests++
					d := (&grant{Reply: replies[i], store: l.store, plan: l.plan}).decision()
					key := fmt.Sprint(d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter)
					if got[key]--; got[key] < 0 {
						t.Fatalf("nobody was told %s", key)
					}
				}
			}
			if requests != 64*30 || len(tp.calls) > requests/2 {
				t.Errorf("%d requests in %d calls", requests, len(tp.calls))
			}
		})
	}
}

// asked is a call, read back from its arguments.
type asked struct {
	now      int64
	requests []driver.Request
	replies  []driver.Reply
}

func readCall(t *testing.T, p *plan, cmd redis.Cmder) (a asked) {
	t.Helper()
	var n []int64
	for _, arg := range cmd.Args()[4:] { // evalsha, the script, 1, the key
		i, err := strconv.ParseInt(fmt.Sprint(arg), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		n = append(n, i)
	}
	a.now = n[0]
	params, _ := p.rule.Params(a.now)
	for n = n[1+len(params):]; len(n) > 0; {
		switch {
		case n[0] == 0:
			a.requests, n = slices.Repeat([]driver.Request{{Cost: n[2], Bound: n[3]}}, int(n[1])), n[4:]
		case n[0] > 0:
			a.requests, n = append(a.requests, driver.Request{Cost: n[0], Bound: n[1]}), n[2:]
		default:
			a.requests = append(a.requests, driver.Request{Cost: n[0], Receipt: algos.Receipt{Period: n[1], Number: n[2]}})
			n = n[3:]
		}
	}
	replies, err := cmd.(once).Cmder.(*redis.IntSliceCmd).Result()
	if err != nil {
		t.Fatal(err)
	}
	read, ok := driver.ReadReplies(replies, p.rule, a.requests)
	if !ok {
		t.Fatalf("%d integers answer %d requests", len(replies), len(a.requests))
	}
	for i := range a.requests {
		a.replies = append(a.replies, read.At(i))
	}
	return a
}

// Ten thousand calls whose callers leave when they like: what is charged in the end is what somebody was told.
func TestCallersWhoLeaveAtRandomLoseNoPermit(t *testing.T) {
	rdb := redistest.Start(t).Client()
	l, err := New(Redis(rdb), "random", algos.FixedWindow{Limit: 1_000_000, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var charged atomic.Int64
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(i)))
			for range 10_000 / 64 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(2000))*time.Microsecond)
				if d, err := l.Allow(ctx); err == nil && d.Allowed {
					charged.Add(1)
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%+v, %v", d, err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if charged.Load() == 0 {
		t.Error("nobody was served")
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		d, err := l.Peek(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if int64(d.Limit-d.Remaining) == charged.Load() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d are charged, and %d were told so", d.Limit-d.Remaining, charged.Load())
		}
	}
}
