package headgate

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// A Shared is a Limiter whose algorithm and parameters are kept in the store, for all who use its key, and can be changed
// there while it is in use: each decision is by what is stored at that instant. It is Redisson's RRateLimiter, for every
// algorithm.
//
// A process keeps what it last saw, sends it along, and the script that decides compares. So a decision is still one call;
// the first of a process, and those under way when a change comes, are two. A request for more than the limiter ever
// grants is checked against what is stored, by a call. Until somebody has set the parameters, or when Redis has lost
// them, every verb returns ErrNotInitialized: call TrySetRate then, too.
//
// Changes are no operations that a Hook sees, and the default name of the limiter is "shared". A zone that is stored must
// be known on every machine: import time/tzdata where there is none.
//
// For gives each of its keys the same parameters and a state of its own, all in one hash slot.
type Shared struct {
	Limiter
}

// NewShared makes a limiter whose parameters are in the store. It makes no call. The errors are those of New.
func NewShared(store Store, key string, opts ...Option) (*Shared, error) {
	l, err := newLimiter(store, key)
	if err != nil {
		return nil, err
	}
	l.name = "shared"
	if err := l.apply(opts); err != nil {
		return nil, err
	}
	l.shared = &shared{base: l.path, key: storedKey(l.prefix, l.path, "rate")}
	return &Shared{*l}, nil
}

// shared is what the limiters of one NewShared know of their terms.
type shared struct {
	base string // the limiter's key, escaped
	key  string // where the terms are stored
	plan atomic.Pointer[plan]
}

// TrySetRate sets the algorithm and its parameters if none are set, and reports whether it did: the first one wins.
//
// Errors, of this and of the methods below: ErrInvalid for parameters that no limiter can work with or an algorithm that is
// not of package algos, the context's error if it has ended before the call, and *StoreError.
func (s *Shared) TrySetRate(ctx context.Context, algorithm algos.Algorithm) (set bool, err error) {
	return s.change(ctx, changeTry, algorithm)
}

// SetRate replaces the algorithm and its parameters, and the limiter begins anew, those of For too. It reports whether it
// did: if these are already set it changes nothing, so calling it at every start of a process lifts no limit. Slots that
// were given out before keep their time, and come on top. An Expire stays.
func (s *Shared) SetRate(ctx context.Context, algorithm algos.Algorithm) (changed bool, err error) {
	return s.change(ctx, changeSet, algorithm)
}

// UpdateRate replaces the parameters, and what was used stays used, in permits: see the algorithm for what a change of
// its parameters does. (What has expired by the old parameters before the next decision is gone.) Another algorithm
// begins anew. It reports whether it did: if these are already set it changes
// nothing. If nothing is set the error is ErrNotInitialized.
func (s *Shared) UpdateRate(ctx context.Context, algorithm algos.Algorithm) (changed bool, err error) {
	return s.change(ctx, changeUpdate, algorithm)
}

func (s *Shared) change(ctx context.Context, kind changeKind, algorithm algos.Algorithm) (changed bool, err error) {
	text, err := algos.Terms(algorithm)
	if err != nil {
		return false, err
	}
	text, changed, err = s.terms(ctx, change{kind: kind, text: text, mark: rand.Text()[:8]})
	if err != nil {
		return false, err
	}
	_, err = s.learn(text)
	return changed, err
}

// Rate reads the algorithm and its parameters. If nothing is set the error is ErrNotInitialized.
func (s *Shared) Rate(ctx context.Context) (algos.Algorithm, error) {
	p, err := s.refresh(ctx)
	if err != nil {
		return nil, err
	}
	_, text, _ := strings.Cut(p.terms, " ")
	return algos.ParseTerms(text)
}

// Expire has the limiter forgotten after d, at least a millisecond: its parameters, and with them what is counted by
// them. Every verb then returns ErrNotInitialized. The state of a limiter expires by itself when it is as new, so only
// the parameters need this; a state that outlives them is never read again.
func (s *Shared) Expire(ctx context.Context, d time.Duration) error {
	if d < time.Millisecond {
		return invalidf("Expire: %v is less than a millisecond", d)
	}
	_, _, err := s.terms(ctx, change{kind: changeExpire, expire: d})
	return err
}

// ClearExpire undoes Expire.
func (s *Shared) ClearExpire(ctx context.Context) error {
	_, _, err := s.terms(ctx, change{kind: changePersist})
	return err
}

