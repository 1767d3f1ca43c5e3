package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// Mixed traffic, and asynq's tasks beside it, under faults that come at random, for as long as the environment says: make soak.
// The witness never counts more than the limits, errors admit nobody, no task is lost, and at the end no connection and no
// key is left, nor a goroutine (TestMain).
func TestSoak(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv(soakEnv))
	if err != nil {
		t.Skipf("%s is not set to a duration: make soak does", soakEnv)
	}
	quietly(t)
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	proxy := redistest.NewProxy(t, server.Addr)
	s := &soak{t: t, server: server, proxy: proxy, done: make(chan struct{}), faults: make(map[string]int)}
	var clients []*redis.Client
	for _, opts := range [][]headgate.RedisOption{nil, nil, {headgate.Unbatched()}} {
		rdb := redis.NewClient(&redis.Options{
			Addr: proxy.Addr, ReadTimeout: 300 * time.Millisecond, DialTimeout: time.Second, PoolTimeout: time.Second,
		})
		clients = append(clients, rdb)
		s.drive(headgate.Redis(rdb, opts...))
	}
	jobs := s.work(clients[0])
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
		s.fault()
		s.checkKeys()
	}
	close(s.done)
	s.callers.Wait()
	admin := server.Admin()
	jobs.finish(t, admin)
	for _, rdb := range clients {
		_ = rdb.Close()
	}
	for _, w := range s.witnesses {
		w.check(t)
	}
	t.Logf("%d admitted, %d refused, %d failed; faults: %v", s.admitted.Load(), s.refused.Load(), s.failed.Load(), s.faults)
	eventually(t, "no connection is left but this one", func() bool {
		return strings.Contains(admin.Info(context.Background(), "clients").Val(), "connected_clients:1\r\n")
	})
	time.Sleep(time.Minute) // for so long a line is remembered
	eventually(t, "no key is left", func() bool { return len(admin.Keys(context.Background(), "hg:*").Val()) == 0 })
	t.Logf("%d goroutines, the test's own among them", runtime.NumGoroutine())
}

// A soak is what one run of the test knows.
type soak struct {
	t         *testing.T
	server    *redistest.Server
	proxy     *redistest.Proxy
	done      chan struct{}
	callers   sync.WaitGroup
	witnesses []*witness
	faults    map[string]int

	admitted, refused, failed atomic.Int64
}

// drive has callers use limiters of each kind. Those of all stores share their keys, and so a witness.
func (s *soak) drive(store headgate.Store) {
	for i, kind := range []struct {
		algorithm algos.Algorithm
		limit     int // in any stretch of time, beside
		rate      int // so many a second
	}{
		{algos.TokenBucket{Rate: 200, Per: time.Second, Burst: 20}, 20, 200},
		{algos.Funnel{Capacity: 5, Rate: 50, Per: time.Second}, 5, 50},
		{algos.LeakyBucket{Rate: 200, Per: time.Second, Capacity: 100}, 1, 200},
		{algos.FixedWindow{Limit: 50, Window: 500 * time.Millisecond}, 100, 100},
		{algos.SlidingLog{Limit: 50, Window: 500 * time.Millisecond}, 50, 100},
		{algos.SlidingWindow{Limit: 50, Window: 500 * time.Millisecond, Cells: 10}, 50, 100},
	} {
		l := newLimiter(s.t, store, kind.algorithm)
		if len(s.witnesses) <= i {
			s.witnesses = append(s.witnesses, &witness{name: fmt.Sprintf("%T", kind.algorithm), limit: kind.limit, rate: kind.rate})
		}
		w := s.witnesses[i]
		for range 3 {
			s.callers.Go(func() { s.call(l, w) })
		}
	}
	for range 3 { // a great many keys
		s.callers.Go(func() {
			l := newLimiter(s.t, store, algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 1})
			s.untilDone(func(ctx context.Context) { s.note(l.For(fmt.Sprint(rand.Uint64())).Allow(ctx)) })
		})
	}
}

func (s *soak) untilDone(f func(ctx context.Context)) {
	for {
		select {
		case <-s.done:
			return
		default:
		}
		ctx, stop := context.WithTimeout(context.Background(), time.Duration(1+rand.IntN(400))*time.Millisecond)
		f(ctx)
		stop()
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
	}
}

