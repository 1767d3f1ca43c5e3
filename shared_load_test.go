package headgate_test

import (
	"context"
	"sync"
	"testing"
	"time"

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

// Four clients under load while the limit is raised and cut: a witness outside counts what each was
// granted, by the terms that it was granted by.
func TestProcessesUnderLoadFollowEveryChange(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	admin := newShared(t, headgate.Redis(server.Client()))
	const window = 100 * time.Millisecond
	log := func(limit int) algos.SlidingLog { return algos.SlidingLog{Limit: limit, Window: window} }
	changed(t, true)(admin.SetRate(ctx, log(20)))

	type use struct {
		limit         int
		before, after time.Time // of the call: the grant lies between
	}
	var mu sync.Mutex
	var uses []use
	stop := make(chan struct{})
	var processes sync.WaitGroup
	for range 4 {
		s := newShared(t, headgate.Redis(server.Client()))
		processes.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				before := time.Now()
				d, err := s.Allow(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if d.Allowed {
					mu.Lock()
					uses = append(uses, use{d.Limit, before, time.Now()})
					mu.Unlock()
				}
			}
		})
	}
	limit := 20
	var cut []time.Time // when a smaller limit was set for certain
	for _, next := range []int{60, 10, 40, 5, 30, 5} {
		time.Sleep(3 * window / 2)
		changed(t, true)(admin.UpdateRate(ctx, log(next)))
		if next < limit {
			cut = append(cut, time.Now())
		}
		limit = next
	}
	time.Sleep(window)
	close(stop)
	processes.Wait()

	// Grants that surely lie within one window: from the beginning of a call to the end of another.
	for i, first := range uses {
		n, most := 0, 0
		for _, u := range uses {
			if !u.before.Before(first.before) && u.after.Before(first.before.Add(window)) {
				n++
				most = max(most, u.limit)
			}
		}
		if n > most {
			t.Errorf("%d grants in the window of grant %d, by limits of at most %d", n, i, most)
		}
	}
	for _, at := range cut {
		for _, u := range uses {
			if u.before.After(at) && u.before.Before(at.Add(window)) && u.limit > 10 {
				t.Errorf("a grant by a limit of %d after it was cut", u.limit)
			}
		}
	}
	if len(uses) < 100 {
		t.Errorf("%d grants in all", len(uses))
	}
}