// Delete removes the parameters and this limiter's state. The states of For are never read again, and expire by
// themselves. It is no error if there is nothing.
func (s *Shared) Delete(ctx context.Context) error {
	text, _, err := s.terms(ctx, change{kind: changeDelete})
	if errors.Is(err, ErrNotInitialized) {
		return nil
	}
	if err != nil {
		return err
	}
	if p, err := s.newSharedPlan(text); err == nil {
		return s.store.reset(ctx, s.stateKey(p))
	}
	return nil // by another version: its state expires by itself
}

// terms reads or changes what is stored.
func (l *Limiter) terms(ctx context.Context, c change) (text string, changed bool, err error) {
	if err := l.usable(ctx); err != nil {
		return "", false, err
	}
	if l.shared == nil {
		return "", false, invalidf("the limiter was not made by NewShared")
	}
	text, changed, err = l.store.terms(ctx, l.shared.key, c)
	if err == nil && text == "" {
		err = ErrNotInitialized
	}
	return text, changed, err
}

// refresh reads the terms, and is the plan by them.
func (l *Limiter) refresh(ctx context.Context) (*plan, error) {
	text, _, err := l.terms(ctx, change{kind: changeNothing})
	if err != nil {
		return nil, err
	}
	return l.learn(text)
}

// learn makes the plan by the terms that are stored.
func (l *Limiter) learn(text string) (*plan, error) {
	if text == "" {
		return nil, ErrNotInitialized
	}
	if p := l.shared.plan.Load(); p != nil && p.terms == text {
		return p, nil
	}
	p, err := l.newSharedPlan(text)
	if err == nil {
		l.shared.plan.Store(p)
	}
	return p, err
}

func (l *Limiter) newSharedPlan(text string) (*plan, error) {
	mark, terms, _ := strings.Cut(text, " ")
	algorithm, err := algos.ParseTerms(terms)
	if err != nil { // it is not the caller's argument that is bad
		return nil, &StoreError{Op: "terms", Err: errors.New(err.Error())}
	}
	p, err := newPlan(algorithm)
	if err != nil {
		return nil, err
	}
	p.observer = l.observer
	p.script = p.script.Guarded()
	p.sha1 = p.script.SHA1
	p.terms, p.termsKey, p.mark = text, l.shared.key, mark
	return p, nil
}

// stateKey is where the state by a plan is stored.
func (l *Limiter) stateKey(p *plan) string {
	return storedKey(l.prefix, l.shared.base, p.rule.Suffix()+":"+p.mark) + shorten(l.parts)
}

// decideShared decides by the terms that are stored, whatever this process believes them to be.
func (l *Limiter) decideShared(ctx context.Context, n int, bound int64) (grant, error) {
	p := l.shared.plan.Load()
	var err error
	for {
		if p == nil {
			if p, err = l.refresh(ctx); err != nil {
				return grant{}, err
			}
		}
		g, err := l.decideBy(ctx, p, l.stateKey(p), n, bound)
		switch moved, ok := errors.AsType[*movedError](err); {
		case ok:
			if p, err = l.learn(moved.text); err != nil {
				return grant{}, err
			}
		case errors.Is(err, ErrNeverAllowed): // unless the limit was raised meanwhile
			now, readErr := l.refresh(ctx)
			if readErr != nil {
				return grant{}, readErr
			}
			if now.terms == p.terms {
				return grant{}, err
			}
			p = now
		default:
			return g, err
		}
	}
}

// giveBackMoved gives back what was granted by other terms, if the state is still the same.
func (l *Limiter) giveBackMoved(ctx context.Context, g grant, request driver.Request, moved *movedError) (grant, error) {
	for {
		p, err := l.learn(moved.text)
		if errors.Is(err, ErrNotInitialized) {
			return grant{}, nil // nothing is left to give back to
		}
		if err != nil {
			return grant{}, err
		}
		if l.stateKey(p) != g.key {
			return grant{}, nil // the limiter has begun anew
		}
		back, err := l.store.decide(ctx, p, g.key, request, g.life)
		var ok bool
		if moved, ok = errors.AsType[*movedError](err); !ok {
			return back, err
		}
	}
}

// A movedError says that the terms are others than the caller believed, and nothing was done.
type movedError struct{ text string }

func (*movedError) Error() string { return "headgate: the terms have changed" }
