package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A process that remembers denials answers as one that always asks, to the microsecond, and asks less.
func TestRememberedDenialsAreThoseOfRedis(t *testing.T) {
	ctx := context.Background()
	algorithms := map[string]algos.Algorithm{
		"token bucket":   algos.TokenBucket{Rate: 2, Per: tick, Burst: 5},
		"leaky bucket":   algos.LeakyBucket{Rate: 2, Per: tick, Capacity: 4},
		"fixed window":   algos.FixedWindow{Limit: 5, Window: 2 * tick},
		"sliding log":    algos.SlidingLog{Limit: 5, Window: 2 * tick},
		"refusals count": algos.SlidingLog{Limit: 5, Window: 2 * tick, CountDenied: true},
		"sliding window": algos.SlidingWindow{Limit: 5, Window: 2 * tick, Cells: 10},
		"calendar":       algos.CalendarWindow{Limit: 5, Every: algos.Minute, Location: time.UTC},
		"warm-up":        algos.WarmUp{Rate: 2, Per: tick, Period: 4 * tick},
	}
	for name, algorithm := range algorithms {
		t.Run(name, func(t *testing.T) {
			inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
				random := rand.New(rand.NewPCG(1, 1))
				remembers := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock(), headgate.RememberDenials()), algorithm)
				asks := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), algorithm)
				remembered := 0
				for round := range 12 {
					a, b := remembers.For(fmt.Sprint("a", round)), asks.For(fmt.Sprint("b", round))
					var held [][2]*headgate.Reservation
					for range 40 {
						n := 1 + random.IntN(3)
						switch random.IntN(8) {
						case 0, 1:
							time.Sleep(time.Duration(random.IntN(100)) * tick / 100)
						case 2:
							bound := headgate.Within(time.Duration(random.IntN(4)) * tick / 2)
							r, errA := a.ReserveN(ctx, n, bound)
							s, errB := b.ReserveN(ctx, n, bound)
							if errors.Is(errA, headgate.ErrDenied) != errors.Is(errB, headgate.ErrDenied) {
								t.Fatalf("%v, want %v", errA, errB)
							}
							if errA == nil {
								if r.Delay() != s.Delay() {
									t.Fatalf("a slot %v off, want %v", r.Delay(), s.Delay())
								}
								held = append(held, [2]*headgate.Reservation{r, s})
							}
						case 3:
							for _, r := range held {
								cancel(t, r[0])
								cancel(t, r[1])
							}
							held = nil
						default:
							got, want := allowN(t, a, n), allowN(t, b, n)
							if got.Source == headgate.SourceRemembered {
								remembered++
							}
							if got.Allowed != want.Allowed || got.Remaining > want.Remaining || got.RetryAfter > want.RetryAfter ||
								got.Source == headgate.SourceRedis && got != want {
								t.Fatalf("%d permits: %+v, want %+v", n, got, want)
							}
						}
					}
				}
				if counts := name == "refusals count"; counts != (remembered == 0) {
					t.Errorf("%d answers were remembered", remembered)
				}
			})
		})
	}
}

func TestADenialIsRememberedByCostUntilItsInstant(t *testing.T) {
	ctx := context.Background()
	inRedisTime(t, func(t *testing.T, server *redistest.Server, rdb *redis.Client) {
		store := headgate.Redis(rdb, headgate.ClientClock(), headgate.RememberDenials())
		l := newLimiter(t, store, algos.TokenBucket{Rate: 1, Per: tick, Burst: 4})
		allowN(t, l, 3)
		want := func(n int, allowed bool, retry time.Duration, source headgate.Source) {
			t.Helper()
			if d := allowN(t, l, n); d.Allowed != allowed || d.RetryAfter != retry || d.Source != source {
				t.Errorf("%d permits: %+v, want %v after %v by %s", n, d, allowed, retry, source)
			}
		}
		want(3, false, 2*tick, headgate.SourceRedis)
		before := server.Calls("evalsha")
		want(3, false, 2*tick, headgate.SourceRemembered)
		want(4, false, 2*tick, headgate.SourceRemembered) // at the least
		time.Sleep(tick / 2)
		want(3, false, 3*tick/2, headgate.SourceRemembered)
		if err := l.WaitN(contextFor(t, tick), 3); !errors.Is(err, headgate.ErrDenied) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a wait beyond its deadline: %v", err)
		}
		if calls := server.Calls("evalsha") - before; calls != 0 {
			t.Errorf("%d calls", calls)
		}
		want(2, false, tick/2, headgate.SourceRedis) // fewer were not refused before
		want(2, false, tick/2, headgate.SourceRemembered)
		want(3, false, 3*tick/2, headgate.SourceRemembered)
		if d, err := l.Peek(ctx); err != nil || d.Source != headgate.SourceRedis || !d.Allowed {
			t.Errorf("a Peek: %+v, %v", d, err)
		}
		time.Sleep(3*tick/2 - time.Microsecond)
		want(3, false, time.Microsecond, headgate.SourceRemembered)
		time.Sleep(time.Microsecond)
		want(3, true, 0, headgate.SourceRedis)
	})
}

func contextFor(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// What is given back or reset is taken into account at once, under whatever limiter of the key.
func TestADenialIsForgottenWithAnyChange(t *testing.T) {
	ctx := context.Background()
	bucket := algos.TokenBucket{Rate: 1, Per: tick, Burst: 2}
	for name, change := range map[string]func(t *testing.T, twin *headgate.Limiter, held *headgate.Reservation){
		"a cancelled reservation": func(t *testing.T, _ *headgate.Limiter, held *headgate.Reservation) { cancel(t, held) },
		"a reset": func(t *testing.T, twin *headgate.Limiter, _ *headgate.Reservation) {
			if err := twin.Reset(ctx); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
				store := headgate.Redis(rdb, headgate.ClientClock(), headgate.RememberDenials())
				l, twin := newLimiter(t, store, bucket), newLimiter(t, store, bucket)
				allowN(t, l, 2)
				held := reserve(t, twin, 2)
				time.Sleep(tick)
				for range 2 {
					if allowN(t, l, 1).Allowed {
						t.Fatal("there is nothing left")
					}
				}
				if change(t, twin, held); !allowN(t, l, 1).Allowed {
					t.Error("it is still denied")
				}
			})
		})
	}
}
