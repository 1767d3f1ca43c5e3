package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A decision is one call of one script, a change is one command, and after it each process has one decision of two calls.
func TestASharedDecisionIsOneCall(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	s, other := newShared(t, headgate.Redis(server.Client())), newShared(t, headgate.Redis(server.Client()))
	calls := func() int { return server.Calls("evalsha") + server.Calls("eval") }
	count := func(what string, want int, f func()) {
		t.Helper()
		before := calls()
		f()
		if got := calls() - before; got != want {
			t.Errorf("%s: %d calls, want %d", what, got, want)
		}
	}
	if _, err := s.Rate(ctx); !errors.Is(err, headgate.ErrNotInitialized) { // loads the script
		t.Fatal(err)
	}
	count("a change", 1, func() { changed(t, true)(s.SetRate(ctx, perMinutes(100, 1))) })
	allowN(t, &s.Limiter, 1) // loads the script
	count("the first decision of a process", 2, func() { allowN(t, &other.Limiter, 1) })
	count("ten decisions", 10, func() {
		for range 5 {
			allowN(t, &s.Limiter, 1)
			allowN(t, &other.Limiter, 1)
		}
	})
	count("an update", 1, func() { changed(t, true)(s.UpdateRate(ctx, perMinutes(200, 1))) })
	count("the other's decision after it", 2, func() { allowN(t, &other.Limiter, 1) })
	count("and the one after that", 1, func() { allowN(t, &other.Limiter, 1) })
	count("a client's", 1, func() { allowN(t, other.For("client"), 1) })
	count("setting what is set", 1, func() { changed(t, false)(other.SetRate(ctx, perMinutes(200, 1))) })
	count("deciding after that", 1, func() { allowN(t, &s.Limiter, 1) })
}

// window is what the processes' limits are for. It is short, so that there are many of them.
const window = 200 * time.Millisecond

func logOf(limit int) algos.SlidingLog { return algos.SlidingLog{Limit: limit, Window: window} }

// A use is a permit as a witness sees it: by what limit it was granted, when the call began and ended, and when it was to
// be used: no earlier than from, no later than to. In µs since 1970.
type use struct{ limit, before, after, from, to int64 }

