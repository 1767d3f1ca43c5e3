package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

const inCrowd = 500

var crowded = algos.TokenBucket{Rate: 500, Per: time.Second, Burst: 1}

// crowd has 500 waiters on one limiter. It reports each that was admitted.
func crowd(addr string, begin func(), _ <-chan struct{}, report func(string, ...any)) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	l, err := headgate.New(headgate.Redis(rdb), "crowd", crowded)
	if err != nil {
		return err
	}
	begin()
	var all sync.WaitGroup
	for range inCrowd {
		all.Go(func() {
			if err := l.Wait(context.Background()); err != nil {
				report("error %v", err)
				return
			}
			report("admitted")
		})
	}
	all.Wait()
	return nil
}

// A process dies with 500 waiters, who can give nothing back: their slots pass, and then the limiter is as new.
func TestWaitersWhoDieHoldCapacityNoLongerThanTheirSlots(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	l, err := headgate.New(headgate.Redis(server.Client()), "crowd", crowded)
	if err != nil {
		t.Fatal(err)
	}
	admitted := 0
	processes, ended := startChildren(t, 1, "crowd", server.Addr, func(line string) {
		if line != "admitted" {
			t.Errorf("a child says %q", line)
		}
		admitted++
	})
	processes[0].say()
	reset := func() time.Duration {
		d, err := l.Peek(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return d.ResetAfter
	}
	interval := crowded.Per / time.Duration(crowded.Rate)
	eventually(t, "half of them have slots", func() bool { return reset() > inCrowd/2*interval })
	_ = processes[0].cmd.Process.Kill()
	ended()
	if admitted == inCrowd {
		t.Fatal("all were admitted: this test tests nothing")
	}
	// They hold the slots that they were given, one each, and nothing after them.
	r, err := l.Reserve(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r.Delay() > inCrowd*interval {
		t.Errorf("the next slot is in %v, and theirs take %v", r.Delay(), inCrowd*interval)
	}
	if err := r.Wait(ctx); err != nil {
		t.Error(err)
	}
	eventually(t, "the limiter is forgotten", func() bool { return server.Admin().DBSize(ctx).Val() == 0 })
	if d := allowN(t, l, 1); !d.Allowed {
		t.Errorf("%+v", d)
	}
}

// mixed uses all that Headgate stores for as long as it lives: limits of each algorithm, places given up, shared parameters.
func mixed(addr string, begin func(), stop <-chan struct{}, _ func(string, ...any)) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	store := headgate.Redis(rdb)
	ctx := context.Background()
	var callers sync.WaitGroup
	begin()
	for name, algorithm := range everyAlgorithm() {
		l, err := headgate.New(store, "mix", algorithm)
		if err != nil {
			return err
		}
		s, err := headgate.NewShared(store, "mix/"+name)
		if err != nil {
			return err
		}
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default: // errors too: the server is killed under it
				}
				_, _ = s.SetRate(ctx, algorithm)
				for _, l := range []*headgate.Limiter{l, l.For(fmt.Sprint(rand.IntN(5))), &s.Limiter, s.For(fmt.Sprint(rand.IntN(5)))} {
					_, _ = l.Allow(ctx)
					var held []*headgate.Reservation
					for range 5 {
						if r, err := l.ReserveN(ctx, 1+rand.IntN(3)); err == nil {
							held = append(held, r)
						}
					}
					rand.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
					for _, r := range held {
						_ = r.Cancel(ctx)
					}
					if rand.IntN(20) == 0 {
						_ = l.Reset(ctx)
					}
				}
				_ = s.Expire(ctx, time.Hour)
			}
		})
	}
	callers.Wait()
	return nil
}

// Clients and Redis are killed at any point. What is in Redis then is what some call left, whole: every limiter can be used,
// every key is bounded, and expires.
func TestWhatIsLeftWhenSomebodyIsKilledIsWhole(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	store := headgate.Redis(server.Client())
	for round := range longer(2, 40) {
		processes, ended := startChildren(t, 2, "mix", server.Addr, func(line string) { t.Errorf("a child says %q", line) })
		for _, p := range processes {
			p.say()
		}
		calls := server.Calls("evalsha")
		eventually(t, "all is in use", func() bool { return server.Calls("evalsha") > calls+500 })
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		if round%2 == 0 {
			for _, p := range processes {
				_ = p.cmd.Process.Kill()
			}
		} else {
			server.Kill()
			for _, p := range processes {
				p.say()
			}
		}
		ended()
		if round%2 != 0 {
			server.Restart()
		}
		isWhole(t, server, 4096*int64(1+round)) // what the dead had reserved is still held
		for name, algorithm := range everyAlgorithm() {
			l, err := headgate.New(store, "mix", algorithm)
			if err != nil {
				t.Fatal(err)
			}
			s, err := headgate.NewShared(store, "mix/"+name)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range []*headgate.Limiter{l, l.For("1"), &s.Limiter, s.For("1")} {
				if _, err := l.Allow(ctx); err != nil && !errors.Is(err, headgate.ErrNotInitialized) {
					t.Errorf("round %d, %s: %v", round, name, err)
				}
			}
		}
	}
}

