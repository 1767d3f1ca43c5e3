package headgate

import (
	"context"
	"hash/maphash"
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// Memory makes a Store in the process's own memory: for limits that one process has to itself, and for tests. It
// answers as Redis does, microsecond for microsecond.
//
// It reads only time.Now, starts no goroutine and waits for nobody, so it works in the virtual time of
// testing/synctest; make it inside the bubble. Limiters that are as new are forgotten as new keys come in, so memory is
// bounded by a small multiple of those that are not.
func Memory() Store {
	base := time.Now()
	m := &memoryStore{base: base, epoch: base.UnixMicro(), seed: maphash.MakeSeed(), shared: make(map[string]terms)}
	for i := range m.shards {
		m.shards[i].entries = make(map[string]*entry)
	}
	return m
}

type memoryStore struct {
	base   time.Time     // the clock is this and what has passed since, which no correction of the wall clock changes
	epoch  int64         // base, µs since 1970
	lives  atomic.Uint64 // states begun so far
	seed   maphash.Seed
	shards [shards]shard

	termsMu sync.RWMutex // held for reading by decisions of shared limiters, for writing by changes to their terms
	shared  map[string]terms
}

// shards is into how many the keys are divided, so that new keys seldom wait for each other.
const shards = 64

// A shard has the entries of some of the keys. Its lock comes before those of its entries.
type shard struct {
	mu      sync.Mutex
	entries map[string]*entry
	most    int   // entries since the map was made
	now     int64 // the latest instant of which it knows: nobody decides by an earlier one on a new entry
	_       [32]byte
}

// An entry is the state of one limiter.
type entry struct {
	// end is where the limiter's line ends, by which anybody may decide without the lock: see allow. It is closed while there
	// is more to know, and while somebody has the lock.
	end  atomic.Int64
	tail *algos.Tail  // counts the end; set before that is first open, and never changed
	now  atomic.Int64 // the latest instant at which anybody decided, µs since 1970

	mu      sync.Mutex
	gone    bool // from the shard: whoever has kept the entry looks again
	state   algos.State
	plan    *plan // by which the state was saved
	life    uint64
	expires int64 // when it is as new, µs since 1970
}

// closed is the end of an entry by which only who has the lock decides.
const closed = math.MinInt64

// A seat keeps a limiter's entry at hand.
type seat = atomic.Pointer[entry]

func (m *memoryStore) source() Source { return SourceMemory }

func (m *memoryStore) close(context.Context) error { return nil }

func (m *memoryStore) now() int64 {
	return m.epoch + time.Since(m.base).Microseconds()
}

func (m *memoryStore) shard(key string) *shard {
	return &m.shards[maphash.String(m.seed, key)%shards]
}

func (m *memoryStore) decide(_ context.Context, p *plan, key string, request driver.Request, life uint64) (g grant, err error) {
	if p.shared != nil {
		m.termsMu.RLock()
		defer m.termsMu.RUnlock()
		if text := m.termsAt(p.shared.key, m.now()).text; text != p.terms {
			return grant{}, &movedError{text}
		}
	}
	g.plan, g.key, g.life = p, key, life
	m.decideAt(nil, request, &g)
	return g, nil
}

// decideAt answers into g, which has the plan, the key and, for what is given back, the life. It decides by the entry that
// sits at, which may be nil, or else finds it.
//
// The clock is read first, which keeps the locks short. Whoever then comes later than one who read it after him decides by
// the other's instant, which lies within his own call too: an entry's instants never go back.
func (m *memoryStore) decideAt(at *seat, request driver.Request, g *grant) {
	now := m.now()
	g.store = m
	var last *entry
	if at != nil {
		if last = at.Load(); last != nil {
			if here, _ := last.decide(m, now, request, g, true); here {
				return
			}
		}
	}
	s := m.shard(g.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = max(s.now, now)
	e, found := s.entries[g.key]
	switch {
	case found:
	case last != nil && last.tail == g.plan.tail: // it was forgotten, and will do as a new one
		e = last
	default:
		e = &entry{gone: true, expires: math.MinInt64}
		e.end.Store(closed)
	}
	_, changed := e.decide(m, s.now, request, g, false)
	if changed && !found {
		s.sweep()
		s.entries[g.key] = e
		s.most = max(s.most, len(s.entries))
	}
	if at != nil && (changed || found) {
		at.Store(e)
	}
}

// decide answers into g, unless the entry must be in its shard and is not here. It reports whether the state changed; whoever
// has changed one that was gone has the shard's lock, and puts it back.
func (e *entry) decide(m *memoryStore, now int64, request driver.Request, g *grant, must bool) (here, changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if must && e.gone {
		return false, false
	}
	e.close()
	defer e.open()
	now = max(now, e.now.Load())
	fresh := e.expires < now // as Redis forgets it, by whatever parameters it was counted
	if request.Cost < 0 && (fresh || g.life != e.life) {
		*g = grant{} // what the receipt was for is gone
		return true, false
	}
	if fresh {
		if e.plan != g.plan { // by its own parameters, a state that is as new is a new one
			e.state, e.plan = g.plan.rule.NewState(), g.plan
		}
		e.life = m.lives.Add(1)
	}
	g.life = e.life
	changed = driver.Answer(e.state, g.plan.rule, now, request, &g.Reply)
	e.now.Store(now)
	if changed {
		e.plan, e.gone = g.plan, false
		if e.tail == nil {
			e.tail = g.plan.tail
		}
	}
	// A refusal changes nothing, but by a caller's longer parameters what is owed counts for longer.
	if until := now + g.Reset; changed || !fresh && until > e.expires {
		e.expires = until
	}
	return true, changed
}

// close has others wait for the lock, and notes what they have taken without it. Under mu.
func (e *entry) close() {
	if end := e.end.Swap(closed); end != closed {
		e.state.(algos.Ender).SetEnd(e.tail, end)
		e.expires = max(e.expires, e.tail.Until(end))
	}
}

// open lets others decide by where the line ends, if that is all that there is to know. Under mu.
func (e *entry) open() {
	state, ok := e.state.(algos.Ender)
	if !ok || e.gone || e.tail == nil {
		return
	}
	if end, ok := state.End(e.tail); ok {
		e.end.Store(end)
	}
}

// allow is decide for what is asked most, n permits now, and takes no lock. Whether they fit depends on where the line ends
// and on nothing else; if it still ends there when the end is moved on, nobody has come in between, or it is as if nobody
// had. Where there is more to know it does nothing, and reports false.
func (e *entry) allow(m *memoryStore, p *plan, n int, d *Decision) (done bool) {
	if p.tail == nil || n < 1 || n > p.most {
		return false
	}
	now := m.now()
	for {
		end := e.end.Load()
		latest := e.now.Load() // after the end: who has moved that told his instant first
		if end == closed || e.tail != p.tail && *e.tail != *p.tail {
			return false
		}
		if now <= latest {
			now = latest
		} else if !e.now.CompareAndSwap(latest, now) {
			continue
		}
		next, wait, ok := p.tail.Take(end, now, int64(n))
		if !ok {
			return false
		}
		if wait > 0 {
			next = end
		} else if !e.end.CompareAndSwap(end, next) {
			continue
		}
		status := p.tail.Status(next, now)
		d.Allowed = wait == 0
		d.Limit = p.limit
		d.Remaining = int(status.Remaining)
		d.RetryAfter = micros(wait)
		d.ResetAfter = micros(status.ResetAfter)
		d.Source = SourceMemory
		return true
	}
}

// sweep looks at a few entries, wherever the map begins this time, and forgets those that have expired. Called for
// each new key, it keeps the map at a small multiple of the live ones. Under mu.
func (s *shard) sweep() {
	looked := 0
	for key, e := range s.entries {
		e.mu.Lock()
		e.close()
		if e.expires < s.now {
			s.leave(key, e)
		}
		e.open()
		e.mu.Unlock()
		if looked++; looked == 4 {
			break
		}
	}
	if s.most >= 64 && len(s.entries) < s.most/4 { // a map never shrinks, and takes longer to look through when it is empty
		kept := make(map[string]*entry, len(s.entries))
		maps.Copy(kept, s.entries)
		s.entries, s.most = kept, len(kept)
	}
}

// leave takes an entry out. Under the locks of both.
func (s *shard) leave(key string, e *entry) {
	e.gone = true
	s.now = max(s.now, e.now.Load())
	delete(s.entries, key)
}

// forget makes a limiter as new before its time.
func (s *shard) forget(key string, e *entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.close()
	s.leave(key, e)
	e.plan, e.expires = nil, math.MinInt64
}

// forgetAll forgets the entries whose keys begin so.
func (s *shard) forgetAll(prefix string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, e := range s.entries {
		if strings.HasPrefix(key, prefix) {
			s.forget(key, e)
		}
	}
}

func (m *memoryStore) reset(_ context.Context, key string) error {
	s := m.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.entries[key]; e != nil {
		s.forget(key, e)
	}
	return nil
}
