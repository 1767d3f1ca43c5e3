package headgate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
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
	j.hold()
	return j
}

// hold has a call begin that is not over until the proxy passes it on.
func (j *jam) hold() {
	j.proxy.Set(redistest.Hold)
	go func() {
		_, err := j.Allow(context.Background())
		j.first <- err
	}()
	j.proxy.Holding()
	j.began(time.Now().Add(time.Hour)) // nobody loses patience, however long it takes them all to come
}

// began has the call that is under way have begun then.
func (j *jam) began(then time.Time) {
	j.store.lines.mu.Lock()
	defer j.store.lines.mu.Unlock()
	at := line{j.plan, j.key}
	call := j.store.lines.calls[at]
	call.since = then
	j.store.lines.calls[at] = call
}

// inLine waits until so many wait for the call that is under way.
func (j *jam) inLine(t *testing.T, n int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		j.store.lines.mu.Lock()
		got := 0
		if q := j.store.lines.calls[line{j.plan, j.key}].queue; q != nil {
			for _, b := range q.batches {
				got += len(b.requests)
			}
		}
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

// To give back takes longer, so fewer go together.
func TestACallCarriesFewerWhoGiveBack(t *testing.T) {
	j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Minute, Burst: 1})
	j.proxy.Set(redistest.Pass)
	if err := <-j.first; err != nil {
		t.Fatal(err)
	}
	var held []*Reservation
	for range 2*maxBatch/4 + 1 {
		r, err := j.Reserve(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, r)
	}
	j.hold()
	before := j.server.Calls("evalsha")
	var all sync.WaitGroup
	for _, r := range held {
		all.Go(func() {
			if err := r.Cancel(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	j.inLine(t, len(held))
	j.proxy.Set(redistest.Pass)
	all.Wait()
	if got := j.server.Calls("evalsha") - before; got != 3 {
		t.Errorf("%d calls", got)
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

func TestASharedCallIsLinkedToItsCallers(t *testing.T) {
	type id struct{}
	var mu sync.Mutex
	var links []context.Context // as they are once the calls are long over
	var ids atomic.Int32
	j := newJam(t, algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000}, WithHook(
		func(ctx context.Context, op Operation) (context.Context, func(Outcome)) {
			if op.Verb != VerbCall {
				return context.WithValue(ctx, id{}, ids.Add(1)), nil
			}
			mu.Lock()
			defer mu.Unlock()
			if len(op.Links) > 0 {
				links = op.Links
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
	_, _ = j.Allow(context.Background())
	var got []any
	for _, link := range links {
		got = append(got, link.Value(id{}))
	}
	if want := []any{int32(3), int32(4), int32(5)}; !slices.Equal(got, want) { // after the peek and the first
		t.Errorf("links to %v, want %v", got, want)
	}
}