// isWhole wants each key in Redis to expire, but for a shared limiter's parameters, and to be small.
func isWhole(t *testing.T, server *redistest.Server, most int64) {
	t.Helper()
	ctx := context.Background()
	admin := server.Admin()
	for keys := admin.Scan(ctx, 0, "*", 1000).Iterator(); keys.Next(ctx); {
		key := keys.Val()
		if bytes := admin.MemoryUsage(ctx, key).Val(); bytes > most {
			t.Errorf("%q takes %d bytes", key, bytes)
		}
		ttl := admin.PTTL(ctx, key).Val()
		if ttl == -1 && !strings.HasSuffix(key, "}:rate") {
			t.Errorf("%q does not expire", key)
		}
		if ttl > (407+366+1)*24*time.Hour { // the furthest slot, and a year's window

			t.Errorf("%q expires in %v", key, ttl)
		}
	}
}

// A great many keys, each used once: what they took of Redis's memory is free again when they have expired.
func TestRandomKeysLeaveNothingBehind(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t, "--hz", "100")
	admin := server.Admin()
	keys := longer(5_000, 200_000)
	// Connections and scripts are there before the base line is taken.
	store := headgate.Redis(server.Client())
	brief := newLimiter(t, store, algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 10})
	ttl := time.Duration(longer(1, 60)) * time.Second // in a soak, all keys are there at the same time
	lasting := newLimiter(t, store, algos.TokenBucket{Rate: 10, Per: ttl, Burst: 10})
	use := func(l *headgate.Limiter, keys int) {
		const callers = 64
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for i := caller; i < keys; i += callers {
					if d, err := l.For(fmt.Sprint(rand.Uint64()), fmt.Sprint(i)).AllowN(ctx, 10); err != nil || !d.Allowed {
						t.Errorf("%+v, %v", d, err)
					}
				}
			})
		}
		all.Wait()
	}
	memory := func() int64 {
		bytes, err := usedMemory(ctx, admin)
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	gone := func() bool { return admin.DBSize(ctx).Val() == 0 }
	use(brief, 1000)
	eventually(t, "the first keys are gone", gone)
	base := memory()
	use(lasting, keys)
	peak := memory()
	time.Sleep(ttl - time.Second)
	eventually(t, "all keys are gone", gone)
	eventually(t, "the memory is free", func() bool { return memory() < base+1<<20 })
	if peak < base+8<<20 && keys > 100_000 {
		t.Errorf("%d bytes at most, and %d before: this test tests nothing", peak, base)
	}
	t.Logf("%d bytes before, %d with %d keys, %d after", base, peak, keys, memory())
}

// Whatever a user's key is, the keys of one limiter are in one hash slot of a cluster, small, and no other limiter's; all of
// them begin with the prefix. The server says so itself.
func TestTheStoredKeysOfHostileKeys(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := redistest.Cluster(t, 1)[0]
	admin := server.Admin()
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr}})
	defer rdb.Close()
	store := headgate.Redis(rdb)
	all := make(map[string]int) // by stored key, whose it is
	for i, key := range append(hostileKeys(), "hg:{plain}:tb", "plain}:tb", "plain", "hg:{plain}:rate", "plain}:rate", "\xe2\x82", strings.Repeat("\x00", 64<<10)) {
		l, err := headgate.New(store, key, slow)
		if err != nil {
			t.Fatal(err)
		}
		s, err := headgate.NewShared(store, key)
		if err != nil {
			t.Fatal(err)
		}
		changed(t, true)(s.TrySetRate(ctx, slow))
		for _, l := range []*headgate.Limiter{l, l.For(key), &s.Limiter, s.For(key), s.For("a", key)} {
			if d := allowN(t, l, 1); d.Remaining != slow.Burst-1 {
				t.Errorf("key %d is counted with another: %+v", i, d)
			}
		}
		own := admin.Keys(ctx, "*").Val()
		var slots []int64
		for _, stored := range own {
			if _, known := all[stored]; known {
				continue
			}
			all[stored] = i
			if len(stored) > 1000 || !strings.HasPrefix(stored, "hg:{") {
				t.Errorf("key %d is stored as %.100q", i, stored)
			}
			if !strings.HasPrefix(stored, strings.TrimSuffix(l.For(key).StoredKey("x"), "x")) { // For has a slot of its own
				slots = append(slots, admin.ClusterKeySlot(ctx, stored).Val())
			}
		}
		if len(slots) != 5 { // the state, the parameters and three states by them
			t.Errorf("key %d has %d keys in its slot", i, len(slots))
		}
		for _, slot := range slots {
			if slot != slots[0] {
				t.Errorf("key %d is in the slots %d", i, slots)
				break
			}
		}
		if tickets := l.StoredKey("tickets"); admin.ClusterKeySlot(ctx, tickets).Val() != slots[0] {
			t.Errorf("key %d: tickets are in another slot", i)
		}
	}
}
