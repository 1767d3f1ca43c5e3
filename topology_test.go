package headgate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/internal/redistest"
)

// Whatever the way to the server, a limiter there has a burst, and no more.
func TestEveryWayToAServer(t *testing.T) {
	parsed := func(t *testing.T, address string) *redis.Options {
		o, err := redis.ParseURL(address)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	for name, options := range map[string]func(t *testing.T) *redis.Options{
		"TLS": func(t *testing.T) *redis.Options { return redistest.StartTLS(t).Options() },
		"rediss://": func(t *testing.T) *redis.Options {
			server := redistest.StartTLS(t)
			o := parsed(t, "rediss://"+server.Addr+"/3")
			o.TLSConfig.RootCAs, o.TLSConfig.Certificates = server.Options().TLSConfig.RootCAs, server.Options().TLSConfig.Certificates
			return o
		},
		"a Unix socket": func(t *testing.T) *redis.Options { return redistest.StartUnix(t).Options() },
		"unix://": func(t *testing.T) *redis.Options {
			return parsed(t, (&url.URL{Scheme: "unix", Path: redistest.StartUnix(t).Addr, RawQuery: "db=3"}).String())
		},
		"redis:// with a user": func(t *testing.T) *redis.Options {
			server := redistest.Start(t)
			if err := server.Admin().Do(context.Background(), "ACL", "SETUSER", "u", "on", ">p", "~hg:*", "+@all").Err(); err != nil {
				t.Fatal(err)
			}
			return parsed(t, "redis://u:p@"+server.Addr+"/3?protocol=2")
		},
		"RESP2": func(t *testing.T) *redis.Options {
			o := redistest.Start(t).Options()
			o.Protocol = 2
			return o
		},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(options(t))
			defer rdb.Close()
			usedUp(t, headgate.Redis(rdb))
		})
	}
}

// usedUp has each algorithm grant what it has, and no more.
func usedUp(t *testing.T, store headgate.Store) {
	t.Helper()
	for name, algorithm := range everyAlgorithm() {
		l := newLimiter(t, store, algorithm).For(name)
		first := allowN(t, l, 1)
		more := first.Remaining
		if name == "bursty warm-up" { // its permits come back in a tenth of a second
			continue
		}
		if more > 0 && !allowN(t, l, more).Allowed {
			t.Errorf("%s: %d remained, and were refused", name, more)
		}
		if d := allowN(t, l, 1); d.Allowed {
			t.Errorf("%s: admitted beyond the limit: %+v", name, d)
		}
	}
}

