package headgate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A jam is a limiter whose first call Redis has answered, and the network keeps.
type jam struct {
	*Limiter
	server *redistest.Server
	proxy  *redistest.Proxy
	store  *redisStore
	first  chan error
}

func newJam(t *testing.T, algorithm algos.Algorithm, opts ...Option) *jam {
	t.Helper()
	j := &jam{server: redistest.Start(t), first: make(chan error, 1)}
	j.proxy = redistest.NewProxy(t, j.server.Addr)
	j.store = Redis(j.server.Client(func(o *redis.Options) { o.Addr, o.ReadTimeout = j.proxy.Addr, time.Minute })).(*redisStore)
	l, err := New(j.store, "jam", algorithm, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Peek(context.Background()); err != nil { // loads the script
		t.Fatal(err)
	}
	j.Limiter = l
	j.proxy.Set(redistest.Hold)
	go func() {
		_, err := l.Allow(context.Background())
		j.first <- err
	}()
	j.proxy.Holding()
	return j
}

// inLine waits until so many wait for the call that is under way.
func (j *jam) inLine(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		j.store.lines.mu.Lock()
		got := len(j.store.lines.calls[line{j.plan, j.key}].waiting)
		j.store.lines.mu.Unlock()
		if got == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d wait, want %d", got, n)
		}
	}
}

// Those who come during a call share the next, and their slots are in the order in which they came.
func TestThoseWhoComeTogetherShareACall(t *testing.T) {
	j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
	before := j.server.Calls("evalsha")
	const callers = 40
	slots := make([]time.Duration, callers)
	var all sync.WaitGroup
	for i := range callers {
		ctx, opts := context.Background(), []ReserveOption{}
		if i%2 == 1 {
			leaving, cancel := context.WithCancel(ctx)
			defer cancel()
			ctx = leaving
		}
		if i%4 == 3 {
			opts = append(opts, Within(time.Second)) // denied: the slot is further off
		}
		all.Go(func() {
			r, err := j.Reserve(ctx, opts...)
			if err == nil {
				slots[i] = r.Delay()
			} else if i%4 != 3 || !errors.Is(err, ErrDenied) {
				t.Errorf("caller %d: %v", i, err)
			}
		})
		j.inLine(t, i+1)
	}
	j.proxy.Set(redistest.Pass)
	all.Wait()
	if err := <-j.first; err != nil {
		t.Error(err)
	}
	if got := j.server.Calls("evalsha") - before; got != 1 {
		t.Errorf("%d calls for %d callers", got, callers)
	}
	granted := slices.DeleteFunc(slices.Clone(slots), func(d time.Duration) bool { return d == 0 })
	if len(granted) != callers*3/4 {
		t.Errorf("%d were granted", len(granted))
	}
	for i, slot := range granted {
		if slot > time.Duration(i+1)*time.Second || i > 0 && slot-granted[i-1] < 900*time.Millisecond {
			t.Fatalf("the slots are %v", granted)
		}
	}
}

