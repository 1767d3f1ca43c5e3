package worker

import (
	"sync"
	"time"
)

// paces are the times between slots that this process has seen of late: a first guess for a line that begins. The
// promoters measure better, as soon as tickets have claimed.
type paces struct {
	mu   sync.Mutex
	keys map[string]pace
}

type pace struct {
	slot    time.Time     // of the last claim
	spacing time.Duration // the least between two claims in a row
}

// rememberedPaces is how many keys are remembered, and for how long a spacing means something.
const (
	rememberedPaces = 1000
	paceFor         = 10 * time.Second
)

// saw notes a slot that lay ahead when it was claimed: the limiter was in use, and the slots before it were taken.
func (p *paces) saw(key string, slot time.Time, cost int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.keys[key]
	now := pace{slot: slot}
	if apart := slot.Sub(last.slot).Abs(); apart < paceFor {
		now.spacing = apart / time.Duration(cost)
		if last.spacing > 0 {
			now.spacing = min(now.spacing, last.spacing)
		}
	}
	if p.keys == nil || len(p.keys) >= rememberedPaces {
		p.keys = make(map[string]pace)
	}
	p.keys[key] = now
}

// of is what was seen of a key; zero if nothing was of late.
func (p *paces) of(key string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	seen := p.keys[key]
	if time.Since(seen.slot) > paceFor {
		return 0
	}
	return seen.spacing
}