// A server whose certificate nobody vouches for is not asked.
func TestAServerThatNobodyVouchesForIsNotAsked(t *testing.T) {
	server := redistest.StartTLS(t)
	for name, config := range map[string]*tls.Config{
		"a CA of the system's": {MinVersion: tls.VersionTLS12},
		"no certificate of the client's": {
			RootCAs: server.Options().TLSConfig.RootCAs, MinVersion: tls.VersionTLS12,
		},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewClient(&redis.Options{Addr: server.Addr, TLSConfig: config, MaxRetries: -1, DialerRetries: 1})
			defer rdb.Close()
			l := newLimiter(t, headgate.Redis(rdb), slow, headgate.WithFallback(headgate.FailOpen()), headgate.WithStoreTimeout(time.Minute))
			defer closing(t, l)
			d, err := l.Allow(context.Background())
			if !errors.Is(err, headgate.ErrMisconfigured) || d.Allowed {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
	if n := server.Calls("evalsha") + server.Calls("eval"); n != 0 {
		t.Errorf("%d calls", n)
	}
}

// A Ring that takes any reply for a sign of life shows a wrong password, as docs/operations.md says.
func TestARingWithAWrongPassword(t *testing.T) {
	server := redistest.Start(t)
	rdb := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": server.Addr}, Username: "nobody", Password: "wrong", HeartbeatFrequency: 10 * time.Millisecond,
		HeartbeatFn: func(ctx context.Context, shard *redis.Client) bool {
			err := shard.Ping(ctx).Err()
			_, replied := errors.AsType[redis.Error](err)
			return err == nil || replied || errors.Is(err, redis.ErrPoolTimeout)
		},
	})
	defer rdb.Close()
	l := newLimiter(t, headgate.Redis(rdb), slow, headgate.WithFallback(headgate.FailOpen()), headgate.WithStoreTimeout(time.Minute))
	defer closing(t, l)
	for range 30 { // some heartbeats
		if d, err := l.Allow(context.Background()); !errors.Is(err, headgate.ErrMisconfigured) {
			t.Fatalf("%+v, %v", d, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A cluster client that may read from replicas charges on the primary, whatever the verb.
func TestReplicasAreNotAsked(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	primaries, replicas := redistest.ClusterWithReplicas(t, 3, 1)
	for name, options := range map[string]*redis.ClusterOptions{
		"ReadOnly": {ReadOnly: true}, "RouteByLatency": {RouteByLatency: true}, "RouteRandomly": {RouteRandomly: true},
	} {
		t.Run(name, func(t *testing.T) {
			options.Addrs = []string{primaries[0].Addr}
			rdb := dialsWhatIsMade(options)
			defer rdb.Close()
			store := headgate.Redis(rdb)
			l := newLimiter(t, store, slow).For(name)
			shared, err := headgate.NewShared(store, name)
			if err != nil {
				t.Fatal(err)
			}
			changed(t, true)(shared.TrySetRate(ctx, slow))
			for i := range 30 {
				for _, l := range []*headgate.Limiter{l.For(fmt.Sprint(i)), shared.For(fmt.Sprint(i))} {
					allowN(t, l, 999)
					cancel(t, reserve(t, l, 5))
					if d, err := l.Peek(ctx); err != nil || d.Remaining != 1 {
						t.Errorf("key %d: %+v, %v", i, d, err)
					}
				}
			}
		})
	}
	for i, s := range replicas {
		// What a replica runs for its primary are the writes, not the scripts.
		if n := s.Calls("evalsha") + s.Calls("eval") + s.Calls("get") + s.Calls("time"); n != 0 {
			t.Errorf("replica %d ran %d commands", i, n)
		}
	}
}

// dialsWhatIsMade is a cluster client none of whose nodes is dialled before it is complete: one that routes by latency pings
// its nodes while it still makes them, which the race detector reports if the machine is slow.
func dialsWhatIsMade(options *redis.ClusterOptions) *redis.ClusterClient {
	var made chan struct{} // of the node that is being made: there is one at a time
	options.NewClient = func(o *redis.Options) *redis.Client {
		ready := make(chan struct{})
		made = ready
		dial := redis.NewDialer(o)
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			<-ready
			return dial(ctx, network, addr)
		}
		return redis.NewClient(o)
	}
	rdb := redis.NewClusterClient(options)
	rdb.OnNewNode(func(*redis.Client) { close(made) }) // the last one to be told
	return rdb
}

// The shards of a Ring are servers that know nothing of each other. When one of them goes, the limits that it held begin
// anew at another, so a key is granted a burst more at most; and so again when it comes back.
func TestARingThatLosesAShard(t *testing.T) {
	ctx := context.Background()
	a, b := redistest.Start(t), redistest.Start(t)
	ring := redis.NewRing(&redis.RingOptions{
		Addrs: map[string]string{"a": a.Addr, "b": b.Addr}, HeartbeatFrequency: 20_000_000, MaxRetries: -1,
	})
	defer ring.Close()
	l := newLimiter(t, headgate.Redis(ring), everyAlgorithm()["token bucket"])
	const keys, burst = 20, 10
	admitted := make([]int, keys)
	use := func() (failed int) {
		for i := range keys {
			for range burst + 2 {
				d, err := l.For(fmt.Sprint(i)).Allow(ctx)
				switch {
				case err != nil && d.Allowed:
					t.Errorf("key %d: an error admits: %+v, %v", i, d, err)
				case err != nil:
					failed++
				case d.Allowed:
					admitted[i]++
				}
			}
		}
		return failed
	}
	atMost := func(when string, most int) {
		t.Helper()
		for i, n := range admitted {
			if n < burst || n > most {
				t.Errorf("%s: key %d was admitted %d times, of a burst of %d", when, i, n, burst)
			}
		}
	}
	if n := use(); n != 0 {
		t.Errorf("%d failed", n)
	}
	atMost("at first", burst)
	b.Kill()
	eventually(t, "all keys are served by the other", func() bool { return use() == 0 })
	atMost("without a shard", 2*burst)
	b.Restart()
	eventually(t, "it has keys again", func() bool { use(); return len(b.Admin().Keys(ctx, "hg:*").Val()) > 0 })
	atMost("with the shard again", 3*burst)
}
