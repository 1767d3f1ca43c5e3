package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

func TestADenialChangesNeitherBytesNorTTL(t *testing.T) {
	ctx := context.Background()
	rdb := redistest.Start(t).Client()
	l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 3})
	if _, err := l.Peek(ctx); err != nil {
		t.Fatal(err)
	}
	if n := rdb.DBSize(ctx).Val(); n != 0 {
		t.Errorf("a peek at an unused limiter left %d keys", n)
	}
	allowN(t, l, 2)
	key := rdb.Keys(ctx, "*").Val()[0]
	bytes, expires := rdb.Dump(ctx, key).Val(), redistest.PExpireTime(ctx, rdb, key).Val()
	for range 5 {
		if allowN(t, l, 2).Allowed {
			t.Fatal("2 of 1 admitted")
		}
		if _, err := l.ReserveN(ctx, 3, headgate.Within(time.Second)); !errors.Is(err, headgate.ErrDenied) {
			t.Fatal(err)
		}
		soon, stop := context.WithTimeout(ctx, time.Second)
		if err := l.WaitN(soon, 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		stop()
		if _, err := l.Peek(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if rdb.Dump(ctx, key).Val() != bytes || redistest.PExpireTime(ctx, rdb, key).Val() != expires {
		t.Error("a denial wrote")
	}
}

// alisaifee/limits #14, ulule #22 and many more: a key without a TTL limits for ever.
func TestEveryKeyExpiresWhenItsLimiterIsAsNew(t *testing.T) {
	ctx := context.Background()
	rdb := redistest.Start(t).Client()
	l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 5})
	d := allowN(t, l, 5)
	key := rdb.Keys(ctx, "*").Val()[0]
	ttl := func() time.Duration { return rdb.PTTL(ctx, key).Val() }
	// Rounded up, and one more; less what has passed since.
	if got := ttl(); got > d.ResetAfter+2*time.Millisecond || got < d.ResetAfter-time.Minute {
		t.Errorf("TTL %v for a limiter as new after %v", got, d.ResetAfter)
	}
	r := reserve(t, l, 1)
	if got := ttl(); got < 6*time.Hour-time.Minute {
		t.Errorf("TTL %v; with the debt of a reservation it is 6 h", got)
	}
	cancel(t, r)
	if got := ttl(); got > 5*time.Hour+2*time.Millisecond {
		t.Errorf("TTL %v after cancelling", got)
	}
	rdb.Persist(ctx, key)
	if allowN(t, l, 1).Allowed {
		t.Fatal("admitted beyond the burst")
	}
	if got := ttl(); got <= 0 || got > 5*time.Hour+2*time.Millisecond {
		t.Errorf("a missing TTL was not healed: %v", got)
	}

	brief := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1000, Per: time.Second, Burst: 50}).For("brief")
	allowN(t, brief, 50)
	reserve(t, brief, 50)
	eventually(t, "an idle key is gone", func() bool { return rdb.DBSize(ctx).Val() == 1 })

	reserve(t, brief, 50)
	cancel(t, reserve(t, brief, 50))
	eventually(t, "a cancelled one's too", func() bool { return rdb.DBSize(ctx).Val() == 1 })
}

// express-rate-limit, spring-cloud-gateway #248 and others turn errors of the store into decisions.
func TestForeignDataIsAnErrorAndNeverADecision(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for name, algorithm := range everyAlgorithm() {
		t.Run(name, func(t *testing.T) { foreignData(t, rdb, algorithm) })
	}
}

func foreignData(t *testing.T, rdb *redis.Client, algorithm algos.Algorithm) {
	ctx := context.Background()
	rdb.FlushAll(ctx)
	l := newLimiter(t, headgate.Redis(rdb), algorithm).For("secret-user")
	allowN(t, l, 1)
	key := rdb.Keys(ctx, "*").Val()[0]
	for name, write := range map[string]func(){
		"a word":                 func() { rdb.Set(ctx, key, "hello", 0) },
		"a float":                func() { rdb.Set(ctx, key, "1e+17", 0) },
		"text of the right size": func() { rdb.Set(ctx, key, strings.Repeat("a", 28), 0) },
		"a sentence":             func() { rdb.Set(ctx, key, "Hello, world, this is somebody else's, and long enough.", 0) },
		"lines":                  func() { rdb.Set(ctx, key, "line 1\nline 2 of a text with more lines\n", 0) },
		"JSON":                   func() { rdb.Set(ctx, key, `{"id": 12345, "name": "somebody", "age": 12}`, 0) },
		"zeros":                  func() { rdb.Set(ctx, key, strings.Repeat("\x00", 28), 0) },
		"nothing":                func() { rdb.Set(ctx, key, "", 0) },
		"a list":                 func() { rdb.LPush(ctx, key, "hello") },
		"numbers and a word":     func() { rdb.Set(ctx, key, "1 2 3 4 hello", 0) },
		"a sorted set":           func() { rdb.ZAdd(ctx, key, redis.Z{Score: 1e15, Member: "hello"}) },
	} {
		t.Run(name, func(t *testing.T) {
			rdb.Del(ctx, key)
			write()
			before := rdb.Dump(ctx, key).Val()
			d, err := l.Allow(ctx)
			wantUnknown(t, err, false)
			if d.Allowed || strings.Contains(err.Error(), "secret-user") {
				t.Errorf("%+v, %v", d, err)
			}
			if rdb.Dump(ctx, key).Val() != before {
				t.Error("foreign data was changed")
			}
			if err := l.Reset(ctx); err != nil {
				t.Error(err)
			}
			if !allowN(t, l, 1).Allowed {
				t.Error("Reset did not put it right")
			}
		})
	}
}

