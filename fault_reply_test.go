package headgate_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// Each call that writes, and whose reply is lost after Redis has executed it: by the server's own count it ran once, what it
// charged or gave back is there once, and its caller hears that the outcome is unknown. So it is if Redis did not have the
// script, and the reply that is lost is that of the EVAL.
func TestWhatRanAndWhoseReplyIsLostRanOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	leaving, stop := context.WithTimeout(ctx, 24*365*time.Hour)
	defer stop()
	w := newWire(t, func(o *redis.Options) { o.ReadTimeout = 250 * time.Millisecond }) // for what comes before, on a busy machine
	far, near := newShared(t, headgate.Redis(w.client)), newShared(t, headgate.Redis(w.server.Client()))
	other := algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 7}
	var held *headgate.Reservation // of 5 permits
	only := func(_ bool, err error) error { return err }

	// The network fails as soon as the command is sent.
	var command atomic.Value
	var fate atomic.Int32
	command.Store("")
	w.client.AddHook(onCall(func(cmd redis.Cmder) error {
		if cmd.Name() == command.Load() {
			w.proxy.Set(redistest.Fate(fate.Load()))
		}
		return nil
	}))

	for _, call := range []struct {
		name    string
		run     func() error
		charged int             // afterwards, by the limiter: it was 1005
		rate    algos.Algorithm // afterwards, of the shared limiter, which was slow
		shared  int             // charged there, where it was 1
	}{
		{"AllowN, denied", func() error { _, err := w.remote.AllowN(ctx, 7); return err }, 1005, slow, 1},
		{"the same of one who may leave", func() error { _, err := w.remote.AllowN(leaving, 7); return err }, 1005, slow, 1},
		{"ReserveN", func() error { _, err := w.remote.ReserveN(ctx, 7); return err }, 1012, slow, 1},
		{"WaitN", func() error { return w.remote.WaitN(leaving, 7) }, 1012, slow, 1},
		{"Cancel", func() error { return held.Cancel(ctx) }, 1000, slow, 1},
		{"Cancel of one who may leave", func() error { return held.Cancel(leaving) }, 1000, slow, 1},
		{"Reset", func() error { return w.remote.Reset(ctx) }, 0, slow, 1},
		{"AllowN of a shared limiter", func() error { _, err := far.AllowN(ctx, 7); return err }, 1005, slow, 8},
		{"TrySetRate", func() error { return only(far.TrySetRate(ctx, other)) }, 1005, slow, 1},
		{"SetRate", func() error { return only(far.SetRate(ctx, other)) }, 1005, other, 0},
		{"UpdateRate", func() error { return only(far.UpdateRate(ctx, other)) }, 1005, other, 1},
		{"Expire", func() error { return far.Expire(ctx, time.Hour) }, 1005, slow, 1},
		{"ClearExpire", func() error { return far.ClearExpire(ctx) }, 1005, slow, 1},
		{"Delete", func() error { return far.Delete(ctx) }, 1005, nil, 0},
	} {
		for _, lost := range []string{"evalsha", "eval"} {
			for network, does := range map[string]redistest.Fate{"swallows": redistest.Swallow, "cuts": redistest.Cut} {
				t.Run(call.name+", a network that "+network+" the reply to "+lost, func(t *testing.T) {
					if call.name == "Reset" {
						lost = "del"
					}
					command.Store("")
					w.proxy.Set(redistest.Pass)
					admin := w.server.Admin()
					admin.FlushAll(ctx)
					allowN(t, w.direct, 1000) // so that the reservation lies ahead, and may be cancelled
					held = reserve(t, w.remote, 5)
					changed(t, true)(near.SetRate(ctx, slow))
					allowN(t, &far.Limiter, 1)
					if lost == "eval" {
						admin.ScriptFlush(ctx)
					}
					before := w.server.Calls(lost)
					fate.Store(int32(does))
					command.Store(lost)
					err := call.run()
					ran := w.server.Calls(lost) - before
					command.Store("")
					w.proxy.Set(redistest.Pass)
					wantUnknown(t, err, true)
					if ran != 1 {
						t.Errorf("the server ran it %d times", ran)
					}
					if got := owed(t, w.direct); got != call.charged {
						t.Errorf("%d permits are charged, want %d", got, call.charged)
					}
					algorithm, err := near.Rate(ctx)
					if call.rate == nil {
						if !errors.Is(err, headgate.ErrNotInitialized) {
							t.Errorf("%+v, %v", algorithm, err)
						}
						return
					}
					if err != nil || algorithm != call.rate {
						t.Errorf("the rate is %+v, %v", algorithm, err)
					}
					d, err := near.Peek(ctx)
					if err != nil || d.Limit-d.Remaining != call.shared {
						t.Errorf("the shared limiter: %+v, %v", d, err)
					}
				})
			}
		}
	}
}