// call uses one limiter in every way. The witness counts what may be used, by the time between call and return.
func (s *soak) call(l *headgate.Limiter, w *witness) {
	s.untilDone(func(ctx context.Context) {
		before := time.Now()
		switch rand.IntN(4) {
		case 0:
			r, err := l.Reserve(ctx)
			s.note(headgate.Decision{}, err)
			if err == nil && rand.IntN(2) == 0 {
				_ = r.Cancel(ctx)
			} else if err == nil && r.Wait(ctx) == nil {
				w.saw(before, time.Now())
			}
		case 1:
			if err := l.Wait(ctx); err == nil {
				w.saw(before, time.Now())
			} else {
				s.note(headgate.Decision{}, err)
			}
		default:
			d, err := l.Allow(ctx)
			s.note(d, err)
			if err == nil && d.Allowed {
				w.saw(before, time.Now())
			}
		}
	})
}

// note counts an answer, and wants each error to be one that is documented.
func (s *soak) note(d headgate.Decision, err error) {
	_, failed := errors.AsType[*headgate.StoreError](err)
	switch {
	case err == nil && d.Allowed:
		s.admitted.Add(1)
	case err == nil, errors.Is(err, headgate.ErrDenied):
		s.refused.Add(1)
	case d.Allowed:
		s.t.Errorf("an error admits: %+v, %v", d, err)
	case failed, errors.Is(err, context.DeadlineExceeded):
		s.failed.Add(1)
	default:
		s.t.Errorf("%v", err)
	}
}

// fault has something go wrong for a while, and puts it right.
func (s *soak) fault() {
	ctx := context.Background()
	admin := s.server.Admin()
	defer admin.Close()
	briefly := func() { time.Sleep(time.Duration(rand.IntN(700)) * time.Millisecond) }
	faults := []struct {
		name string
		do   func()
	}{
		{"the network loses replies", func() { s.proxy.Set(redistest.Swallow); briefly() }},
		{"the network cuts connections", func() { s.proxy.Set(redistest.Cut); briefly() }},
		{"the network delays replies", func() { s.proxy.Set(redistest.Hold); briefly() }},
		{"the server hangs", func() { s.server.Pause(); briefly(); s.server.Resume() }},
		{"the server is killed", func() { s.server.Kill(); briefly(); s.server.Restart() }},
		{"the scripts are gone", func() {
			for range 20 {
				admin.ScriptFlush(ctx)
				time.Sleep(10 * time.Millisecond)
			}
		}},
		{"there is no memory", func() { admin.ConfigSet(ctx, "maxmemory", "1"); briefly(); admin.ConfigSet(ctx, "maxmemory", "0") }},
		{"all connections are closed", func() { admin.ClientKillByFilter(ctx, "TYPE", "normal") }},
		{"writes are paused", func() { admin.Do(ctx, "CLIENT", "PAUSE", "300", "WRITE"); briefly() }},
	}
	f := faults[rand.IntN(len(faults))]
	s.faults[f.name]++
	f.do()
	s.proxy.Set(redistest.Pass)
}

// checkKeys wants each key to expire, but for those of asynq. A line's outlive it by an hour: the tasks come back before.
func (s *soak) checkKeys() {
	ctx := context.Background()
	admin := s.server.Admin()
	defer admin.Close()
	for keys := admin.Scan(ctx, 0, "hg:*", 1000).Iterator(); keys.Next(ctx); {
		longest := time.Minute
		if strings.HasPrefix(keys.Val(), "hg:{jobs}:") {
			longest = 2 * time.Hour
		}
		if ttl := admin.PTTL(ctx, keys.Val()).Val(); ttl == -1 || ttl > longest {
			s.t.Errorf("%q expires in %v", keys.Val(), ttl)
		}
	}
}

// A witness notes what may be used, from outside the limiter.
type witness struct {
	name        string
	limit, rate int

	mu    sync.Mutex
	first time.Time
	seen  map[int64]int // those whose call and return are in the same stretch of time, by its number
	all   int
}

const stretch = 2 * time.Second

func (w *witness) saw(before, after time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == 0 {
		w.first, w.seen = before, make(map[int64]int)
	}
	w.all++
	if from, to := before.UnixNano()/int64(stretch), after.UnixNano()/int64(stretch); from == to {
		w.seen[from]++
	}
}

// check holds what was seen to the limit: in each stretch of time, and altogether.
func (w *witness) check(t *testing.T) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at, n := range w.seen {
		if most := w.limit + w.rate*int(stretch/time.Second); n > most {
			t.Errorf("%s: %d were admitted in the %v from %v on, and at most %d may be", w.name, n, stretch, time.Unix(0, at*int64(stretch)), most)
		}
	}
	if most := w.limit + int(float64(w.rate)*time.Since(w.first).Seconds()); w.all > most || w.all == 0 {
		t.Errorf("%s: %d were admitted, and at most %d may be", w.name, w.all, most)
	}
	t.Logf("%s: %d admitted", w.name, w.all)
}