func TestACallCarriesOnlySoMany(t *testing.T) {
	j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 10_000})
	before := j.server.Calls("evalsha")
	var all sync.WaitGroup
	for range 2*maxBatch + 1 {
		all.Go(func() {
			if d, err := j.Allow(context.Background()); err != nil || !d.Allowed {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
	j.inLine(t, 2*maxBatch+1)
	j.proxy.Set(redistest.Pass)
	all.Wait()
	if got := j.server.Calls("evalsha") - before; got != 3 {
		t.Errorf("%d calls", got)
	}
	if d, err := j.Peek(context.Background()); err != nil || d.Limit-d.Remaining != 2*maxBatch+2 {
		t.Errorf("%+v, %v", d, err)
	}
	for n := 1; n != 0; {
		j.store.lines.mu.Lock()
		n = len(j.store.lines.calls)
		j.store.lines.mu.Unlock()
	}
}

// Who leaves takes out his own request and no other: unsent it is not sent, and sent it is given back.
func TestWhoLeavesTakesOutOnlyHisOwnRequest(t *testing.T) {
	j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000})
	call := func(ctx context.Context, n int) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := j.AllowN(ctx, n)
			done <- err
		}()
		return done
	}
	leave := func(cancel func(), done <-chan error, unknown bool) {
		t.Helper()
		cancel()
		err := <-done
		if failed, ok := errors.AsType[*StoreError](err); !ok || failed.Unknown != unknown || !errors.Is(err, context.Canceled) {
			t.Errorf("who has left: %v", err)
		}
	}
	early, cancelEarly := context.WithCancel(context.Background())
	late, cancelLate := context.WithCancel(context.Background())
	first := call(early, 100)
	j.inLine(t, 1)
	second := call(context.Background(), 10)
	j.inLine(t, 2)
	third := call(late, 200)
	j.inLine(t, 3)
	leave(cancelEarly, first, false) // before its call

	j.proxy.Next() // the reply that was held; and the next is held in its turn
	if err := <-j.first; err != nil {
		t.Error(err)
	}
	j.proxy.Holding()
	leave(cancelLate, third, true) // during its call
	j.proxy.Set(redistest.Pass)
	if err := <-second; err != nil {
		t.Error(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		d, err := j.Peek(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if d.Remaining == 1000-11 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d are charged; want 11", 1000-d.Remaining)
		}
	}
}

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
	if n := Redis(rdb).(*redisStore).calls.underWay; n != 0 {
		t.Errorf("%d calls are under way", n)
	}
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

func TestASharedCallIsLinkedToItsCallers(t *testing.T) {
	type id struct{}
	var mu sync.Mutex
	var links []any
	var ids atomic.Int32
	j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000}, WithHook(
		func(ctx context.Context, op Operation) (context.Context, func(Outcome)) {
			if op.Verb != VerbCall {
				return context.WithValue(ctx, id{}, ids.Add(1)), nil
			}
			mu.Lock()
			defer mu.Unlock()
			for _, link := range op.Links {
				links = append(links, link.Value(id{}))
			}
			if len(op.Links) > 0 && ctx.Value(id{}) != nil {
				t.Error("the call is under one of them")
			}
			return ctx, nil
		}))
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() { _, _ = j.Allow(context.Background()) })
		j.inLine(t, i+1)
	}
	j.proxy.Set(redistest.Pass)
	all.Wait()
	if want := []any{int32(3), int32(4), int32(5)}; !slices.Equal(links, want) { // after the peek and the first
		t.Errorf("links to %v, want %v", links, want)
	}
}

// A tape has what Redis was asked and answered, in its order.
type tape struct {
	mu    sync.Mutex
	calls []redis.Cmder
}

func (*tape) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*tape) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (tp *tape) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err == nil && strings.HasPrefix(cmd.Name(), "eval") {
			tp.mu.Lock()
			defer tp.mu.Unlock()
			tp.calls = append(tp.calls, cmd)
		}
		return err
	}
}

