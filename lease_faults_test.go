package headgate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// held keeps the replies to some commands back for a second.
type held struct {
	redis.Hook
	which func(redis.Cmder) bool
}

func (held) DialHook(next redis.DialHook) redis.DialHook { return next }
func (held) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h held) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if h.which(cmd) {
			time.Sleep(time.Second)
		}
		return err
	}
}

// isFetch tells the call of a lease, which asks how long the line is.
func isFetch(cmd redis.Cmder) bool {
	return strings.HasPrefix(cmd.Name(), "eval") && slices.ContainsFunc(cmd.Args(), func(arg any) bool { return fmt.Sprint(arg) == "-1" })
}

func TestAResetForgetsALeaseOnItsWay(t *testing.T) {
	ctx := context.Background()
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		rdb.AddHook(held{which: isFetch})
		l := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock(), headgate.Unbatched()), algos.TokenBucket{Rate: 1, Per: 100 * tick, Burst: 10}, headgate.WithLease(5))
		defer closeAll(t, []*headgate.Limiter{l})
		allowN(t, l, 1)
		allowN(t, l, 1) // it does not wait for long for the two that are fetched
		if err := l.Reset(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if d := allowN(t, l, 1); d.Source != headgate.SourceRedis || d.Remaining != 9 {
			t.Errorf("after a reset of ten: %+v", d)
		}
	})
}

// A lease that the limiter had too little left for is followed by one of half its size, until one fits.
func TestLeasesShrinkWhereTheyAreRefused(t *testing.T) {
	ctx := context.Background()
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		bucket := algos.TokenBucket{Rate: 1, Per: tick, Burst: 1000}
		l := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), bucket, headgate.WithLease(256))
		defer closeAll(t, []*headgate.Limiter{l})
		warm(t, l, 256)
		plain := newLimiter(t, headgate.Redis(rdb, headgate.ClientClock()), bucket)
		d, err := plain.Peek(ctx)
		if err != nil {
			t.Fatal(err)
		}
		allowN(t, plain, d.Remaining-60) // a lease of 32 fits, and no larger one
		asked := 0                       // of Redis
		for range 600 {
			d := allowN(t, l, 1)
			if !d.Allowed {
				break
			}
			if d.Source == headgate.SourceRedis {
				asked++
			}
			synctest.Wait()
			time.Sleep(100 * time.Millisecond) // what was refused is not tried again at once
		}
		if asked > 30 {
			t.Errorf("%d of the last 60 were not leased", asked)
		}
	})
}

// Close leaves when its context ends, and holds nobody else: they go to Redis, by their own deadlines.
func TestCloseHoldsNobody(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	rdb := server.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute })
	l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 10_000}, headgate.WithLease(100))
	for d := allowN(t, l, 1); d.Source != headgate.SourceLease || d.Remaining <= 60; d = allowN(t, l, 1) { // nothing is being fetched
	}
	server.Pause()
	defer server.Resume()
	if err := l.Close(contextFor(t, 20*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close: %v", err)
	}
	left := make(chan error, 1)
	go func() {
		_, err := l.Allow(contextFor(t, 20*time.Millisecond))
		left <- err
	}()
	select {
	case err := <-left:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Allow: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a caller waits for a Close")
	}
	if err := l.Close(contextFor(t, 20*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second Close, while the first is not done: %v", err)
	}
	server.Resume()
	if err := l.Close(ctx); err != nil {
		t.Errorf("a third Close: %v", err)
	}
	plain := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 10_000})
	d, err := plain.Peek(ctx)
	if err != nil || d.Remaining < 10_000-1000 {
		t.Errorf("%+v, %v", d, err)
	}
}

