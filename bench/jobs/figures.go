package main

import (
	"fmt"
	"slices"
	"time"
)

// figures are what an experiment came to.
type figures struct {
	used          float64 // share of the limit, of the worst key
	excess        float64 // runs beyond the limit, of the worst key
	bounces       spread
	late          spread // s
	probe         spread // s
	calls         float64
	redis         float64
	enqueued, ran int
	lost, twice   int
	archived      int
	cold          float64 // s; negative: there was none
}

// spread is a distribution.
type spread struct{ mean, p50, p99, max float64 }

func (s scenario) figures(j *journal, archived, redisCalls int) figures {
	j.mu.Lock()
	defer j.mu.Unlock()
	f := figures{archived: archived, used: 1, cold: -1}
	starts := make(map[string][]int64)
	ideal := make(map[string]int64) // the next slot of a key, µs
	var late, bounces, probes []float64
	perTask := time.Second.Microseconds() / int64(s.rate)
	for _, id := range j.order {
		t := j.tasks[id]
		if t.key == probe {
			if len(t.starts) > 0 {
				probes = append(probes, seconds(t.starts[0]-t.enqueued))
			}
			continue
		}
		f.enqueued++
		if len(t.starts) > 1 {
			f.twice++
		}
		if len(t.starts) == 0 {
			if !t.deleted {
				f.lost++
			}
			continue
		}
		f.ran++
		bounces = append(bounces, float64(t.bounces))
		if t.key == "cold" {
			f.cold = seconds(t.starts[0] - t.enqueued)
			continue
		}
		if t.stuck {
			continue
		}
		starts[t.key] = append(starts[t.key], t.starts[0])
		// The fluid queue: a bucket that is full at the beginning and serves tasks in the order of their enqueuing.
		if ideal[t.key] == 0 {
			ideal[t.key] = t.enqueued - int64(s.burst-1)*perTask
		}
		slot := max(ideal[t.key], t.enqueued-int64(s.burst-1)*perTask)
		ideal[t.key] = slot + perTask
		late = append(late, seconds(t.starts[0]-max(slot, t.enqueued)))
	}
	for _, at := range starts {
		slices.Sort(at)
		if n := len(at); n > s.burst {
			// Those of the burst take no time.
			best := float64(n-s.burst) / float64(s.rate)
			f.used = min(f.used, best/seconds(at[n-1]-at[0]))
		}
		f.excess = max(f.excess, s.beyond(at))
	}
	f.bounces, f.late, f.probe = spreadOf(bounces), spreadOf(late), spreadOf(probes)
	if f.ran > 0 {
		f.calls = float64(j.claims)/float64(f.ran) + f.bounces.mean
		if s.recipe {
			f.calls = float64(j.claims) / float64(f.ran)
		}
		f.redis = float64(redisCalls) / float64(f.ran)
	}
	return f
}

// beyond replays sorted starts through a bucket, and says by how many it ran over at worst. A start may be 5 ms late.
func (s scenario) beyond(starts []int64) float64 {
	rate := float64(s.rate) / 1e6
	level, worst := 0.0, 0.0
	for i, at := range starts {
		if i > 0 {
			level = max(0, level-float64(at-starts[i-1])*rate)
		}
		level++
		worst = max(worst, level)
	}
	return max(0, worst-float64(s.burst)-5000*rate)
}

func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	at := func(q float64) float64 { return values[int(q*float64(len(values)-1))] }
	return spread{mean: sum / float64(len(values)), p50: at(0.5), p99: at(0.99), max: values[len(values)-1]}
}

func seconds(us int64) float64 { return float64(us) / 1e6 }

func printHeader() {
	fmt.Println("| scenario | ran | limit used | beyond | bounces mean / p99 | late p50 / p99 s | unlimited p50 / p99 s | calls a task | EVALSHA a task | lost / twice / archived |")
	fmt.Println("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
}

func printFigures(s scenario, f figures) {
	name := s.name
	if f.cold >= 0 {
		name += fmt.Sprintf(" (started after %.2f s)", f.cold)
	}
	fmt.Printf("| %s | %d of %d | %.3f | %.1f | %.2f / %.0f | %.2f / %.2f | %.3f / %.3f | %.2f | %.1f | %d / %d / %d |\n",
		name, f.ran, f.enqueued, f.used, f.excess, f.bounces.mean, f.bounces.p99, f.late.p50, f.late.p99,
		f.probe.p50, f.probe.p99, f.calls, f.redis, f.lost, f.twice, f.archived)
}
