package headgate_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A crowd of callers who take permits until they are stopped, and what a witness sees of them.
type traffic struct {
	admitted, failed atomic.Int64
	stop             func()
}

// drive has callers take permits of a limiter, one for each of so many keys.
func drive(t *testing.T, limiters []*headgate.Limiter, callers int) *traffic {
	var tr traffic
	done := make(chan struct{})
	var all sync.WaitGroup
	for caller := range callers {
		all.Go(func() {
			for i := caller; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				d, err := limiters[i%len(limiters)].Allow(context.Background())
				switch {
				case err != nil && d.Allowed:
					t.Errorf("an error admits: %+v, %v", d, err)
				case err != nil:
					tr.failed.Add(1)
					time.Sleep(time.Millisecond)
				case d.Allowed:
					tr.admitted.Add(1)
				}
			}
		})
	}
	tr.stop = sync.OnceFunc(func() { close(done); all.Wait() })
	t.Cleanup(tr.stop)
	return &tr
}

// quietly has a test end when the pools of its clients have given up looking for servers that are gone, as they do within a
// second of being closed. It is called before the clients are made.
func quietly(t *testing.T) {
	t.Cleanup(func() {
		eventually(t, "go-redis has given up", func() bool {
			stacks := make([]byte, 1<<20)
			return !strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), "pool.(*ConnPool).tryDial")
		})
	})
}

func failoverClient(t *testing.T, w *redistest.Watched) *redis.Client {
	t.Helper()
	quietly(t)
	rdb := redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: redistest.SentinelName, SentinelAddrs: w.Sentinels, MaxRetries: -1, DialerRetries: 1,
		ReadTimeout: 500 * time.Millisecond,
	})
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// repeatedly runs a test once, and in a soak again and again, for a tenth of the time that this lasts.
func repeatedly(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	lasts, _ := time.ParseDuration(os.Getenv(soakEnv))
	rounds := 0
	for end := time.Now().Add(lasts / 10); rounds == 0 || time.Now().Before(end) && !t.Failed(); rounds++ {
		t.Run(fmt.Sprintf("round %d", rounds+1), test)
	}
	t.Logf("%d rounds", rounds)
}

// The primary is killed under traffic, and Sentinels make a replica the primary. Errors admit nobody, the same client goes on
// by itself, and what the failover lost is one burst at most, though the replica had heard of nothing.
func TestAFailoverLosesABurstAtMost(t *testing.T) {
	t.Parallel()
	for name, deaf := range map[string]bool{"of what the replica has heard": false, "though it has heard of nothing": true} {
		if longer(0, 1) == 0 && !deaf {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repeatedly(t, func(t *testing.T) { loseAPrimary(t, deaf) })
		})
	}
}

// loseAPrimary is one failover, to a replica that is deaf until then, or is not.
func loseAPrimary(t *testing.T, deaf bool) {
	ctx := context.Background()
	w := redistest.Sentinel(t, 1)
	l := newLimiter(t, headgate.Redis(failoverClient(t, w)), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 500})
	if deaf {
		w.Replicas[0].Pause()
		if err := w.Primary.Admin().ClientKillByFilter(ctx, "TYPE", "replica").Err(); err != nil { // before it was sent anything
			t.Fatal(err)
		}
	}
	tr := drive(t, []*headgate.Limiter{l}, 4)
	eventually(t, "half of the burst is used", func() bool { return tr.admitted.Load() >= 250 })
	w.Primary.Kill()
	if deaf {
		w.Replicas[0].Resume()
	}
	next := w.Successor()
	killed := time.Now()
	calls := next.Calls("evalsha")
	eventually(t, "the client goes on at the new primary", func() bool { return next.Calls("evalsha") > calls+10 })
	t.Logf("it went on within %v of the new primary; %d calls failed", time.Since(killed), tr.failed.Load())
	eventually(t, "all is used up", func() bool { d, err := l.Peek(ctx); return err == nil && !d.Allowed })
	tr.stop()
	most := int64(2 * 500)
	if n := tr.admitted.Load(); n > most {
		t.Errorf("%d were admitted, of a burst of 500", n)
	}
	if n := tr.admitted.Load(); deaf && n < 500+250 {
		t.Errorf("%d were admitted: nothing was lost, and this tests nothing", n)
	}
	if tr.failed.Load() == 0 {
		t.Error("no call failed: this test tests nothing")
	}
}

// A cluster moves slots to and fro under traffic: clients are told to ask elsewhere (ASK), and that a slot has moved (MOVED).
// No call fails, and the count is exact.
func TestSlotsThatMoveUnderTraffic(t *testing.T) {
	t.Parallel()
	repeatedly(t, moveSlots)
}

