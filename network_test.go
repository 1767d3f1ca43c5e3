package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// slow is a bucket that refills too slowly to notice, so that what is left tells how often it was charged.
var slow = algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000}

// A wire is a limiter behind a bad network, and a way round it for the test.
type wire struct {
	server *redistest.Server
	proxy  *redistest.Proxy
	client *redis.Client // through the proxy
	remote *headgate.Limiter
	direct *headgate.Limiter
}

func newWire(t *testing.T, configure ...func(*redis.Options)) wire {
	t.Helper()
	w := wire{server: redistest.Start(t)}
	w.proxy = redistest.NewProxy(t, w.server.Addr)
	w.client = w.server.Client(append(configure, func(o *redis.Options) { o.Addr = w.proxy.Addr })...)
	w.remote = newLimiter(t, headgate.Redis(w.client), slow)
	w.direct = newLimiter(t, headgate.Redis(w.server.Client()), slow)
	allowN(t, w.remote, 1) // connects, and loads the script
	if err := w.direct.Reset(context.Background()); err != nil {
		t.Fatal(err)
	}
	return w
}

// charged is how many permits are charged, seen past the bad network.
func (w wire) charged(t *testing.T) int {
	t.Helper()
	d, err := w.direct.Peek(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return d.Limit - d.Remaining
}

// eventually waits for what happens behind the test's back.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Errorf("never happened: %s", what)
}

func wantUnknown(t *testing.T, err error, unknown bool) {
	t.Helper()
	failed, ok := errors.AsType[*headgate.StoreError](err)
	if !ok || failed.Unknown != unknown || errors.Is(err, headgate.ErrDenied) {
		t.Errorf("got %v; want a *StoreError whose Unknown is %v", err, unknown)
	}
}

// rate-limit-redis #251, redis-rb #953, jedis #3187: go-redis too sends a command again after a network error, three
// times by default.
func TestALostReplyIsChargedOnce(t *testing.T) {
	for name, fate := range map[string]redistest.Fate{"swallowed": redistest.Swallow, "cut": redistest.Cut} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t, func(o *redis.Options) { o.ReadTimeout = 100 * time.Millisecond })
			calls := w.server.Calls("evalsha")
			w.proxy.Set(fate)
			_, err := w.remote.Allow(context.Background())
			wantUnknown(t, err, true)
			if got := w.server.Calls("evalsha") - calls; got != 1 {
				t.Errorf("%d calls reached the server", got)
			}
			if got := w.charged(t); got != 1 {
				t.Errorf("%d permits charged for one call", got)
			}
		})
	}
}

// Every kind of client, each of which would send a charge again in a way of its own.
func TestALostReplyIsChargedOnceWhateverTheClient(t *testing.T) {
	brief := 100 * time.Millisecond
	for name, connect := range map[string]func(t *testing.T) (*redistest.Server, *redistest.Proxy, redis.UniversalClient){
		"cluster": func(t *testing.T) (*redistest.Server, *redistest.Proxy, redis.UniversalClient) {
			server := redistest.Cluster(t, 1)[0]
			proxy := redistest.NewProxy(t, server.Addr)
			return server, proxy, redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{proxy.Addr}, ReadTimeout: brief,
				ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
					return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: proxy.Addr}}}}, nil
				},
			})
		},
		"ring": func(t *testing.T) (*redistest.Server, *redistest.Proxy, redis.UniversalClient) {
			server := redistest.Start(t)
			proxy := redistest.NewProxy(t, server.Addr)
			return server, proxy, redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": proxy.Addr}, ReadTimeout: brief})
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, proxy, rdb := connect(t)
			defer rdb.Close()
			l := newLimiter(t, headgate.Redis(rdb), slow)
			allowN(t, l, 1)
			calls := server.Calls("evalsha")
			proxy.Set(redistest.Swallow)
			_, err := l.Allow(context.Background())
			wantUnknown(t, err, true)
			if got := server.Calls("evalsha") - calls; got != 1 {
				t.Errorf("%d calls reached the server", got)
			}
		})
	}
}

// A second DEL would forget what others were charged after the first.
func TestALostReplyResetsOnce(t *testing.T) {
	w := newWire(t)
	before := w.server.Calls("del")
	w.proxy.Set(redistest.Cut)
	wantUnknown(t, w.remote.Reset(context.Background()), true)
	if got := w.server.Calls("del") - before; got != 1 {
		t.Errorf("%d calls reached the server", got)
	}
}