// useShared takes permits of a shared limiter as fast as it can, now and by reservation, and reports each use.
func useShared(addr string, begin func(), stop <-chan struct{}, report func(string, ...any)) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	s, err := headgate.NewShared(headgate.Redis(rdb), "shared")
	if err != nil {
		return err
	}
	type outcome struct{ headgate.Outcome }
	noted, err := headgate.NewShared(headgate.Redis(rdb), "shared", headgate.WithHook(
		func(ctx context.Context, _ headgate.Operation) (context.Context, func(headgate.Outcome)) {
			return ctx, func(o headgate.Outcome) { ctx.Value(outcome{}).(*outcome).Outcome = o }
		}))
	if err != nil {
		return err
	}
	begin()
	var callers sync.WaitGroup
	for caller := range 4 {
		callers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var o outcome
				before := time.Now().UnixMicro()
				if caller == 0 { // quoted ahead, and used at the slot
					_, err := noted.Reserve(context.WithValue(context.Background(), outcome{}, &o), headgate.Within(window/2))
					if err != nil && !errors.Is(err, headgate.ErrDenied) {
						report("error %v", err)
						return
					}
				} else {
					d, err := s.Allow(context.Background())
					if err != nil {
						report("error %v", err)
						return
					}
					o.Decision = d
				}
				after := time.Now().UnixMicro()
				if o.Decision.Allowed {
					ahead := o.Delay.Microseconds()
					report("use %d %d %d %d %d", o.Decision.Limit, before, after, before+ahead, after+ahead)
				} else {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	callers.Wait()
	return nil
}

// Four processes under load while the limit is raised, cut and replaced. The witness sees only the uses: never more in a
// window than the limit by which the last of them was granted, slots that were quoted before counted, and no use by a
// limit that was no longer set when its call began. A replaced limit begins anew.
func TestProcessesUnderLoadFollowEveryChange(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	admin := newShared(t, headgate.Redis(server.Client()))
	type phase struct {
		limit    int
		replaced bool  // by SetRate, else by UpdateRate
		from, to int64 // surely set from, and to; µs since 1970
	}
	phases := []*phase{
		{limit: 20, replaced: true}, {limit: 60}, {limit: 10},
		{limit: 40, replaced: true}, {limit: 5}, {limit: 30},
		{limit: 50, replaced: true}, {limit: 6},
	}
	var uses []use
	processes, ended := startChildren(t, children, "share", server.Addr, func(line string) {
		var u use
		if n, _ := fmt.Sscanf(line, "use %d %d %d %d %d", &u.limit, &u.before, &u.after, &u.from, &u.to); n != 5 {
			t.Errorf("a process says %q", line)
		}
		uses = append(uses, u)
	})
	for i, p := range phases {
		if i > 0 {
			phases[i-1].to = time.Now().UnixMicro()
		}
		if p.replaced {
			changed(t, true)(admin.SetRate(ctx, logOf(p.limit)))
		} else {
			changed(t, true)(admin.UpdateRate(ctx, logOf(p.limit)))
		}
		p.from, p.to = time.Now().UnixMicro(), math.MaxInt64
		if i == 0 {
			for _, c := range processes {
				c.say()
			}
		}
		time.Sleep(2 * window)
	}
	for _, c := range processes {
		c.say()
	}
	ended()

	anew := make(map[int64]int) // which beginning a limit is of
	granted := make(map[int64]int)
	beginning := 0
	for _, p := range phases {
		if p.replaced {
			beginning++
		}
		anew[int64(p.limit)] = beginning
		for _, u := range uses {
			if u.before >= p.from+clocks && u.after <= p.to-clocks && u.limit != int64(p.limit) {
				t.Errorf("a use by a limit of %d while %d was set", u.limit, p.limit)
			}
		}
	}
	for _, last := range uses {
		granted[last.limit]++
		n := int64(1)
		for _, u := range uses {
			// Decided before it, and used in the window that ends with it, for certain.
			if anew[u.limit] == anew[last.limit] && u.after < last.before && u.from > last.to-window.Microseconds()+clocks {
				n++
			}
		}
		if n > last.limit {
			t.Errorf("use %d of the window was granted by a limit of %d", n, last.limit)
		}
	}
	for _, p := range phases {
		if granted[int64(p.limit)] < p.limit/2 {
			t.Errorf("%d uses by the limit of %d", granted[int64(p.limit)], p.limit)
		}
	}
	t.Logf("%d uses: %v", len(uses), granted)
}

// changeShared changes the rate for as long as it lives.
func changeShared(addr string, begin func(), stop <-chan struct{}, _ func(string, ...any)) error {
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	s, err := headgate.NewShared(headgate.Redis(rdb), "shared")
	if err != nil {
		return err
	}
	begin()
	ctx := context.Background()
	for {
		select {
		case <-stop:
			return nil
		default: // errors too: the server is killed under it
			_, _ = s.SetRate(ctx, slow)
			_, _ = s.Allow(ctx)
			_, _ = s.UpdateRate(ctx, perMinutes(7, 1))
			_ = s.Expire(ctx, time.Hour)
			_ = s.ClearExpire(ctx)
		}
	}
}

// Whenever the one who changes a limit is killed, or Redis, which keeps what it has written: either the old limit counts
// or the new one.
func TestAChangeThatIsKilledIsMadeOrIsNot(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := newShared(t, headgate.Redis(server.Client()))
	changed(t, true)(s.SetRate(ctx, slow))
	for round := range 8 {
		processes, ended := startChildren(t, 1, "change", server.Addr, func(line string) { t.Errorf("a process says %q", line) })
		processes[0].say()
		calls := server.Calls("evalsha")
		eventually(t, "changes are made", func() bool { return server.Calls("evalsha") > calls+20 })
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		if round%2 == 0 {
			_ = processes[0].cmd.Process.Kill()
			ended()
		} else {
			server.Kill()
			processes[0].say()
			ended()
			server.Restart()
		}
		algorithm, err := s.Rate(ctx)
		if err != nil || algorithm != algos.Algorithm(slow) && algorithm != algos.Algorithm(perMinutes(7, 1)) {
			t.Fatalf("round %d: %+v, %v", round, algorithm, err)
		}
		if d := allowN(t, &s.Limiter, 1); d.Limit != 1000 && d.Limit != 7 {
			t.Errorf("round %d: %+v", round, d)
		}
	}
	if err := s.Delete(ctx); err != nil {
		t.Error(err)
	}
}
