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

// Four processes under load while the limit is raised, cut, updated and replaced: a witness outside counts what each was
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