// moveSlots moves some slots.
func moveSlots(t *testing.T) {
	servers := redistest.Cluster(t, 2)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{servers[0].Addr}, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer rdb.Close()
	l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: 10 * time.Minute, Burst: 50_000})
	limiters := []*headgate.Limiter{l}
	for i := range 3 {
		limiters = append(limiters, l.For(fmt.Sprint(i)))
	}
	tr := drive(t, limiters, 8)
	for round := range longer(1, 4) {
		for _, l := range limiters {
			slot := servers[0].Admin().ClusterKeySlot(context.Background(), l.StoredKey("x")).Val()
			from, to := servers[0], servers[1]
			if (slot >= 8192) != (round%2 == 1) {
				from, to = to, from
			}
			from.MoveSlot(to, slot, func() {
				seen := tr.admitted.Load() + tr.failed.Load()
				eventually(t, "traffic goes on", func() bool { return tr.admitted.Load()+tr.failed.Load() > seen+20 })
			})
		}
	}
	tr.stop()
	charged := 0
	for _, l := range limiters {
		d, err := l.Peek(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		charged += d.Limit - d.Remaining
	}
	if n := tr.admitted.Load(); int64(charged) != n || tr.failed.Load() != 0 {
		t.Errorf("%d were admitted, %d are charged, %d calls failed", n, charged, tr.failed.Load())
	}
	if servers[0].Calls("asking")+servers[1].Calls("asking") == 0 {
		t.Error("nobody had to ask elsewhere: this test tests nothing")
	}
}

// A primary of a cluster dies under traffic, and its replica takes over.
func TestAClusterThatLosesAPrimary(t *testing.T) {
	t.Parallel()
	repeatedly(t, loseAPrimaryOfACluster)
}

// loseAPrimaryOfACluster is one failover.
func loseAPrimaryOfACluster(t *testing.T) {
	ctx := context.Background()
	primaries, replicas := redistest.ClusterWithReplicas(t, 3, 1)
	quietly(t)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{primaries[0].Addr, primaries[1].Addr, primaries[2].Addr}, DialerRetries: 1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer rdb.Close()
	l := newLimiter(t, headgate.Redis(rdb), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 500})
	tr := drive(t, []*headgate.Limiter{l}, 4)
	eventually(t, "half of the burst is used", func() bool { return tr.admitted.Load() >= 250 })
	slot := primaries[0].Admin().ClusterKeySlot(ctx, l.StoredKey("x")).Val()
	i := slot * 3 / 16384
	primaries[i].Kill()
	calls := replicas[i].Calls("evalsha")
	eventually(t, "the client goes on at the replica", func() bool { return replicas[i].Calls("evalsha") > calls+10 })
	eventually(t, "all is used up", func() bool { d, err := l.Peek(ctx); return err == nil && !d.Allowed })
	tr.stop()
	if n := tr.admitted.Load(); n > 2*500 {
		t.Errorf("%d were admitted, of a burst of 500", n)
	}
	t.Logf("%d were admitted, %d calls failed", tr.admitted.Load(), tr.failed.Load())
}

// A node that hangs is out for its own keys: those who ask the others share no pipeline with those who ask it.
func TestANodeThatHangsHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[1].Addr}, ReadTimeout: time.Second})
	t.Cleanup(func() { _ = rdb.Close() })
	l := newLimiter(t, headgate.Redis(rdb), slow, headgate.WithFallback(headgate.FailOpen()))
	defer closing(t, l)
	var hanging, others []*headgate.Limiter
	for i := range 60 {
		of := l.For(fmt.Sprint(i))
		if d := allowN(t, of, 1); d.Source != headgate.SourceRedis {
			t.Fatal(d.Source)
		}
		node, err := rdb.MasterForKey(t.Context(), of.StoredKey("x"))
		if err != nil {
			t.Fatal(err)
		}
		if node.Options().Addr == servers[0].Addr {
			hanging = append(hanging, of)
		} else {
			others = append(others, of)
		}
	}
	servers[0].Pause()
	defer servers[0].Resume()
	var decided, degraded atomic.Int64
	var callers sync.WaitGroup
	stop := make(chan struct{})
	for i := range 16 {
		callers.Go(func() {
			for n := i; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(2 * time.Millisecond):
				}
				d, err := others[n%len(others)].Allow(context.Background())
				if err != nil {
					t.Error(err)
				}
				decided.Add(1)
				if d.Source.Degraded() {
					degraded.Add(1)
				}
			}
		})
	}
	for i := range 5 {
		if d := allowN(t, hanging[i%len(hanging)], 1); !d.Source.Degraded() {
			t.Errorf("a node that hangs has decided: %+v", d)
		}
	}
	close(stop)
	callers.Wait()
	if all, lost := decided.Load(), degraded.Load(); all < 100 || lost > all/20 {
		t.Errorf("of %d decisions of the other nodes' keys %d were made without Redis", all, lost)
	}
}
