package headgate_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// SIGSTOP under callers with short deadlines: everybody is answered in time, by the process's share, and by Redis again
// when it goes on. The witness counts what was admitted.
func TestAStoppedRedis(t *testing.T) {
	server := redistest.Start(t)
	rate := algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 20}
	l := newLimiter(t, headgate.Redis(server.Client()), rate, headgate.WithFallback(headgate.Local(0.5)))
	allowN(t, l, 1)
	var admitted, local, longest atomic.Int64
	began := time.Now()
	stop := make(chan struct{})
	var callers sync.WaitGroup
	for range 200 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(time.Duration(rand.IntN(20)) * time.Millisecond):
				}
				ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
				asked := time.Now()
				d, err := l.Allow(ctx)
				took := int64(time.Since(asked))
				cancel()
				for most := longest.Load(); took > most && !longest.CompareAndSwap(most, took); most = longest.Load() {
				}
				if err == nil && d.Allowed {
					admitted.Add(1)
				}
				if d.Source == headgate.SourceLocal {
					local.Add(1)
				}
			}
		})
	}
	server.Pause()
	time.Sleep(1500 * time.Millisecond)
	server.Resume()
	eventually(t, "Redis decides again", func() bool { return allowN(t, l, 1).Source == headgate.SourceRedis })
	seen := local.Load()
	close(stop)
	callers.Wait()
	took := time.Since(began)
	closing(t, l)
	// Whoever waited for the server would have waited for as long as it stood, whatever else this machine has to do.
	if most := time.Duration(longest.Load()); most > time.Second || seen == 0 {
		t.Errorf("a call with 50 ms took %v; %d were decided in process", most, seen)
	}
	// Both sides' bursts, and both sides' rates, for as long as it took.
	most := int64(20+10) + int64(150*took.Seconds()) + 1
	if n := admitted.Load(); n > most {
		t.Errorf("%d were admitted in %v, more than %d", n, took, most)
	}
	t.Logf("%d admitted in %v, %d decisions in process, the longest call %v", admitted.Load(), took, seen, time.Duration(longest.Load()))
}

// animir/node-rate-limiter-flexible #49: killed, and started again.
func TestAKilledRedis(t *testing.T) {
	server := redistest.Start(t)
	l := newLimiter(t, headgate.Redis(server.Client()), slow, headgate.WithFallback(headgate.Local(0.5)))
	if d := allowN(t, l, 600); !d.Allowed || d.Source != headgate.SourceRedis {
		t.Fatalf("%+v", d)
	}
	server.Kill()
	admitted := 0
	for range 60 {
		d := allowN(t, l, 10)
		if d.Source != headgate.SourceLocal {
			t.Fatalf("%+v", d)
		}
		if d.Allowed {
			admitted += 10
		}
		time.Sleep(5 * time.Millisecond)
	}
	if admitted != 500 {
		t.Errorf("%d were admitted of a share of 500", admitted)
	}
	server.Restart()
	eventually(t, "Redis decides again", func() bool { return allowN(t, l, 1).Source == headgate.SourceRedis })
	if d := allowN(t, l, 300); !d.Allowed || d.Limit != 1000 {
		t.Errorf("%+v", d)
	}
	closing(t, l)
}

// go-zero's TestTokenLimit_Take and TestTokenLimit_TakeBurst, and _Rescue with the Redis that stops and comes back.
func TestGoZeroTokenLimiter(t *testing.T) {
	for name, row := range map[string]struct {
		apart    time.Duration
		breaks   bool
		at, most int
	}{
		"take":   {apart: 11 * time.Millisecond, at: 15, most: 100},
		"burst":  {at: 10, most: 100},
		"rescue": {apart: 11 * time.Millisecond, breaks: true, at: 15, most: 100},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			l := newLimiter(t, headgate.Redis(server.Client()), algos.TokenBucket{Rate: 5, Per: time.Second, Burst: 10}, headgate.WithFallback(headgate.Local(1)))
			if row.breaks {
				server.Kill()
			}
			allowed := 0
			for i := range 100 {
				if i == 50 && row.breaks {
					server.Restart()
				}
				if allowN(t, l, 1).Allowed {
					allowed++
				}
				time.Sleep(row.apart)
			}
			if allowed < row.at || allowed > row.most {
				t.Errorf("%d of 100 were admitted", allowed)
			}
			closing(t, l)
		})
	}
}

// A client's dials are retried for half a second by default; KeepWaiting does not take that for a lost reply.
func TestKeepWaitingOnADefaultClient(t *testing.T) {
	server := redistest.Start(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer rdb.Close()
	l := newLimiter(t, headgate.Redis(rdb), slow, headgate.WithFallback(headgate.KeepWaiting()))
	server.Kill()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	served := make(chan error, 20)
	for i := range cap(served) {
		go func() { served <- l.For(fmt.Sprint(i)).Wait(ctx) }()
	}
	time.Sleep(700 * time.Millisecond)
	server.Restart()
	for range cap(served) {
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	closing(t, l)
}
