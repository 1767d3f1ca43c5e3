package headgate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/headgate-go/headgate/algos"
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
	if !known && len(s.until) >= s.most && request.Cost >= 0 { // what comes back takes no place
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

// errTooMany is of requests that wait for Redis, whoever decides meanwhile.
var errTooMany = errors.New("this process's share of the limit never grants so many permits at once")

func (f *fallback) locally(ctx context.Context, p *plan, key string, request driver.Request) (grant, error) {
	share, err := f.share(p)
	if err != nil {
		return grant{}, err
	}
	if request.Cost > int64(share.rule.Max()) {
		return grant{}, errTooMany
	}
	request.Bound = min(request.Bound, share.rule.Horizon(request.Cost))
	return f.local.decide(ctx, share, key, request, 0)
}

// share is the plan by the process's share of what p grants.
func (f *fallback) share(p *plan) (*plan, error) {
	if last := f.scaled.Load(); last != nil && last.from == p {
		return last.plan, last.err
	}
	s := &scaled{from: p}
	var algorithm algos.Algorithm
	if algorithm, s.err = algos.Share(p.algorithm, f.part, f.of); s.err == nil {
		if s.plan, s.err = newPlan(algorithm); s.err == nil {
			s.plan.observer = p.observer
		}
	}
	f.scaled.Store(s)
	return s.plan, s.err
}

// scaled is what the last plan became by the share.
type scaled struct {
	from *plan
	plan *plan
	err  error
}

// maxDenominator is of a share.
const maxDenominator = 10_000

// fraction is the nearest one to a share, by its continued fraction.
func fraction(share float64) (part, of int) {
	before, part, of, last := 0, 1, 0, 1
	for {
		whole := int(share)
		next := whole*of + last
		if next > maxDenominator {
			return part, of
		}
		before, part, of, last = part, whole*part+before, next, of
		rest := share - float64(whole)
		if rest < 1e-9 {
			return part, of
		}
		share = 1 / rest
	}
}
