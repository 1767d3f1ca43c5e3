package headgate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// pipelined counts the commands of pipelines that run a script.
type pipelined struct{ pipelines, commands atomic.Int64 }

func (*pipelined) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*pipelined) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (p *pipelined) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		n := int64(0)
		for _, cmd := range cmds {
			if cmd.Name() == "evalsha" {
				n++
			}
		}
		if n > 0 {
			p.pipelines.Add(1)
			p.commands.Add(n)
		}
		return next(ctx, cmds)
	}
}

// A throng is a hundred callers, each with a key of its own, who wait while the replies to the first few are held.
type throng struct {
	*jam
	counted pipelined
	errs    chan error
}

const inThrong = 100

func newThrong(t *testing.T) *throng {
	t.Helper()
	j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000})
	th := &throng{jam: j, errs: make(chan error, inThrong)}
	j.store.client.(*redis.Client).AddHook(&th.counted)
	for i := range inThrong {
		go func() {
			_, err := j.For(fmt.Sprint(i)).Allow(context.Background())
			th.errs <- err
		}()
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		j.store.outbox.mu.Lock()
		n := len(j.store.outbox.waiting)
		j.store.outbox.mu.Unlock()
		if n == inThrong-(fewCalls-1) {
			return th
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d wait", n)
		}
	}
}

// wait returns how many of the throng, and of those before it, failed.
func (th *throng) wait() (failed int) {
	for range inThrong {
		if err := <-th.errs; err != nil {
			failed++
		}
	}
	if err := <-th.first; err != nil {
		failed++
	}
	return failed
}

// charged is how many permits the throng has used, seen past the bad network.
func (th *throng) charged(t *testing.T) (n int) {
	t.Helper()
	l, err := New(Redis(th.server.Client()), "jam", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for i := range inThrong {
		d, err := l.For(fmt.Sprint(i)).Peek(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		n += d.Limit - d.Remaining
	}
	return n
}

func TestCallsForManyKeysShareAPipeline(t *testing.T) {
	th := newThrong(t)
	th.proxy.Set(redistest.Pass)
	if n := th.wait(); n != 0 {
		t.Errorf("%d failed", n)
	}
	if p, n := th.counted.pipelines.Load(), th.counted.commands.Load(); p > 3 || n != inThrong-(fewCalls-1) {
		t.Errorf("%d commands in %d pipelines", n, p)
	}
	if n := th.charged(t); n != inThrong {
		t.Errorf("%d are charged", n)
	}
	nothingUnderWay(t, &th.store.outbox)
}

// nothingUnderWay waits for the end of what is under way: the callers of a pipeline are answered before.
func nothingUnderWay(t *testing.T, o *outbox) {
	t.Helper()
	n := 1
	for deadline := time.Now().Add(20 * time.Second); n != 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		o.mu.Lock()
		n = o.underWay
		o.mu.Unlock()
	}
	if n != 0 {
		t.Errorf("%d calls stay under way", n)
	}
}

// P6 in a pipeline: none of its calls is sent again.
func TestALostPipelineIsChargedOnce(t *testing.T) {
	th := newThrong(t)
	before := th.server.Calls("evalsha")
	th.proxy.Set(redistest.Cut)
	for range inThrong {
		if failed, ok := errors.AsType[*StoreError](<-th.errs); !ok || !failed.Unknown {
			t.Error("an answer came through, or it is said to have changed nothing")
		}
	}
	if err := <-th.first; err == nil {
		t.Error("the first has an answer")
	}
	if got := th.server.Calls("evalsha") - before; got > inThrong { // one of them was on its way
		t.Errorf("%d calls reached the server", got)
	}
	if n := th.charged(t); n > inThrong {
		t.Errorf("%d are charged", n)
	}
}

// Connections that have died hold up those who were sent by them, and not for long those who wait for them.
func TestNobodyWaitsForAPipelineThatTakesTooLong(t *testing.T) {
	th := newThrong(t)
	for range fewCalls { // those of the throng that were sent, and the pipeline that nobody's coming has set off
		th.proxy.Holding()
	}
	th.proxy.Set(redistest.Pass)
	if n := th.wait(); n != 0 {
		t.Errorf("%d failed", n)
	}
	if n := th.charged(t); n != inThrong {
		t.Errorf("%d are charged", n)
	}
}

// Nor do those for whom the pipeline of those who were waited for too long has no room, if it meets a dead connection, too.
func TestNobodyWaitsForAPipelineOfThoseWhoWaitedTooLong(t *testing.T) {
	th := newThrong(t)
	errs := make(chan error, maxPipeline)
	for i := range cap(errs) {
		go func() {
			_, err := th.For("another", fmt.Sprint(i)).Allow(context.Background())
			errs <- err
		}()
	}
	for range fewCalls { // that of the throng that was sent, and the pipeline of those who waited for it
		th.proxy.Holding()
	}
	for n, deadline := 1, time.Now().Add(10*time.Second); n > 0; time.Sleep(time.Millisecond) {
		th.store.outbox.mu.Lock()
		n = len(th.store.outbox.waiting)
		th.store.outbox.mu.Unlock()
		if time.Now().After(deadline) {
			t.Fatalf("%d still wait", n)
		}
	}
	th.proxy.Set(redistest.Pass)
	if n := th.wait(); n != 0 {
		t.Errorf("%d failed", n)
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// Who leaves before his call was sent is not charged, and hears so.
func TestWhoLeavesAPipelineIsNotCharged(t *testing.T) {
	th := newThrong(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := th.For("leaver").Allow(ctx)
		done <- err
	}()
	for n := 0; n != inThrong-(fewCalls-1)+1; {
		th.store.outbox.mu.Lock()
		n = len(th.store.outbox.waiting)
		th.store.outbox.mu.Unlock()
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	th.proxy.Set(redistest.Pass)
	if n := th.wait(); n != 0 {
		t.Errorf("%d failed", n)
	}
	if n := th.counted.commands.Load(); n != inThrong-(fewCalls-1) {
		t.Errorf("%d commands were sent in pipelines", n)
	}
}

// In a cluster the calls of a pipeline go to the servers of their keys.
func TestPipelinesReachEveryServerOfACluster(t *testing.T) {
	servers := redistest.Cluster(t, 3)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{servers[0].Addr}})
	defer rdb.Close()
	store := Redis(rdb)
	l, err := New(store, "cluster", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	const callers, keys = 64, 200
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for i := range keys {
				if d, err := l.For(fmt.Sprint(i)).Allow(context.Background()); err != nil || !d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
			}
		})
	}
	all.Wait()
	for i := range keys {
		if d, err := l.For(fmt.Sprint(i)).Peek(context.Background()); err != nil || d.Limit-d.Remaining != callers {
			t.Fatalf("key %d: %+v, %v", i, d, err)
		}
	}
	for i, s := range servers {
		if s.Calls("evalsha") == 0 {
			t.Errorf("server %d was not asked", i)
		}
	}
}

