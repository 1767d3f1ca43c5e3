package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// An outcome is what an algorithm made of the traffic.
type outcome struct {
	name    string
	slots   []time.Duration // when each admitted request went, in order, from the beginning of the traffic
	refused int
	waited  time.Duration // by all admitted requests together
}

// begin is when the traffic begins: any instant would do that is a whole number of windows into a day.
var begin = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// replayAll is what each of the contenders makes of the traffic.
func replayAll(arrivals []time.Duration) ([]outcome, error) {
	var outcomes []outcome
	for _, algorithm := range contenders {
		o, err := replay(algorithm, arrivals)
		if err != nil {
			return nil, err
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, nil
}

// replay asks a limiter that nobody has used yet for a permit at each arrival, as Limiter.Reserve does.
func replay(algorithm algos.Algorithm, arrivals []time.Duration) (outcome, error) {
	rule, err := algorithm.Rule()
	if err != nil {
		return outcome{}, err
	}
	state := rule.NewState()
	request := []driver.Request{{Cost: 1, Bound: min(patience.Microseconds(), rule.Horizon(1))}}
	reply := make([]driver.Reply, 1)
	o := outcome{name: strings.TrimPrefix(fmt.Sprintf("%T", algorithm), "algos.")}
	for _, at := range arrivals {
		driver.Run(state, rule, begin.Add(at).UnixMicro(), request, reply)
		if reply[0].Wait < 0 {
			o.refused++
			continue
		}
		wait := time.Duration(reply[0].Wait) * time.Microsecond
		o.slots = append(o.slots, at+wait)
		o.waited += wait
	}
	return o, nil
}

// meanWait is how long an admitted request waited.
func (o outcome) meanWait() time.Duration {
	return o.waited / time.Duration(max(len(o.slots), 1))
}

// worstWindow is the most requests that went in any stretch of time as long as the window, one of its two ends included.
func (o outcome) worstWindow() int {
	worst := 0
	for _, slot := range o.slots {
		worst = max(worst, o.lately(slot))
	}
	return worst
}

// lately is how many requests went in the window that ends at t, with those at t and without those at its beginning.
func (o outcome) lately(t time.Duration) int { return o.until(t) - o.until(t-window) }

// until is how many requests went at t or before.
func (o outcome) until(t time.Duration) int {
	n, _ := slices.BinarySearch(o.slots, t+1)
	return n
}
