package headgate

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate-go/headgate/algos"
)

// A key for each of a hundred thousand users, a few of whom are active at a time.
func TestMemoryForgetsLimitersThatAreAsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := Memory()
		flood, err := New(store, "flood", algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 50_000 { // live at the same time, and never seen again
			if _, err := flood.For(fmt.Sprint(i)).Allow(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		l, err := New(store, "users", algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100_000 { // a hundred of them are live at any time
			if _, err := l.For(fmt.Sprint(i)).Allow(context.Background()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if kept := store.(*memoryStore).kept(); kept > 1000 {
			t.Errorf("%d entries for a hundred live limiters", kept)
		}
		for i := range store.(*memoryStore).shards {
			if s := &store.(*memoryStore).shards[i]; s.most > 100 {
				t.Errorf("shard %d has room for %d entries, and %d", i, s.most, len(s.entries))
			}
		}
		for i := range 1000 { // neither a peek nor a refusal makes an entry
			if _, err := l.For("peek", fmt.Sprint(i)).Peek(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if kept := store.(*memoryStore).kept(); kept > 1000 {
			t.Errorf("%d entries after peeking", kept)
		}
	})
}

func TestMemoryForgetsWhatWasASharedLimiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		bucket := algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 10}
		m := Memory()
		kept := m.(*memoryStore)
		set := func(key string) *Shared {
			s, err := NewShared(m, key)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.SetRate(ctx, bucket); err != nil {
				t.Fatal(err)
			}
			for _, l := range []*Limiter{&s.Limiter, s.For("a"), s.For("b", "c")} {
				if _, err := l.Allow(ctx); err != nil {
					t.Fatal(err)
				}
			}
			return s
		}
		doomed := set("key")
		set("key:rate")
		if err := doomed.Delete(ctx); err != nil {
			t.Fatal(err)
		}
		if len(kept.shared) != 1 || kept.kept() != 3 {
			t.Errorf("%d limiters with %d states are left; want the other one with 3", len(kept.shared), kept.kept())
		}
		for i := range 10_000 {
			if err := set(fmt.Sprint(i)).Expire(ctx, time.Second); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(kept.shared); n > 1000 {
			t.Errorf("the parameters of %d limiters are kept for a hundred that have not expired", n)
		}
	})
}

// Not for one who finds the limiter as new each time, nor for one whose entry was forgotten meanwhile.
func TestAllowInMemoryAllocatesNothing(t *testing.T) {
	ctx := context.Background()
	m := Memory()
	root, err := New(m, "users", algos.TokenBucket{Rate: 1_000_000, Per: time.Second, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	l, n := root.For("one"), 0
	asNew := func() {
		if _, err := l.Allow(ctx); err != nil {
			t.Error(err)
		}
		for began := time.Now(); time.Since(began) < 3*time.Microsecond; {
			n++
		}
	}
	if got := testing.AllocsPerRun(500, asNew); got != 0 {
		t.Errorf("as new each time: %v allocations", got)
	}
	forget := func() {
		s := m.(*memoryStore).shard(l.key)
		s.mu.Lock()
		e := l.seat.Load()
		e.mu.Lock()
		if s.entries[l.key] == e {
			s.leave(l.key, e)
		}
		e.mu.Unlock()
		s.mu.Unlock()
		asNew()
	}
	if got := testing.AllocsPerRun(500, forget); got != 0 {
		t.Errorf("forgotten each time: %v allocations", got)
	}
	if got := testing.AllocsPerRun(500, func() { _, _ = l.Reserve(ctx) }); got > 1 {
		t.Errorf("Reserve: %v allocations", got)
	}
}

// The shortest way skips no check.
func TestAllowInMemoryChecksWhatItIsAsked(t *testing.T) {
	l, err := New(Memory(), "key", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 3})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if _, err := l.Allow(ctx); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]error{-1: ErrInvalid, 0: ErrInvalid, 4: ErrNeverAllowed} {
		if d, err := l.AllowN(ctx, n); !errors.Is(err, want) {
			t.Errorf("%d permits: %+v, %v", n, d, err)
		}
	}
	cancel()
	if d, err := l.Allow(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := l.Peek(context.Background()); err != nil || d.Remaining != 2 {
		t.Errorf("%+v, %v", d, err)
	}
}

// kept is how many entries there are.
func (m *memoryStore) kept() (n int) {
	for i := range m.shards {
		n += len(m.shards[i].entries)
	}
	return n
}
