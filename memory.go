package headgate

import (
	"context"
	"sync"
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
	return &memoryStore{base: time.Now(), entries: make(map[string]*entry), shared: make(map[string]terms)}
}

type memoryStore struct {
	base time.Time // the clock is this and what has passed since, which no correction of the wall clock changes

	mu      sync.Mutex
	entries map[string]*entry
	lives   uint64           // states made so far
	shared  map[string]terms // of shared limiters, by their key
}

// An entry is the state of one limiter.
type entry struct {
	state   algos.State
	life    uint64
	expires int64 // when it is as new, µs since 1970
}

func (m *memoryStore) source() Source { return SourceMemory }

func (m *memoryStore) close(context.Context) error { return nil }

func (m *memoryStore) now() int64 {
	return m.base.UnixMicro() + time.Since(m.base).Microseconds()
}

func (m *memoryStore) decide(_ context.Context, p *plan, key string, request driver.Request, life uint64) (grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	if p.shared != nil {
		if text := m.termsAt(p.shared.key).text; text != p.terms {
			return grant{}, &movedError{text}
		}
	}
	e := m.entries[key]
	fresh := e == nil || e.expires < now // as Redis forgets it, by whatever parameters it was counted
	if fresh {
		m.lives++
		e = &entry{state: p.rule.NewState(), life: m.lives}
	}
	if request.Cost < 0 && life != e.life {
		return grant{}, nil // what the receipt was for is gone
	}
	requests := [1]driver.Request{request}
	var replies [1]driver.Reply
	changed := driver.Run(e.state, p.rule, now, requests[:], replies[:])
	// A refusal changes nothing, but by a caller's longer parameters what is owed counts for longer.
	if until := now + replies[0].Reset; changed || !fresh && until > e.expires {
		e.expires = until
		if fresh {
			m.sweep(now)
			m.entries[key] = e
		}
	}
	return grant{Reply: replies[0], store: m, life: e.life, plan: p, key: key}, nil
}

// sweep looks at a few entries, wherever the map begins this time, and forgets those that have expired. Called for
// each new key, it keeps the map at a small multiple of the live ones.
func (m *memoryStore) sweep(now int64) {
	looked := 0
	for key, e := range m.entries {
		if e.expires < now {
			delete(m.entries, key)
		}
		if looked++; looked == 4 {
			return
		}
	}
}

func (m *memoryStore) reset(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, key)
	return nil
}
