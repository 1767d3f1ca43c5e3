package headgate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// packed makes calls that wait for each other, and so go together.
func packed(t *testing.T, s *redisStore, calls int, call func(i int)) {
	t.Helper()
	o := s.outboxFor(context.Background(), "any key") // there is one server
	o.mu.Lock()
	o.underWay, o.progress = fewCalls, time.Now().Add(time.Hour) // nobody loses patience
	o.mu.Unlock()
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() { call(i) })
	}
	for n, deadline := 0, time.Now().Add(10*time.Second); n < calls; time.Sleep(100 * time.Microsecond) {
		o.mu.Lock()
		n = len(o.waiting)
		o.mu.Unlock()
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d wait", n, calls)
		}
	}
	o.flush(o.next(o.turn), o.turn)
	all.Wait()
}

// manyKeys is a limiter of an hour and its store, which knows that one server has all keys.
func manyKeys(t *testing.T, rdb redis.UniversalClient) (*Limiter, *redisStore) {
	t.Helper()
	s := Redis(rdb).(*redisStore)
	s.outbox.keys.Store(together)
	l, err := New(s, "many", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return l, s
}

// spent is how many permits of a key are charged.
func spent(t *testing.T, l *Limiter) int {
	t.Helper()
	d, err := l.Peek(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return d.Limit - d.Remaining
}

// Against the driver in process, which decides one key at a time: several requests a key, and what they took given back.
func TestManyKeysInOneCommandAreAnsweredAsByThemselves(t *testing.T) {
	const keys, rounds = 12, 25
	server := redistest.Start(t)
	for _, algorithm := range []algos.Algorithm{
		algos.TokenBucket{Rate: 7, Per: time.Second, Burst: 5},
		algos.LeakyBucket{Rate: 3, Per: time.Second, Capacity: 4},
		algos.FixedWindow{Limit: 5, Window: time.Second},
		algos.SlidingWindow{Limit: 5, Window: time.Second, Cells: 4},
		algos.SlidingLog{Limit: 5, Window: time.Second},
		algos.WarmUp{Rate: 5, Per: time.Second, Period: 2 * time.Second},
		algos.CalendarWindow{Limit: 5, Every: algos.Hour, Location: time.UTC},
	} {
		t.Run(fmt.Sprintf("%T", algorithm), func(t *testing.T) {
			t.Parallel()
			s := Redis(server.Client()).(*redisStore)
			s.outbox.keys.Store(together)
			now := time.Now().UnixMicro()
			s.now = func() int64 { return now }
			p, err := newPlan(algorithm)
			if err != nil {
				t.Fatal(err)
			}
			random := rand.New(rand.NewPCG(1, 2))
			var states [keys]algos.State
			var taken [keys][]driver.Request // to be given back
			for i := range states {
				states[i] = p.rule.NewState()
			}
			for round := range rounds {
				now += random.Int64N(500_000)
				var requests [keys][]driver.Request
				for i := range requests {
					if i > 0 && requests[i-1][0].Cost > 0 && random.IntN(2) == 0 { // the same of several keys is said once
						requests[i] = slices.DeleteFunc(slices.Clone(requests[i-1]), func(r driver.Request) bool { return r.Cost < 0 })
						continue
					}
					for range 1 + random.IntN(4) {
						if n := len(requests[i]); n > 0 && requests[i][n-1].Cost > 0 && random.IntN(2) == 0 {
							requests[i] = append(requests[i], requests[i][n-1]) // which go together
						} else if held := taken[i]; len(held) > 0 && random.IntN(3) == 0 {
							requests[i] = append(requests[i], held[0])
							taken[i] = held[1:]
						} else {
							bound := []int64{driver.Ask, 0, 300_000, 10_000_000}[random.IntN(4)]
							requests[i] = append(requests[i], driver.Request{Cost: 1 + random.Int64N(3), Bound: bound})
						}
					}
				}
				var got [keys][]int64
				packed(t, s, keys, func(i int) {
					callers := make([]context.Context, len(requests[i]))
					n, err := s.send(context.Background(), line{p, fmt.Sprintf("hg:{%T/%d}", algorithm, i)}, p.paramsAt(0), requests[i], callers)
					if err != nil {
						t.Error(err)
					}
					got[i] = n
				})
				for i, all := range requests {
					want := make([]driver.Reply, len(all))
					driver.Run(states[i], p.rule, now, all, want)
					replies, ok := driver.ReadReplies(got[i], p.rule, all)
					if !ok {
						t.Fatalf("round %d, key %d: %d", round, i, got[i])
					}
					for j, request := range all {
						reply := replies.At(j)
						if reply != want[j] {
							t.Fatalf("round %d, key %d, %+v: %+v, by itself %+v", round, i, request, reply, want[j])
						}
						if request.Cost > 0 && reply.Wait >= 0 {
							taken[i] = append(taken[i], driver.Request{Cost: -request.Cost, Receipt: reply.Receipt})
						}
					}
				}
			}
		})
	}
}

// Two limiters of one key do not know of each other, and what the second reads is what the first wrote.
func TestOneKeyTwiceInOneCommandIsChargedTwice(t *testing.T) {
	const limit = 5
	ctx := context.Background()
	server := redistest.Start(t)
	_, s := manyKeys(t, server.Client())
	var all [10]*Limiter
	for i := range all {
		l, err := New(s, "one", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: limit})
		if err != nil {
			t.Fatal(err)
		}
		all[i] = l
	}
	if _, err := all[0].Allow(ctx); err != nil { // from now on there is something to be read
		t.Fatal(err)
	}
	var admitted atomic.Int32
	admitted.Store(1)
	before := server.Calls("evalsha") + server.Calls("eval")
	packed(t, s, len(all), func(i int) {
		switch d, err := all[i].Allow(ctx); {
		case err != nil:
			t.Error(err)
		case d.Allowed:
			admitted.Add(1)
		}
	})
	if n := admitted.Load(); n != limit {
		t.Errorf("%d of %d were admitted", n, limit)
	}
	if calls := server.Calls("evalsha") + server.Calls("eval") - before; calls != 2 { // the script is sent once more, to be known
		t.Errorf("%d calls", calls)
	}
}

// The first pipeline asks whether one server has all keys; from then on they share commands.
func TestAServerThatStandsAloneIsAskedForManyKeysAtOnce(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	if err := server.Admin().Do(ctx, "hello").Err(); err != nil {
		t.Skipf("this server takes no HELLO without a version (before Redis 6.2), and is asked for one key at a time: %v", err)
	}
	cluster := redistest.Cluster(t, 1)[0]
	shards := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.Addr}, Username: server.Options().Username, Password: server.Options().Password})
	defer shards.Close()
	for name, test := range map[string]struct {
		rdb   redis.UniversalClient
		keys  int32
		calls int // of 100 keys
	}{
		"RESP2":               {server.Client(func(o *redis.Options) { o.Protocol = 2 }), together, 2},
		"RESP3":               {server.Client(func(o *redis.Options) { o.Protocol = 3 }), together, 2},
		"a ring":              {shards, apart, 100},
		"a node of a cluster": {cluster.Client(), apart, 100},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := manyKeys(t, test.rdb)
			s.outbox.keys.Store(unasked)
			call := func(i int) {
				if d, err := l.For(name, fmt.Sprint(i)).Allow(ctx); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			}
			packed(t, s, 100, call)
			if keys := s.outboxFor(ctx, "any key").keys.Load(); keys != test.keys {
				t.Errorf("it is %d", keys)
			}
			packed(t, s, 100, call) // loads the script for many
			before := server.Calls("evalsha") + cluster.Calls("evalsha")
			packed(t, s, 100, call)
			if calls := server.Calls("evalsha") + cluster.Calls("evalsha") - before; calls != test.calls {
				t.Errorf("%d calls", calls)
			}
			for i := range 100 {
				if n := spent(t, l.For(name, fmt.Sprint(i))); n != 3 {
					t.Fatalf("key %d: %d are charged", i, n)
				}
			}
		})
	}
}