// Redis quotes the first arguments of a command that it does not know, cut short.
func TestNoErrorQuotesTheKey(t *testing.T) {
	rdb := redistest.Start(t, "--rename-command", "EVALSHA", "").Client()
	user := strings.Repeat("+447000123456,", 10)
	_, err := newLimiter(t, headgate.Redis(rdb), slow).For(user).Allow(context.Background())
	wantUnknown(t, err, false)
	failed, _ := errors.AsType[*headgate.StoreError](err)
	for _, text := range []string{err.Error(), failed.Err.Error(), fmt.Sprintf("%+v", err)} {
		if strings.Contains(text, "+4470") || !strings.Contains(text, "unknown command") {
			t.Errorf("%s", text)
		}
	}
}

// Hostile keys on a cluster: a limiter's keys are where the cluster looks for them. A client with an outdated map is
// sent on with MOVED, and its command is followed though it is never sent twice.
func TestAClusterServesEveryKey(t *testing.T) {
	var addrs []string
	for _, server := range redistest.Cluster(t, 3) {
		addrs = append(addrs, server.Addr)
	}
	outdated := func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: addrs[0]}}}}, nil
	}
	for name, options := range map[string]*redis.ClusterOptions{
		"a client that knows the slots":     {Addrs: addrs},
		"a client with an outdated map":     {Addrs: addrs, ClusterSlots: outdated},
		"a client that reads from replicas": {Addrs: addrs, ReadOnly: true, RouteRandomly: true},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClusterClient(options)
			defer rdb.Close()
			l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 2}).For(name)
			for i, key := range append(hostileKeys(), "plain", "a", "b", "c", "d", "e", "f", "g") {
				for call, want := range []bool{true, true, false} {
					d, err := l.For(key).Allow(context.Background())
					if err != nil || d.Allowed != want {
						t.Errorf("key %d, call %d: %+v, %v", i, call, d, err)
					}
				}
				r, err := l.For(key).Reserve(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				cancel(t, r)
				if d, err := l.For(key).Peek(context.Background()); err != nil || d.ResetAfter > 2*time.Hour {
					t.Errorf("key %d after a cancel: %+v, %v", i, d, err)
				}
			}
		})
	}
}

func TestARingServesEveryKey(t *testing.T) {
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": redistest.Start(t).Addr, "b": redistest.Start(t).Addr}})
	defer ring.Close()
	l := newLimiter(t, headgate.Redis(ring), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1})
	for i := range 20 {
		for _, want := range []bool{true, false} {
			if d := allowN(t, l.For(fmt.Sprint(i)), 1); d.Allowed != want {
				t.Errorf("key %d: %+v", i, d)
			}
		}
	}
}

// Every decision is one call, a wait among five hundred others included; or less, where they come together.
func TestADecisionIsOneCall(t *testing.T) {
	const waiters = 500
	for name, test := range map[string]struct {
		opts        []headgate.RedisOption
		least, most int
	}{
		"merged":   {nil, 1, waiters / 5},
		"unmerged": {[]headgate.RedisOption{headgate.Unbatched()}, waiters, waiters},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			l := newLimiter(t, headgate.Redis(server.Client(), test.opts...), algos.TokenBucket{Rate: 10_000, Per: time.Second, Burst: 1})
			allowN(t, l, 1) // loads the script
			before := server.Calls("evalsha")
			done := make(chan error)
			for range waiters {
				go func() { done <- l.Wait(context.Background()) }()
			}
			for range waiters {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			if got := server.Calls("evalsha") - before; got < test.least || got > test.most {
				t.Errorf("%d calls for %d waits", got, waiters)
			}
		})
	}
}

func TestTwoProcessesWithDifferentClientsShareALimit(t *testing.T) {
	server := redistest.Start(t)
	a := newLimiter(t, headgate.Redis(server.Client()), slow)
	b := newLimiter(t, headgate.Redis(server.Client()), slow)
	allowN(t, a, 600)
	if d := allowN(t, b, 400); !d.Allowed || d.Remaining != 0 {
		t.Errorf("%+v", d)
	}
	if allowN(t, a, 1).Allowed {
		t.Error("admitted beyond the shared limit")
	}
}