// owed is how many permits of the slow limiter are charged, those that were reserved ahead included.
func owed(t *testing.T, l *headgate.Limiter) int {
	t.Helper()
	d, err := l.Peek(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return int((d.ResetAfter + slow.Per - 1) / slow.Per)
}

// Those who share a call or a pipeline whose reply is lost: each is charged once at most, and hears so.
func TestThoseWhoShareALostReplyAreChargedOnce(t *testing.T) {
	const callers = 40
	for name, key := range map[string]func(l *headgate.Limiter, i int) *headgate.Limiter{
		"one key":   func(l *headgate.Limiter, _ int) *headgate.Limiter { return l },
		"many keys": func(l *headgate.Limiter, i int) *headgate.Limiter { return l.For(string(rune('a' + i))) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t, func(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond })
			w.proxy.Set(redistest.Hold)
			errs := make(chan error, callers)
			for i := range callers {
				go func() {
					_, err := key(w.remote, i).Allow(context.Background())
					errs <- err
				}()
			}
			w.proxy.Holding()
			w.proxy.Set(redistest.Swallow)
			failed := 0
			for range callers {
				if err := <-errs; err != nil {
					wantUnknown(t, err, true)
					failed++
				}
			}
			if failed != callers {
				t.Errorf("%d replies were lost", failed)
			}
			charged := make([]int, callers)
			for i := range callers {
				charged[i] = owed(t, key(w.direct, i))
			}
			if most := slices.Max(charged); name == "one key" && most != callers || name == "many keys" && most != 1 {
				t.Errorf("charged: %d", charged)
			}
		})
	}
}

// A loser has the reply to some commands lost, and is told what became of them.
type loser struct {
	redis.Hook
	lose func(redis.Cmder) bool
	end  func(redis.Cmder, error)
}

func (loser) DialHook(next redis.DialHook) redis.DialHook { return next }
func (loser) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l loser) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		lost := l.lose(cmd)
		err := next(ctx, cmd)
		if lost {
			l.end(cmd, err)
		}
		return err
	}
}

// A lease whose reply is lost is charged once, and nobody has it; all else is handed out. What Close gives back comes back
// once, and if its reply is lost Close says so. The witness counts what was admitted from the first permit to the last.
func TestALeaseWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	const burst, lease, losses = 1000, 16, 4
	for network, does := range map[string]redistest.Fate{"swallows": redistest.Swallow, "cuts": redistest.Cut} {
		t.Run("a network that "+network+" it", func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			w := newWire(t, func(o *redis.Options) { o.ReadTimeout = 500 * time.Millisecond })
			store := headgate.Redis(w.client, headgate.Unbatched())
			bucket := algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: burst}
			l := newLimiter(t, store, bucket, headgate.WithLease(lease))
			var fetches, lost, gone, fetching atomic.Int64 // gone: permits in the leases that were lost
			var closing atomic.Bool
			var before int // calls, when what is left is given back
			w.client.AddHook(loser{
				lose: func(cmd redis.Cmder) bool {
					if !isFetch(cmd) {
						if closing.CompareAndSwap(true, false) {
							before = w.server.Calls("evalsha")
							w.proxy.SetOne(1, does)
						}
						return false
					}
					fetching.Add(1)
					if fetches.Add(1)%2 == 1 && lost.Load() < losses {
						w.proxy.SetOne(1, does)
					}
					return true
				},
				end: func(cmd redis.Cmder, err error) {
					defer fetching.Add(-1)
					if err == nil {
						return
					}
					total, _ := cmd.Args()[len(cmd.Args())-2].(int64) // with what is waited for
					if total < 1 || total > lease+1 {
						t.Errorf("a lease of %d, and a caller of 1, are fetched by %v", lease, cmd.Args())
					}
					lost.Add(1)
					gone.Add(total)
				},
			})
			var admitted int64
			ask := func(pause time.Duration) headgate.Decision {
				d, err := l.Allow(ctx)
				if err != nil { // its own reply was lost, since it did not wait for the lease
					wantUnknown(t, err, true)
					gone.Add(1)
				}
				if d.Allowed {
					admitted++
				} else if err == nil && pause > 0 {
					t.Fatalf("nothing is left after %d, with %d replies lost", admitted, lost.Load())
				}
				time.Sleep(pause)
				return d
			}
			// Until enough are lost, one is at hand, and none is on its way.
			for left := false; !left; {
				d := ask(2 * time.Millisecond) // the next lease comes before one is used up
				left = lost.Load() == losses && d.Source == headgate.SourceLease && d.Remaining > lease/2 && fetching.Load() == 0
			}
			closing.Store(true)
			wantUnknown(t, l.Close(ctx), true)
			if err := l.Close(ctx); err != nil {
				t.Errorf("a second Close: %v", err)
			}
			if ran := w.server.Calls("evalsha") - before; ran != 1 {
				t.Errorf("%d calls gave the lease back", ran)
			}
			t.Logf("%d admitted, %d permits gone in %d leases", admitted, gone.Load(), lost.Load())
			for ask(0).Allowed {
			}
			if admitted != burst-gone.Load() {
				t.Errorf("%d were admitted of %d less the %d that were lost", admitted, burst, gone.Load())
			}
		})
	}
}