// Calls that hang are counted no more, whoever notices it: who comes alone after that waits for nobody.
func TestCallsThatHangHoldUpNobodyForLong(t *testing.T) {
	for name, test := range map[string]struct {
		hung time.Duration // before anybody else comes
		wait int64
	}{
		"those who come at once wait for them, once":  {0, 1},
		"those who come when it has been long do not": {time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := redistest.Start(t).Client()
			l, s := manyKeys(t, rdb)
			_, _ = l.Allow(context.Background()) // loads the script
			var hanging atomic.Int64
			release := make(chan struct{})
			rdb.AddHook(around(func(run func() error) error {
				if hanging.Add(1) <= fewCalls {
					<-release
				}
				return run()
			}))
			var waited pipelined // who has waited goes by a pipeline
			rdb.AddHook(&waited)
			var hang sync.WaitGroup
			for i := range fewCalls {
				hang.Go(func() { _, _ = l.For("hangs", fmt.Sprint(i)).Allow(context.Background()) })
			}
			for hanging.Load() < fewCalls {
				time.Sleep(time.Millisecond)
			}
			s.outbox.mu.Lock()
			s.outbox.progress = s.outbox.progress.Add(-test.hung)
			s.outbox.mu.Unlock()
			for i := range 5 {
				if _, err := l.For(fmt.Sprint(i)).Allow(context.Background()); err != nil {
					t.Error(err)
				}
			}
			if n := waited.commands.Load(); n > test.wait {
				t.Errorf("%d of 5 waited for calls that hang", n)
			}
			close(release)
			hang.Wait()
			nothingUnderWay(t, &s.outbox)
		})
	}
}

// Pipelines that follow one another are no sign of a dead connection, however long they do.
func TestAPipelineAfterAnotherIsProgress(t *testing.T) {
	o := &outbox{underWay: fewCalls, waiting: make([]*parcel, 1)}
	if o.next(o.turn); o.progress.IsZero() {
		t.Error("it is none")
	}
}