// A DEL that is done after its caller has left makes what was refused meanwhile old, too.
func TestADenialIsForgottenByAResetThatComesLate(t *testing.T) {
	ctx := context.Background()
	done := make(chan struct{})
	rdb := redistest.Start(t).Client(func(o *redis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			return slowDel{conn, done}, err
		}
	})
	l := newLimiter(t, headgate.Redis(rdb, headgate.RememberDenials()), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1})
	allowN(t, l, 1)
	if err := l.Reset(contextFor(t, 20*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Reset: %v", err)
	}
	for range 2 {
		if allowN(t, l, 1).Allowed {
			t.Fatal("there is nothing left")
		}
	}
	close(done)
	eventually(t, "the reset is seen", func() bool {
		d, err := l.Allow(ctx)
		return err == nil && d.Allowed
	})
}

// slowDel is a connection on which a DEL is on its way until a channel is closed.
type slowDel struct {
	net.Conn
	done <-chan struct{}
}

func (c slowDel) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("\r\ndel\r\n")) {
		<-c.done
	}
	return c.Conn.Write(b)
}

func TestADenialIsForgottenWhereOtherParametersDecide(t *testing.T) {
	inRedisTime(t, func(t *testing.T, _ *redistest.Server, rdb *redis.Client) {
		store := headgate.Redis(rdb, headgate.ClientClock(), headgate.RememberDenials())
		slow := newLimiter(t, store, algos.TokenBucket{Rate: 1, Per: 1000 * tick, Burst: 1})
		fast := newLimiter(t, store, algos.TokenBucket{Rate: 1, Per: tick, Burst: 5})
		allowN(t, slow, 1)
		for range 2 {
			if allowN(t, slow, 1).Allowed {
				t.Fatal("there is nothing left")
			}
		}
		allowN(t, fast, 1) // from now on it drains at this pace
		time.Sleep(5 * tick)
		if d := allowN(t, slow, 1); !d.Allowed {
			t.Errorf("%+v", d)
		}
	})
}

// A process that sets up what has expired must be told so.
func TestASharedLimiterIsAlwaysAsked(t *testing.T) {
	ctx := context.Background()
	l, err := headgate.NewShared(headgate.Redis(redistest.Start(t).Client(), headgate.RememberDenials()), "test")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.SetRate(ctx, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1}); err != nil {
		t.Fatal(err)
	}
	allowN(t, &l.Limiter, 1)
	for range 2 {
		if d := allowN(t, &l.Limiter, 1); d.Allowed || d.Source != headgate.SourceRedis {
			t.Fatalf("%+v", d)
		}
	}
	if err := l.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Allow(ctx); !errors.Is(err, headgate.ErrNotInitialized) {
		t.Errorf("%v", err)
	}
}

// A reset whose caller has left is done all the same, and what was leased until then is forgotten when it is.
func TestALateResetForgetsTheLeaseToo(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	rdb := redistest.Start(t).Client()
	reset := make(chan struct{})
	rdb.AddHook(waits{reset})
	const burst = 100
	l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: 24 * time.Hour, Burst: burst}, headgate.WithLease(burst/2))
	leaving, leave := context.WithTimeout(ctx, 5*time.Millisecond)
	defer leave()
	if err := l.Reset(leaving); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	for range 40 { // so that it has a lease
		allowN(t, l, 1)
		time.Sleep(time.Millisecond)
	}
	close(reset)
	eventually(t, "the reset is done", func() bool { return rdb.DBSize(ctx).Val() == 0 })
	time.Sleep(20 * time.Millisecond) // and the client knows
	admitted := 0
	for refused := 0; refused < 3; {
		if allowN(t, l, 1).Allowed {
			admitted++
		} else {
			refused++
			time.Sleep(120 * time.Millisecond) // for a lease of the rest
		}
	}
	if admitted > burst {
		t.Errorf("%d at once after the reset, and the burst is %d", admitted, burst)
	}
	closing(t, l)
}

// waits has resets wait on their way.
type waits struct{ until chan struct{} }

func (waits) DialHook(next redis.DialHook) redis.DialHook { return next }
func (waits) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (w waits) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "del" {
			<-w.until
			ctx = context.WithoutCancel(ctx)
		}
		return next(ctx, cmd)
	}
}
