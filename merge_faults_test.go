package headgate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

func TestAnErrorReachesAllWhoShareTheCall(t *testing.T) {
	j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000})
	errs := make(chan error, 20)
	for range cap(errs) {
		go func() {
			_, err := j.Allow(context.Background())
			errs <- err
		}()
	}
	j.inLine(t, cap(errs))
	if err := j.server.Client().Set(context.Background(), j.key, "hello", time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	j.proxy.Set(redistest.Pass)
	for range cap(errs) {
		err := <-errs
		if failed, ok := errors.AsType[*StoreError](err); !ok || failed.Unknown || !strings.Contains(err.Error(), "FOREIGN") {
			t.Errorf("%v", err)
		}
	}
}

// A dead connection holds up those whose requests it carries, and not for long those who wait for it.
func TestNobodyWaitsForACallThatTakesTooLong(t *testing.T) {
	for name, ctx := range map[string]context.Context{"for ever": context.Background(), "as long as he likes": t.Context()} {
		t.Run(name, func(t *testing.T) {
			j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000})
			j.began(time.Now())
			waits := make(chan error, 1)
			go func() {
				_, err := j.Allow(ctx)
				waits <- err
			}()
			j.inLine(t, 1)
			j.proxy.Holding() // it goes on by another connection, though nobody else comes
			j.inLine(t, 0)
			j.proxy.Set(redistest.Pass)
			for _, errs := range []chan error{waits, j.first} {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			if d, err := j.Peek(context.Background()); err != nil || d.Limit-d.Remaining != 2 {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
}

// Of a user's own hook of go-redis that panics, and is recovered from.
func TestAPanicHoldsUpNobodyElse(t *testing.T) {
	rdb := redistest.Start(t).Client()
	l, err := New(Redis(rdb), "panic", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	began, panics := make(chan struct{}), make(chan struct{})
	var once sync.Once
	rdb.AddHook(before(func() {
		once.Do(func() {
			close(began)
			<-panics
			panic("a user's own")
		})
	}))
	recovered := make(chan any)
	go func() {
		defer func() { recovered <- recover() }()
		_, _ = l.Allow(context.Background())
	}()
	<-began
	done := make(chan error)
	go func() {
		_, err := l.Allow(context.Background())
		done <- err
	}()
	close(panics)
	if <-recovered == nil {
		t.Error("there was no panic")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	nothingUnderWay(t, &l.store.(*redisStore).outbox)
}

// before has a function called ahead of each command.
type before func()

func (before) DialHook(next redis.DialHook) redis.DialHook { return next }
func (before) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f before) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		f()
		return next(ctx, cmd)
	}
}

// A caller who has left waits a tenth of a second for his give-back; it is sent, however long the line takes.
func TestWhatIsGivenBackInALineIsSentThoughItsCallerHasLeft(t *testing.T) {
	j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1})
	j.proxy.Next()
	if err := <-j.first; err != nil {
		t.Fatal(err)
	}
	j.proxy.Set(redistest.Pass)
	const held = 20
	reservations := make([]*Reservation, held)
	for i := range reservations {
		r, err := j.Reserve(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		reservations[i] = r
	}
	j.proxy.Set(redistest.Hold)
	go func() { _, _ = j.Peek(context.Background()) }()
	j.proxy.Holding()
	ended, end := context.WithCancel(context.Background())
	end()
	var all sync.WaitGroup
	for _, r := range reservations {
		all.Go(func() {
			if failed, ok := errors.AsType[*StoreError](r.Cancel(ended)); !ok || !failed.Unknown {
				t.Errorf("a cancel whose answer did not come: %v", failed)
			}
		})
	}
	all.Wait()
	j.proxy.Set(redistest.Pass)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		d, err := j.Peek(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if d.ResetAfter <= time.Hour {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("as new in %v, though one was used", d.ResetAfter)
		}
	}
}

// What came after its caller had left is a cancel of its own, linked to him.
func TestTheHookIsToldOfWhatIsGivenBackLate(t *testing.T) {
	type id struct{}
	cancels := make(chan string, 10)
	j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000}, WithHook(
		func(ctx context.Context, op Operation) (context.Context, func(Outcome)) {
			if op.Verb != VerbCancel {
				return context.WithValue(ctx, id{}, op.Cost), nil
			}
			return ctx, func(o Outcome) {
				cancels <- fmt.Sprintf("%d of %v: %d returned, %v", op.Cost, op.Links[0].Value(id{}), o.Returned, o.Err)
			}
		}))
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan struct{})
	for _, n := range []int{3, 7} { // the one who stays, and the one who leaves
		go func() {
			if n == 3 {
				_, _ = j.AllowN(context.Background(), 3)
				return
			}
			_, _ = j.AllowN(ctx, 7)
			close(gone)
		}()
		j.inLine(t, (n+1)/4)
	}
	j.proxy.Next()
	j.proxy.Holding()
	cancel()
	<-gone
	j.proxy.Set(redistest.Pass)
	if got, want := <-cancels, "7 of 7: 7 returned, <nil>"; got != want {
		t.Errorf("the hook saw %q, want %q", got, want)
	}
}

// Who has been overtaken does not go on beside those who overtook it: a line has one call at a time again.
func TestALineHasOneCallAgainAfterAStall(t *testing.T) {
	t.Parallel()
	rdb := redistest.Start(t).Client()
	var stall atomic.Bool
	var underWay, most atomic.Int64
	rdb.AddHook(around(func(run func() error) error {
		if n := underWay.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer underWay.Add(-1)
		if stall.CompareAndSwap(true, false) {
			time.Sleep(patience + 100*time.Millisecond)
		}
		return run()
	}))
	store := Redis(rdb).(*redisStore)
	store.outbox.alone = true
	l, err := New(store, "stalled", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	for range 2 * maxBatch { // so that some always wait
		callers.Go(func() {
			for ctx.Err() == nil {
				_, _ = l.Allow(context.Background())
			}
		})
	}
	stall.Store(true)
	for most.Load() < 2 { // until it has been overtaken
		time.Sleep(time.Millisecond)
	}
	time.Sleep(patience) // it has ended
	most.Store(0)
	for deadline := time.Now().Add(300 * time.Millisecond); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n := most.Load(); n > 1 {
			t.Fatalf("%d calls of one line are under way", n)
		}
	}
	stop()
	callers.Wait()
}

// around has a function run each script.
type around func(run func() error) error

func (around) DialHook(next redis.DialHook) redis.DialHook { return next }
func (around) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (f around) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" {
			return next(ctx, cmd)
		}
		return f(func() error { return next(ctx, cmd) })
	}
}