// Who has left while waiting for a connection is not charged, nor does Redis hear of it when it comes back.
func TestCallersWhoLeftBeforeTheirCallWasSentAreNotCharged(t *testing.T) {
	w := newWire(t, func(o *redis.Options) { o.PoolSize, o.PoolTimeout, o.ReadTimeout = 1, time.Minute, time.Minute })
	w.remote = newLimiter(t, headgate.Redis(w.client, headgate.Unbatched()), slow)
	w.proxy.Set(redistest.Hold)
	calls := w.server.Calls("evalsha")
	ctx, stop := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			_, err := w.remote.Allow(ctx)
			wantUnknown(t, err, true)
		})
	}
	w.proxy.Holding() // one was sent, and the others wait for its connection
	eventually(t, "the others wait", func() bool { return w.client.PoolStats().PendingRequests >= 19 })
	stop()
	callers.Wait()
	w.proxy.Set(redistest.Pass)
	peeks := 0
	eventually(t, "nobody waits, and the one that was sent gave back", func() bool {
		peeks++
		return w.charged(t) == 0 && w.client.PoolStats().PendingRequests == 0
	})
	if got := w.server.Calls("evalsha") - calls - peeks; got != 2 {
		t.Errorf("%d calls reached the server; want a charge and its give-back", got)
	}
}

func TestNoConnectionIsKnownToHaveChargedNothing(t *testing.T) {
	w := newWire(t, func(o *redis.Options) {
		o.PoolSize, o.PoolTimeout, o.ReadTimeout = 1, 50*time.Millisecond, time.Minute
	})
	w.remote = newLimiter(t, headgate.Redis(w.client, headgate.Unbatched()), slow)
	w.proxy.Set(redistest.Hold)
	sent := make(chan error)
	go func() {
		_, err := w.remote.Allow(context.Background())
		sent <- err
	}()
	w.proxy.Holding()
	_, err := w.remote.Allow(context.Background())
	wantUnknown(t, err, false)
	if !errors.Is(err, redis.ErrPoolTimeout) {
		t.Errorf("%v", err)
	}
	w.proxy.Set(redistest.Pass)
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func TestAStalledRedisHoldsNobodyPastItsContext(t *testing.T) {
	for _, honoured := range []bool{false, true} {
		for name, bounded := range map[string]func() (context.Context, context.CancelFunc){
			"deadline": func() (context.Context, context.CancelFunc) {
				return context.WithTimeout(context.Background(), 50*time.Millisecond)
			},
			"cancellation": func() (context.Context, context.CancelFunc) {
				ctx, stop := context.WithCancel(context.Background())
				time.AfterFunc(50*time.Millisecond, stop)
				return ctx, stop
			},
		} {
			for verb, call := range map[string]func(context.Context, *headgate.Limiter) error{
				"Allow":   func(ctx context.Context, l *headgate.Limiter) error { _, err := l.Allow(ctx); return err },
				"Reserve": func(ctx context.Context, l *headgate.Limiter) error { _, err := l.Reserve(ctx); return err },
				"Wait":    func(ctx context.Context, l *headgate.Limiter) error { return l.Wait(ctx) },
				"Peek":    func(ctx context.Context, l *headgate.Limiter) error { _, err := l.Peek(ctx); return err },
				"Reset":   func(ctx context.Context, l *headgate.Limiter) error { return l.Reset(ctx) },
			} {
				t.Run(fmt.Sprintf("%s, %s, ContextTimeoutEnabled %v", verb, name, honoured), func(t *testing.T) {
					w := newWire(t, func(o *redis.Options) { o.ContextTimeoutEnabled, o.ReadTimeout = honoured, time.Minute })
					w.proxy.Set(redistest.Hold)
					ctx, stop := bounded()
					defer stop()
					err := call(ctx, w.remote) // returns while the reply is held: it does not depend on it
					wantUnknown(t, err, true)
					if !errors.Is(err, ctx.Err()) {
						t.Errorf("%v, and the context says %v", err, ctx.Err())
					}
					if got := w.charged(t); got != 1 && verb != "Peek" && verb != "Reset" {
						t.Errorf("%d charged before the reply came", got)
					}
					// The reply comes after the caller left: what it grants goes back.
					w.proxy.Set(redistest.Pass)
					eventually(t, "the late grant was given back", func() bool { return w.charged(t) == 0 })
				})
			}
		}
	}
}

func TestGivingBackToAStalledRedisHoldsNobody(t *testing.T) {
	w := newWire(t, func(o *redis.Options) { o.ReadTimeout = time.Hour })
	take := func() *headgate.Reservation {
		if left := 1000 - w.charged(t); left > 0 {
			allowN(t, w.direct, left) // so that the slot lies ahead
		}
		return reserve(t, w.remote, 1)
	}
	t.Run("Cancel under a context that has ended", func(t *testing.T) {
		r := take()
		w.proxy.Set(redistest.Hold)
		ctx, stop := context.WithCancel(context.Background())
		stop()
		wantUnknown(t, r.Cancel(ctx), true)
		w.proxy.Set(redistest.Pass)
	})
	t.Run("stopping an AfterFunc", func(t *testing.T) {
		stop := take().AfterFunc(func() {})
		w.proxy.Set(redistest.Hold)
		if !stop() {
			t.Error("there was nothing to stop")
		}
		w.proxy.Set(redistest.Pass)
	})
	t.Run("Wait cancelled in its sleep", func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		asleep := make(chan struct{})
		l := newLimiter(t, headgate.Redis(w.client), slow, headgate.WithHook(func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
			if op.Verb == headgate.VerbSleep {
				close(asleep)
			}
			return ctx, nil
		}))
		done := make(chan error)
		go func() { done <- l.Wait(ctx) }()
		<-asleep
		w.proxy.Set(redistest.Hold)
		stop()
		if err := <-done; err != context.Canceled {
			t.Errorf("%v", err)
		}
		w.proxy.Set(redistest.Pass)
	})
}

