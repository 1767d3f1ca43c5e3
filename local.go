package headgate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headgate-go/headgate/internal/driver"
)

// maxLocalKeys is how many keys of a limiter are counted in process while Redis is out.
const maxLocalKeys = 50_000

// errFull is of keys that are not counted because so many others are.
var errFull = errors.New("so many other keys are being limited in process that this one is not")

// A localStore is a Memory store for a bounded number of keys. What is counted makes no room: a key that is unknown when
// all places are taken is not decided.
type localStore struct {
	Store
	most int

	mu    sync.Mutex
	until map[string]time.Time // when the limiter of a key is as new
	swept time.Time
}

func newLocalStore() *localStore {
	return &localStore{Store: Memory(), most: maxLocalKeys, until: make(map[string]time.Time)}
}

func (s *localStore) source() Source { return SourceLocal }

func (s *localStore) decide(ctx context.Context, p *plan, key string, request driver.Request, life uint64) (grant, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	until, known := s.until[key]
	if !known && len(s.until) >= s.most {
		s.sweep(now)
		if len(s.until) >= s.most {
			return grant{}, errFull
		}
	}
	g, err := s.Store.decide(ctx, p, key, request, life)
	if err != nil {
		return g, err
	}
	if expires := now.Add(micros(g.Reset)); expires.After(until) && g.Reset > 0 {
		s.until[key] = expires
	}
	g.store = s
	return g, nil
}

// sweep forgets the keys of limiters that are as new. It looks at all, so it does not do so more than once a second. Under
// mu.
func (s *localStore) sweep(now time.Time) {
	if now.Sub(s.swept) < time.Second {
		return
	}
	s.swept = now
	for key, until := range s.until {
		if until.Before(now) {
			delete(s.until, key)
		}
	}
}

func (s *localStore) reset(ctx context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.until, key)
	return s.Store.reset(ctx, key)
}
