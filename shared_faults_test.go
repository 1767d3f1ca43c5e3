package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/internal/redistest"
)

// onCall has a client call before ahead of each command, and return its error, if it has one, as the server's.
type onCall func(cmd redis.Cmder) error

func (onCall) DialHook(next redis.DialHook) redis.DialHook { return next }

func (before onCall) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := before(cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (onCall) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// serverError is what a server answers.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError marks it as such for go-redis.
func (serverError) RedisError() {}

// Everything that was a shared limiter's is gone, and nothing else is, whatever its key looks like to a pattern.
func TestDeleteRemovesEveryKeyOfALimiterAndNoOther(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	rdb := server.Client()
	store := headgate.Redis(rdb)
	used := func(key string) *headgate.Shared {
		s, err := headgate.NewShared(store, key)
		if err != nil {
			t.Fatal(err)
		}
		changed(t, true)(s.SetRate(ctx, perMinutes(5, 1)))
		allowN(t, s.For("client"), 1)
		return s
	}
	odd := `a*b?[c]\d^-%{e}`
	doomed := used(odd)
	allowN(t, &doomed.Limiter, 1)
	changed(t, true)(doomed.SetRate(ctx, perMinutes(6, 1))) // the states of before are nobody's, but they are there
	for i := range 1200 {
		allowN(t, doomed.For("client", fmt.Sprint(i)), 1)
	}
	before := server.Calls("scan")

	neighbours := []string{`aXb?[c]\d^-%{e}`, `a*b?[c]\d^-%{e}:`, "a", odd + ":rate", odd + "/client"}
	for _, key := range neighbours {
		used(key)
	}
	plain, err := headgate.New(store, odd, perMinutes(5, 1))
	if err != nil {
		t.Fatal(err)
	}
	allowN(t, plain, 1)

	if err := doomed.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := int(rdb.DBSize(ctx).Val()), 2*len(neighbours)+1; got != want {
		t.Errorf("%d keys are left, want %d: %q", got, want, rdb.Keys(ctx, "*").Val())
	}
	if got := server.Calls("scan") - before; got < 2 {
		t.Errorf("%d calls went through 1200 keys", got)
	}
	if err := doomed.Delete(ctx); err != nil {
		t.Error(err)
	}
}

// Somebody sets the rate anew while a Delete is still at work.
func TestDeleteSparesALimiterThatIsSetUpMeanwhile(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	rdb := server.Client()
	deleting, other := newShared(t, headgate.Redis(rdb)), newShared(t, headgate.Redis(server.Client()))
	changed(t, true)(other.SetRate(ctx, perMinutes(5, 1)))
	for i := range 1200 {
		allowN(t, other.For(fmt.Sprint(i)), 1)
	}
	steps := 0
	rdb.AddHook(onCall(func(cmd redis.Cmder) error {
		if !slices.Contains(cmd.Args(), any("delete")) || cmd.Name() == "eval" {
			return nil
		}
		if steps++; steps == 2 { // the first has removed the parameters
			changed(t, true)(other.TrySetRate(ctx, perMinutes(5, 1)))
			for i := range 1200 {
				allowN(t, other.For(fmt.Sprint(i)), 1)
			}
		}
		return nil
	}))
	if err := deleting.Delete(ctx); err != nil {
		t.Fatal(err)
	}
	for i := range 1200 {
		if n := available(t, other.For(fmt.Sprint(i))); n != 4 {
			t.Fatalf("client %d has %d permits of 5 after 1 was used", i, n)
		}
	}
	if got := int(rdb.DBSize(ctx).Val()); got != 1201 {
		t.Errorf("%d keys", got)
	}
}

// The first step forgets the parameters, and with them all that is counted by them.
func TestADeleteThatEndsEarlyHasDeletedAllThatCounts(t *testing.T) {
	ctx := context.Background()
	rdb := redistest.Start(t).Client()
	s := newShared(t, headgate.Redis(rdb))
	changed(t, true)(s.SetRate(ctx, perMinutes(5, 1)))
	for i := range 1200 {
		allowN(t, s.For(fmt.Sprint(i)), 1)
	}
	leaving, cancel := context.WithCancel(ctx)
	rdb.AddHook(onCall(func(cmd redis.Cmder) error {
		if args := cmd.Args(); len(args) > 5 && args[4] == "delete" && args[5] != "0" {
			cancel()
		}
		return nil
	}))
	err := s.Delete(leaving)
	wantUnknown(t, err, true) // the parameters are gone
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if _, err := s.For("0").Allow(ctx); !errors.Is(err, headgate.ErrNotInitialized) {
		t.Errorf("%v", err)
	}
	changed(t, true)(s.TrySetRate(ctx, perMinutes(5, 1)))
	for i := range 1200 {
		if n := available(t, s.For(fmt.Sprint(i))); n != 5 {
			t.Fatalf("client %d has %d permits", i, n)
		}
	}
}

// Somebody sets the limiter up again while the first reply of a Delete is on its way, and is lost.
func TestALostReplyDeletesOnce(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	far := newShared(t, headgate.Redis(server.Client(func(o *redis.Options) { o.Addr = proxy.Addr })))
	near := newShared(t, headgate.Redis(server.Client()))
	changed(t, true)(near.SetRate(ctx, slow))
	allowN(t, &far.Limiter, 1)
	proxy.Set(redistest.Hold)
	done := make(chan error)
	go func() { done <- far.Delete(ctx) }()
	proxy.Holding()
	changed(t, true)(near.TrySetRate(ctx, slow))
	allowN(t, &near.Limiter, 5)
	proxy.Set(redistest.Cut)
	wantUnknown(t, <-done, true)
	proxy.Set(redistest.Pass)
	if n := available(t, &near.Limiter); n != slow.Burst-5 {
		t.Errorf("%d are left", n)
	}
}

// P6: what proves that nothing ran is sent again, and only that.
func TestOnlyAnAnswerThatProvesThatNothingRanIsSentAgain(t *testing.T) {
	ctx := context.Background()
	for text, again := range map[string]bool{
		"LOADING Redis is loading the dataset in memory":               true,
		"TRYAGAIN Multiple keys request during rehashing of slot":      true,
		"NOSCRIPT No matching script":                                  true,
		"READONLY You can't write against a read only replica.":        false,
		"OOM command not allowed when used memory > 'maxmemory'.":      false,
		"BUSY Redis is busy running a script.":                         false,
		"CLUSTERDOWN The cluster is down":                              false,
		"ERR value is not an integer or out of range script: abcd":     false,
		"NOPERM User test has no permissions to run the 'get' command": false,
	} {
		t.Run(text, func(t *testing.T) {
			rdb := redistest.Start(t).Client()
			plain, shared := newLimiter(t, headgate.Redis(rdb), slow), newShared(t, headgate.Redis(rdb))
			var left atomic.Int32
			rdb.AddHook(onCall(func(cmd redis.Cmder) error {
				if n := cmd.Name(); (n == "evalsha" || n == "eval") && left.Add(-1) >= 0 {
					return serverError(text)
				}
				return nil
			}))
			times := int32(3)
			if text[:8] == "NOSCRIPT" {
				times = 1
			}
			for name, call := range map[string]func() error{
				"a decision": func() error { _, err := plain.Allow(ctx); return err },
				"a change":   func() error { _, err := shared.TrySetRate(ctx, slow); return err },
			} {
				left.Store(times)
				err := call()
				if again && err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if !again {
					wantUnknown(t, err, false)
					if left.Load() != times-1 {
						t.Errorf("%s: was sent again", name)
					}
				}
			}
		})
	}
}

func TestWhatIsNotReadyIsNotAskedForEver(t *testing.T) {
	rdb := redistest.Start(t).Client()
	l := newLimiter(t, headgate.Redis(rdb), slow)
	rdb.AddHook(onCall(func(redis.Cmder) error { return serverError("LOADING for hours") }))
	_, err := l.Allow(context.Background())
	wantUnknown(t, err, false)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	if _, err := l.Allow(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("within a deadline: %v", err)
	}
}

// A cluster moves a shared limiter's slot, and has moved one of its two keys.
func TestASharedDecisionWhileItsSlotMoves(t *testing.T) {
	ctx := context.Background()
	servers := redistest.Cluster(t, 2)
	source, target := servers[0], servers[1]
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{servers[0].Addr}, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer rdb.Close()
	s := newShared(t, headgate.Redis(rdb))
	changed(t, true)(s.SetRate(ctx, slow))
	allowN(t, &s.Limiter, 1)

	const terms = "hg:{shared}:rate"
	slot := source.Admin().ClusterKeySlot(ctx, terms).Val()
	if slot >= 8192 {
		source, target = target, source
	}
	from, to := source.Admin(), target.Admin()
	if err := errors.Join(
		to.Do(ctx, "cluster", "setslot", slot, "importing", source.NodeID()).Err(),
		from.Do(ctx, "cluster", "setslot", slot, "migrating", target.NodeID()).Err(),
	); err != nil {
		t.Fatal(err)
	}
	states := from.Keys(ctx, terms+":*").Val()
	source.Migrate(target, terms)
	var asked atomic.Int32
	rdb.AddHook(onCall(func(redis.Cmder) error { asked.Add(1); return nil }))
	answered, moved := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(moved)
		for asked.Load() < 3 { // one call, and it was told to try again twice
			select {
			case <-answered:
				return
			case <-time.After(time.Millisecond):
			}
		}
		source.Migrate(target, states...)
		for _, c := range []*redis.Client{to, from} {
			c.Do(ctx, "cluster", "setslot", slot, "node", target.NodeID())
		}
	}()
	d, err := s.Allow(ctx)
	close(answered)
	<-moved
	if err != nil || !d.Allowed || d.Limit-d.Remaining != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	if asked.Load() < 3 {
		t.Fatalf("it was asked %d times", asked.Load())
	}
	if d := allowN(t, &s.Limiter, 1); d.Limit-d.Remaining != 3 {
		t.Errorf("%+v", d)
	}
}

// A caller left, the parameters were changed, and then the reply came: its permit goes back all the same.
func TestWhatComesLateIsGivenBackAcrossAChange(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	far := newShared(t, headgate.Redis(server.Client(func(o *redis.Options) { o.Addr = proxy.Addr })))
	near := newShared(t, headgate.Redis(server.Client()))
	changed(t, true)(near.SetRate(context.Background(), slow))
	allowN(t, &far.Limiter, 1)

	proxy.Set(redistest.Hold)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := far.AllowN(ctx, 7)
		done <- err
	}()
	proxy.Holding()
	cancel()
	wantUnknown(t, <-done, true)
	more := slow
	more.Burst++
	changed(t, true)(near.UpdateRate(context.Background(), more))
	if n := available(t, &near.Limiter); n != more.Burst-8 {
		t.Errorf("%d are left", n)
	}
	proxy.Set(redistest.Pass)
	eventually(t, "7 permits come back", func() bool { return available(t, &near.Limiter) == more.Burst-1 })
}
