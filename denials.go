package headgate

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate/internal/driver"
)

const (
	// mostDenials bounds the keys whose denials are remembered; others are asked about again.
	mostDenials = 1 << 16
	// mostCosts bounds the costs of a key that are.
	mostCosts = 4
)

// RememberDenials has the process itself answer a request of which it knows that it comes too early: one for at least as
// many permits as Redis refused, before the instant that the refusal quoted. It is for clients that ask again and again. A
// Peek always asks Redis.
//
// What is given back or reset through this Store is taken into account. What others give back or reset is not, nor
// parameters that they raise, until the instant quoted. Of such a decision Remaining is 0, and ResetAfter and RetryAfter may
// be too low: by as long as the refusal took, and where others have come or more permits are asked for than were refused.
// At most 65,536 keys are remembered. An algorithm that counts refusals (SlidingLog with CountDenied) is always asked, and
// so is a limiter made by NewShared.
func RememberDenials() RedisOption {
	return func(s *redisStore) { s.denials = &denials{base: time.Now(), keys: make(map[string]*denied)} }
}

// denials are what Redis has refused to this process, by the key of the state.
type denials struct {
	base    time.Time     // instants are µs since then
	changes atomic.Uint64 // that this process has made, of any key: see forget

	latest atomic.Pointer[denied] // the key that was refused last
	mu     sync.RWMutex
	keys   map[string]*denied
}

// denied is what one key has been refused. It does not change.
type denied struct {
	key   string
	plan  *plan
	costs []denial // the lower ones first, and each is granted before the next
}

// A denial says that so many permits are to be had at an instant, and not earlier.
type denial struct {
	cost, slot int64
	reset      int64 // when the limiter is as new, if nobody else comes
}

// remembered is the Store of a decision that was remembered.
type remembered struct{ *redisStore }

func (remembered) source() Source { return SourceRemembered }

// find is what the key has been refused, by this plan.
func (d *denials) find(at line) []denial {
	found := d.latest.Load()
	if found == nil || found.key != at.key {
		d.mu.RLock()
		found = d.keys[at.key]
		d.mu.RUnlock()
	}
	if found == nil || found.plan != at.plan {
		return nil
	}
	return found.costs
}

// byOthers tells whether the key was refused by another plan.
func (d *denials) byOthers(at line) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	known := d.keys[at.key]
	return known != nil && known.plan != at.plan
}

// concern tells whether a refusal of the request may be remembered.
func (d *denials) concern(at line, request driver.Request) bool {
	return d != nil && !at.plan.counts && at.plan.shared == nil && request.Cost > 0 && request.Bound != driver.Ask
}

// A moment is when something was asked: an instant, and how often this process had changed something before.
type moment struct {
	now     int64
	changes uint64
}

// refuse answers a request that comes too early, as far as is known.
func (d *denials) refuse(at line, request driver.Request, reply *driver.Reply) (asked moment, refused bool) {
	if !d.concern(at, request) {
		return asked, false
	}
	asked = moment{time.Since(d.base).Microseconds(), d.changes.Load()}
	costs := d.find(at)
	for i := range costs {
		known := &costs[i]
		if known.cost <= request.Cost && asked.now+request.Bound < known.slot {
			*reply = driver.Reply{Wait: asked.now + request.Bound - known.slot, Reset: max(known.reset-asked.now, 0)}
			refused = true
		}
	}
	return asked, refused
}

// learn notes a refusal of what was asked, unless this process has changed something since. Where other parameters have
// decided, what was refused by the ones before is forgotten.
func (d *denials) learn(at line, request driver.Request, reply driver.Reply, asked moment) {
	if d == nil {
		return
	}
	if d.byOthers(at) {
		d.forget(at.key)
	}
	if !d.concern(at, request) || reply.Wait >= 0 {
		return
	}
	fresh := denial{request.Cost, asked.now + request.Bound - reply.Wait, asked.now + reply.Reset}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.changes.Load() != asked.changes {
		return
	}
	was := d.keys[at.key]
	all := &denied{key: at.key, plan: at.plan}
	if was != nil && was.plan == at.plan {
		for _, known := range was.costs {
			if known.cost < fresh.cost && known.slot >= asked.now || known.cost > fresh.cost && known.slot > fresh.slot {
				all.costs = append(all.costs, known)
			}
		}
	}
	i := 0
	for i < len(all.costs) && all.costs[i].cost < fresh.cost {
		i++
	}
	all.costs = append(all.costs[:i:i], append([]denial{fresh}, all.costs[i:]...)...)
	all.costs = all.costs[:min(len(all.costs), mostCosts)]
	if was == nil && !d.room(asked.now) {
		return
	}
	d.keys[at.key] = all
	d.latest.Store(all)
}

// room looks at a few keys and forgets those whose time has come, so that the map stays a small multiple of the others. It
// tells whether there is room for one more. Under mu.
func (d *denials) room(now int64) bool {
	looked := 0
	for key, known := range d.keys {
		if known.costs[len(known.costs)-1].slot <= now {
			delete(d.keys, key)
		}
		if looked++; looked == 4 {
			break
		}
	}
	return len(d.keys) < mostDenials
}

// forget is called when this process has changed the state at a key: what was refused before may be granted now.
func (d *denials) forget(key string) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.changes.Add(1)
	delete(d.keys, key)
	d.latest.Store(nil)
}