// Where a node of a cluster has taken the place of a server that stood alone.
func TestANodeOfAClusterIsAskedForOneKeyAtATime(t *testing.T) {
	node := redistest.Cluster(t, 1)[0]
	l, s := manyKeys(t, node.Client())
	packed(t, s, 20, func(i int) {
		if d, err := l.For(fmt.Sprint(i)).Allow(context.Background()); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
	})
	if s.outbox.keys.Load() != apart {
		t.Error("and it would be asked for many again")
	}
	for i := range 20 {
		if n := spent(t, l.For(fmt.Sprint(i))); n != 1 {
			t.Errorf("%d are charged", n)
		}
	}
}

func TestAServerThatForgetsScriptsIsSentTheOneForManyKeys(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	l, s := manyKeys(t, server.Client())
	for round := 1; round <= 2; round++ {
		if err := server.Admin().ScriptFlush(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		packed(t, s, 20, func(i int) {
			if d, err := l.For(fmt.Sprint(i)).Allow(ctx); err != nil || d.Limit-d.Remaining != round {
				t.Errorf("%+v, %v", d, err)
			}
		})
		if calls := server.Calls("eval"); calls != 2*round-1 { // one by each Peek below
			t.Errorf("%d times", calls)
		}
		spent(t, l.For("0"))
	}
}

// Parameters that do not cover the clock are answered by it, each key for itself.
func TestTheClockAnswersForManyKeys(t *testing.T) {
	s := Redis(redistest.Start(t).Client()).(*redisStore)
	s.outbox.keys.Store(together)
	p, err := newPlan(algos.CalendarWindow{Limit: 5, Every: algos.Hour, Location: time.UTC})
	if err != nil {
		t.Fatal(err)
	}
	stale := p.renew(0)
	fresh := p.renew(time.Now().UnixMicro())
	packed(t, s, 10, func(i int) {
		params := fresh
		if i%2 == 0 {
			params = stale
		}
		n, err := s.send(context.Background(), line{p, fmt.Sprintf("hg:{%d}", i)}, params, []driver.Request{{Cost: 1}}, nil)
		if want := 1 + i%2*4; err != nil || len(n) != want || i%2 == 0 && time.Since(time.UnixMicro(n[0])).Abs() > time.Minute {
			t.Errorf("%d: %d, %v", i, n, err)
		}
	})
}

// Limiters that were made one by one, and differ in nothing but their keys, share commands like those of one For.
func TestLimitersOfEqualParametersShareACommand(t *testing.T) {
	server := redistest.Start(t)
	_, s := manyKeys(t, server.Client())
	all := make([]*Limiter, 20)
	for i := range all {
		rate := 1 + i%2 // of which there are two kinds
		l, err := New(s, fmt.Sprint(i), algos.TokenBucket{Rate: rate, Per: time.Duration(rate) * time.Hour, Burst: 1000 * rate})
		if err != nil {
			t.Fatal(err)
		}
		all[i] = l
	}
	call := func(i int) {
		if d, err := all[i].Allow(context.Background()); err != nil || !d.Allowed || d.Limit != 1000*(1+i%2) {
			t.Errorf("%+v, %v", d, err)
		}
	}
	packed(t, s, len(all), call) // loads the script for many
	before := server.Calls("evalsha")
	packed(t, s, len(all), call)
	if calls := server.Calls("evalsha") - before; calls != 2 {
		t.Errorf("%d calls", calls)
	}
	for i, l := range all {
		if n := spent(t, l); n != 2 {
			t.Errorf("key %d: %d are charged", i, n)
		}
	}
}

// Of clients' clocks the latest counts, whoever of the callers came first: nobody is answered as of an instant before he asked.
func TestNobodyIsDecidedBeforeHeAsked(t *testing.T) {
	const calls = 10
	ctx := context.Background()
	_, s := manyKeys(t, redistest.Start(t).Client())
	start := time.Now().UnixMicro()
	s.now = func() int64 { return start }
	l, err := New(s, "clocks", algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i := range calls {
		if d, err := l.For(fmt.Sprint(i)).Allow(ctx); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
	for _, first := range []int{0, calls / 2, calls - 1} { // whose clock is ahead of the others'
		var inOrder sync.Mutex
		come := 0
		start += 2 * time.Minute.Microseconds()
		s.now = func() int64 {
			inOrder.Lock()
			defer inOrder.Unlock()
			if come++; come-1 == first {
				return start
			}
			return start - 90*time.Second.Microseconds()
		}
		var all [calls]Decision
		packed(t, s, calls, func(i int) {
			for o, n := s.outboxFor(ctx, ""), -1; n != i; time.Sleep(100 * time.Microsecond) { // one after the other
				o.mu.Lock()
				n = len(o.waiting)
				o.mu.Unlock()
			}
			all[i], _ = l.For(fmt.Sprint(i)).Allow(ctx)
		})
		if !all[first].Allowed {
			t.Errorf("when the permit of caller %d is there again: %+v", first, all[first])
		}
	}
}
