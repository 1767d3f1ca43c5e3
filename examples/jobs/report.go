package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// report says how well the limit was used and kept. The error tells of tasks that did not run, or not once.
func (b *book) report(w io.Writer) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	interval := time.Second / time.Duration(b.rate)
	starts := make(map[string][]time.Time)
	slots := make(map[string]time.Time) // the next one of each tenant
	var late, pings []time.Duration
	var bounces []int
	lost, twice := 0, 0
	for _, id := range b.order {
		e := b.tasks[id]
		switch {
		case len(e.starts) > 1:
			twice++
		case e.tenant != ping && len(e.starts) == 0:
			lost++
		}
		if len(e.starts) == 0 {
			continue
		}
		if e.tenant == ping {
			pings = append(pings, e.starts[0].Sub(e.enqueued))
			continue
		}
		starts[e.tenant] = append(starts[e.tenant], e.starts[0])
		bounces = append(bounces, e.bounces)
		// The bucket that serves them in the order of their enqueuing, and never wastes a permit.
		slot := latest(slots[e.tenant], e.enqueued.Add(-time.Duration(b.burst-1)*interval))
		slots[e.tenant] = slot.Add(interval)
		late = append(late, e.starts[0].Sub(latest(slot, e.enqueued)))
	}

	used, beyond := 1.0, 0.0
	for _, at := range starts {
		slices.SortFunc(at, time.Time.Compare)
		if n := len(at); n > b.burst {
			used = min(used, float64(n-b.burst)/float64(b.rate)/at[n-1].Sub(at[0]).Seconds())
		}
		beyond = max(beyond, b.beyond(at))
	}
	total := 0
	for _, n := range bounces {
		total += n
	}
	if len(bounces) == 0 {
		return errors.New("no task ran")
	}
	_, err := fmt.Fprintf(w, `
share of the limit used, at least   %.3f
runs beyond the limit, at most      %.1f
bounces a task, mean / p99          %.2f / %d
late for its slot, p50 / p99        %v / %v
unlimited tasks start within, p99   %v
limiter calls a task                %.2f
lost, or run twice                  %d, %d
`, used, beyond, float64(total)/float64(len(bounces)), quantile(bounces, 0.99),
		quantile(late, 0.5).Round(time.Millisecond), quantile(late, 0.99).Round(time.Millisecond),
		quantile(pings, 0.99).Round(time.Millisecond), float64(b.claims+total)/float64(len(bounces)), lost, twice)
	if lost+twice > 0 {
		err = errors.Join(err, fmt.Errorf("%d tasks did not run, %d more than once", lost, twice))
	}
	return err
}

// beyond replays starts through a bucket and says by how many it ran over at worst. A start may be 5 ms late.
func (b *book) beyond(starts []time.Time) float64 {
	level, worst := 0.0, 0.0
	for i, at := range starts {
		if i > 0 {
			level = max(0, level-at.Sub(starts[i-1]).Seconds()*float64(b.rate))
		}
		level++
		worst = max(worst, level)
	}
	return max(0, worst-float64(b.burst)-0.005*float64(b.rate))
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func quantile[T int | time.Duration](values []T, q float64) T {
	if len(values) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(values))[int(q*float64(len(values)-1))]
}