// Sixty-four goroutines do what they like with one key. The calls that they share are answered as the rule in Go answers
// their requests one by one, and each caller gets the answer to his own.
func TestMergedAnswersAreThoseOfRequestsThatComeOneByOne(t *testing.T) {
	const day = 24 * time.Hour
	for name, algorithm := range map[string]algos.Algorithm{
		"token bucket":   algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 10},
		"leaky bucket":   algos.LeakyBucket{Rate: 50, Per: time.Second, Capacity: 100},
		"fixed window":   algos.FixedWindow{Limit: 30, Window: 500 * time.Millisecond},
		"sliding log":    algos.SlidingLog{Limit: 30, Window: 500 * time.Millisecond},
		"refusals count": algos.SlidingLog{Limit: 30, Window: 500 * time.Millisecond, CountDenied: true},
		"sliding window": algos.SlidingWindow{Limit: 30, Window: 500 * time.Millisecond, Cells: 10},
		"calendar":       algos.CalendarWindow{Limit: 500, Every: algos.Day, Location: time.UTC},
		"warm-up":        algos.WarmUp{Rate: 50, Per: time.Second, Period: day},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := redistest.Start(t).Client()
			var tp tape
			rdb.AddHook(&tp)
			store := Redis(rdb, ClientClock())
			l, err := New(store, "merged", algorithm)
			if err != nil {
				t.Fatal(err)
			}
			var mu sync.Mutex
			got := make(map[string]int)
			tell := func(d Decision) {
				mu.Lock()
				defer mu.Unlock()
				got[fmt.Sprint(d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter)]++
			}
			var all sync.WaitGroup
			for i := range 64 {
				all.Go(func() {
					random := rand.New(rand.NewPCG(1, uint64(i)))
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					for range 30 {
						n := 1 + random.IntN(3)
						if random.IntN(2) == 0 {
							d, err := l.AllowN(ctx, n)
							if err != nil {
								t.Error(err)
							}
							tell(d)
							continue
						}
						r, err := l.ReserveN(context.Background(), n, Within(time.Duration(random.IntN(2000))*time.Millisecond))
						if refusal, ok := errors.AsType[*DeniedError](err); ok {
							tell(refusal.Decision)
						} else if err != nil {
							t.Error(err)
						} else if tell(l.decision(r.grant)); random.IntN(2) == 0 {
							if err := r.Cancel(ctx); err != nil {
								t.Error(err)
							}
						}
					}
				})
			}
			all.Wait()

			state, now, requests := l.plan.rule.NewState(), int64(0), 0
			for _, cmd := range tp.calls {
				asked := readCall(t, l.plan, cmd)
				now = max(now, asked.now)
				replies := make([]driver.Reply, len(asked.requests))
				for i := range asked.requests { // one by one
					driver.Run(state, l.plan.rule, now, asked.requests[i:i+1], replies[i:i+1])
					if replies[i] != asked.replies[i] {
						t.Fatalf("%+v is answered %+v, want %+v", asked.requests[i], asked.replies[i], replies[i])
					}
					if asked.requests[i].Cost < 0 {
						continue
					}
					requests++
					d := l.decision(grant{Reply: replies[i], plan: l.plan})
					key := fmt.Sprint(d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter)
					if got[key]--; got[key] < 0 {
						t.Fatalf("nobody was told %s", key)
					}
				}
			}
			if requests != 64*30 || len(tp.calls) > requests/2 {
				t.Errorf("%d requests in %d calls", requests, len(tp.calls))
			}
		})
	}
}

// asked is a call, read back from its arguments.
type asked struct {
	now      int64
	requests []driver.Request
	replies  []driver.Reply
}

func readCall(t *testing.T, p *plan, cmd redis.Cmder) (a asked) {
	t.Helper()
	var n []int64
	for _, arg := range cmd.Args()[4:] { // evalsha, the script, 1, the key
		i, err := strconv.ParseInt(fmt.Sprint(arg), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		n = append(n, i)
	}
	a.now = n[0]
	params, _ := p.rule.Params(a.now)
	for n = n[1+len(params):]; len(n) > 0; {
		if n[0] > 0 {
			a.requests, n = append(a.requests, driver.Request{Cost: n[0], Bound: n[1]}), n[2:]
		} else {
			a.requests = append(a.requests, driver.Request{Cost: n[0], Receipt: algos.Receipt{Period: n[1], Number: n[2]}})
			n = n[3:]
		}
	}
	replies, err := cmd.(once).Cmder.(*redis.IntSliceCmd).Result()
	if err != nil {
		t.Fatal(err)
	}
	for ; len(replies) > 0; replies = replies[driver.Integers:] {
		a.replies = append(a.replies, driver.ParseReply(replies))
	}
	return a
}

// Ten thousand calls whose callers leave when they like: what is charged in the end is what somebody was told.
func TestCallersWhoLeaveAtRandomLoseNoPermit(t *testing.T) {
	rdb := redistest.Start(t).Client()
	l, err := New(Redis(rdb), "random", algos.FixedWindow{Limit: 1_000_000, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var charged atomic.Int64
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(2, uint64(i)))
			for range 10_000 / 64 {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(2000))*time.Microsecond)
				if d, err := l.Allow(ctx); err == nil && d.Allowed {
					charged.Add(1)
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%+v, %v", d, err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	if charged.Load() == 0 {
		t.Error("nobody was served")
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		d, err := l.Peek(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if int64(d.Limit-d.Remaining) == charged.Load() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d are charged, and %d were told so", d.Limit-d.Remaining, charged.Load())
		}
	}
}