func TestAFailedDialIsKnownToHaveChargedNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // nobody listens there now
	rdb := redis.NewClient(&redis.Options{Addr: l.Addr().String(), MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	_, err = newLimiter(t, headgate.Redis(rdb), slow).Allow(context.Background())
	wantUnknown(t, err, false)
}

// PyrateLimiter #182, upstash #122 and others fail for good after the scripts are gone.
func TestScriptFlushInMidTrafficIsNotNoticed(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client()
	l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: 24 * time.Hour, Burst: 30_000_000 / 86400})
	stop := make(chan struct{})
	var flushing, calling sync.WaitGroup
	flushing.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := rdb.ScriptFlush(context.Background()).Err(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	const callers, each = 8, 40
	for range callers {
		calling.Go(func() {
			for range each {
				if d, err := l.Allow(context.Background()); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			}
		})
	}
	calling.Wait()
	close(stop)
	flushing.Wait()
	if d, err := l.Peek(context.Background()); err != nil || d.Limit-d.Remaining != callers*each {
		t.Errorf("%d charged for %d calls, %v", d.Limit-d.Remaining, callers*each, err)
	}
	if server.Calls("eval") == 0 {
		t.Error("the script was never missing: this test tests nothing")
	}
}

func TestARestartFailsOnlyTheCallsInFlight(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute })
	l := newLimiter(t, headgate.Redis(rdb, headgate.Unbatched()), slow)
	const callers = 20
	together := func(want func(error)) *sync.WaitGroup {
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				_, err := l.Allow(context.Background())
				want(err)
			})
		}
		return &wg
	}
	succeed := func(err error) {
		if err != nil {
			t.Error(err)
		}
	}
	together(succeed).Wait() // fills the pool with connections
	server.Pause()
	inFlight := together(func(err error) { wantUnknown(t, err, true) })
	eventually(t, "all calls are in flight", func() bool { s := rdb.PoolStats(); return s.TotalConns-s.IdleConns == callers })
	server.Kill()
	inFlight.Wait()
	server.Restart()
	together(succeed).Wait()
}

func TestClientPauseDelaysThoseWhoCanWait(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute })
	l := newLimiter(t, headgate.Redis(rdb, headgate.Unbatched()), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 3})
	allowN(t, l, 1)
	admin := server.Client()
	if err := admin.Do(context.Background(), "CLIENT", "PAUSE", "60000", "WRITE").Err(); redis.HasErrorPrefix(err, "Unknown subcommand") {
		t.Skip("Redis 6.0 cannot be told to go on")
	} else if err != nil {
		t.Fatal(err)
	}
	patient := make(chan error)
	go func() { patient <- l.Wait(context.Background()) }()
	ctx, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	_, err := l.Allow(ctx)
	wantUnknown(t, err, true)
	if err := admin.ClientUnpause(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := <-patient; err != nil {
		t.Errorf("the caller without a deadline: %v", err)
	}
	eventually(t, "what the impatient caller was charged came back", func() bool { return allowN(t, l, 1).Allowed })
	if allowN(t, l, 1).Allowed {
		t.Error("more came back than was charged")
	}
}
