package headgate

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate/algos"
)

// A Shared is a Limiter whose algorithm and parameters are kept in the store, for all who use its key, and can be changed
// there while it is in use: each decision is by what is stored at that instant. It is Redisson's RRateLimiter, for every
// algorithm.
//
// A process keeps what it last saw, sends it along, and the script that decides compares. So a decision is still one call;
// the first of a process is two, and so are its first after a change and those that are under way with it. A request for
// more than the limiter ever grants is checked against what is stored, by a call. Until somebody has set the parameters, or
// when Redis has lost them, every verb returns ErrNotInitialized: call TrySetRate then, too.
//
// The default name of the limiter is "shared". A zone that is stored must be known on every machine: import time/tzdata
// where there is none.
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
	if l.lease > 0 {
		return nil, invalidf("WithLease: permits cannot be held under parameters that may change")
	}
	l.shared = &shared{key: storedKey(l.prefix, l.path, "rate")}
	if err := l.fallBack(store); err != nil {
		return nil, err
	}
	return &Shared{*l}, nil
}

// TrySetRate sets the algorithm and its parameters if none are set, and reports whether it did: the first one wins.
//
// Errors, of this and of the methods below: ErrInvalid for parameters that no limiter can work with or an algorithm that is
// not of package algos, the context's error if it has ended before the call, and *StoreError.
func (s *Shared) TrySetRate(ctx context.Context, algorithm algos.Algorithm) (set bool, err error) {
	return s.setRate(ctx, VerbTrySetRate, algorithm)
}

// SetRate replaces the algorithm and its parameters, and the limiter begins anew, those of For too. It reports whether it
// did: if these are already set it changes nothing, so calling it at every start of a process lifts no limit. (These are
// those that are written the same: 60 a minute and 1 a second are two.) Slots that were given out before keep their time,
// and come on top. What was counted is never read again, and leaves Redis when it would have expired, or by a Delete. An
// Expire stays.
func (s *Shared) SetRate(ctx context.Context, algorithm algos.Algorithm) (changed bool, err error) {
	return s.setRate(ctx, VerbSetRate, algorithm)
}

// UpdateRate replaces the parameters, and what was used stays used, in permits. A higher limit, burst or rate admits whom
// the lower one would have admitted, and a lower one leaves no less than nothing. A WarmUp that owes pays by its old rate,
// though, and windows of another length or number of Cells count what was used in the new window of its last use, so that
// it may count for longer: see the algorithms. (What has expired by the old parameters before the next decision is gone.)
// Another algorithm begins anew, as with SetRate. It reports whether it changed something: not if these are already set.
// If nothing is set the error is ErrNotInitialized.
func (s *Shared) UpdateRate(ctx context.Context, algorithm algos.Algorithm) (changed bool, err error) {
	return s.setRate(ctx, VerbUpdateRate, algorithm)
}

func (s *Shared) setRate(ctx context.Context, verb Verb, algorithm algos.Algorithm) (changed bool, err error) {
	ctx, end := s.begin(ctx, verb, 0)
	if end != nil {
		defer func() { end(Outcome{Err: err}) }()
	}
	text, err := algos.Terms(algorithm)
	if err != nil {
		return false, err
	}
	text, changed, err = s.terms(ctx, change{verb: verb, text: text, mark: rand.Text()[:8]})
	if err != nil {
		return false, err
	}
	_, err = s.shared.learn(text, s.observer)
	return changed, err
}

// Rate reads the algorithm and its parameters, with the defaults filled in. If nothing is set the error is ErrNotInitialized.
func (s *Shared) Rate(ctx context.Context) (algorithm algos.Algorithm, err error) {
	ctx, end := s.begin(ctx, VerbRate, 0)
	if end != nil {
		defer func() { end(Outcome{Err: err}) }()
	}
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
	return s.alter(ctx, change{verb: VerbExpire, expire: d})
}

// ClearExpire undoes Expire.
func (s *Shared) ClearExpire(ctx context.Context) error {
	return s.alter(ctx, change{verb: VerbClearExpire})
}

func (s *Shared) alter(ctx context.Context, c change) (err error) {
	ctx, end := s.begin(ctx, c.verb, 0)
	if end != nil {
		defer func() { end(Outcome{Err: err}) }()
	}
	if c.verb == VerbExpire && c.expire < time.Millisecond {
		return invalidf("Expire: %v is less than a millisecond", c.expire)
	}
	_, _, err = s.terms(ctx, c)
	return err
}

// Delete removes everything: the parameters, with the first call, after which no verb finds the limiter; and then all of
// its state, that of For and of earlier rates too. For this it goes through all the keys of the Redis server that holds
// the limiter, some hundred in a call, and removes what is this limiter's; a limiter that somebody sets up meanwhile keeps
// its state. If it ends early, with a *StoreError that says Unknown, what is left is never read again, and expires by
// itself. It is no error if there is nothing.
func (s *Shared) Delete(ctx context.Context) (err error) {
	ctx, end := s.begin(ctx, VerbDelete, 0)
	if end != nil {
		defer func() { end(Outcome{Err: err}) }()
	}
	for cursor := "0"; ; {
		next, _, err := s.terms(ctx, change{verb: VerbDelete, text: cursor})
		if err != nil && cursor != "0" { // the parameters are gone
			return &StoreError{Op: "terms", Unknown: true, Err: err}
		}
		if err != nil || next == "0" {
			return err
		}
		cursor = next
	}
}

// terms reads or changes what is stored.
func (l *Limiter) terms(ctx context.Context, c change) (text string, changed bool, err error) {
	if err := l.usable(ctx); err != nil {
		return "", false, err
	}
	if l.shared == nil {
		return "", false, invalidf("the limiter was not made by NewShared")
	}
	c.observer = l.observer
	text, changed, err = l.store.terms(ctx, l.shared.key, c)
	if err == nil && text == "" {
		err = ErrNotInitialized
	}
	return text, changed, err
}

// refresh reads the terms, and is the plan by them.
func (l *Limiter) refresh(ctx context.Context) (*plan, error) {
	text, _, err := l.terms(ctx, change{verb: VerbRate})
	if err != nil {
		return nil, err
	}
	return l.shared.learn(text, l.observer)
}

// stateKey is where the state by a plan is stored.
func (l *Limiter) stateKey(p *plan) string {
	return l.shared.key + ":" + p.mark + ":" + p.rule.Suffix() + shorten(l.parts)
}

// decideShared decides by the terms that are stored, whatever this process believes them to be.
func (l *Limiter) decideShared(ctx context.Context, n int, bound int64, g *grant) error {
	ctx = l.budgeted(ctx)
	p := l.shared.plan.Load()
	var err error
	for {
		if p == nil {
			if p, err = l.refresh(ctx); err != nil {
				*g, err = l.unseen(n, bound, err)
				return err
			}
		}
		err = l.decideBy(ctx, p, l.stateKey(p), n, bound, g)
		switch moved, ok := errors.AsType[*movedError](err); {
		case ok:
			if p, err = l.shared.learn(moved.text, l.observer); err != nil {
				return err
			}
		case errors.Is(err, ErrNeverAllowed): // unless the limit was raised meanwhile
			now, readErr := l.refresh(ctx)
			if readErr != nil && !l.degraded(readErr) {
				return readErr
			}
			if readErr != nil {
				return err
			}
			if now.terms == p.terms {
				return err
			}
			p = now
		default:
			return err
		}
	}
}

// shared is what the limiters of one NewShared know of their terms.
type shared struct {
	key  string // where the terms are stored; the states' keys begin with it
	plan atomic.Pointer[plan]
}

// learn is the plan by the terms that are stored.
func (s *shared) learn(text string, told observer) (*plan, error) {
	if text == "" {
		return nil, ErrNotInitialized
	}
	if p := s.plan.Load(); p != nil && p.terms == text {
		return p, nil
	}
	mark, terms, _ := strings.Cut(text, " ")
	algorithm, err := algos.ParseTerms(terms)
	if err != nil { // it is not the caller's argument that is bad
		return nil, &StoreError{Op: "terms", Err: fmt.Errorf("%w: %s", errTerms, err.Error())}
	}
	p, err := newPlan(algorithm)
	if err != nil {
		return nil, err
	}
	p.observer = told
	p.script = p.script.Guarded()
	p.sha1 = p.script.SHA1
	p.terms, p.mark, p.shared = text, mark, s
	s.plan.Store(p)
	return p, nil
}

// errTerms means that the stored parameters cannot be read.
var errTerms = errors.New("the stored parameters are of no use")

// giveBack has call give back what was granted by p, and does so by the plan that counts if that is another by now.
func (p *plan) giveBack(call func(*plan) error) error {
	for {
		err := call(p)
		moved, ok := errors.AsType[*movedError](err)
		if !ok {
			return err
		}
		next, err := p.shared.learn(moved.text, p.observer)
		if errors.Is(err, ErrNotInitialized) || err == nil && next.mark != p.mark {
			return nil // the state is gone, and nothing is left to give back to
		}
		if err != nil {
			return err
		}
		p = next
	}
}

// A movedError says that the terms are others than the caller believed, and nothing was done.
type movedError struct{ text string }

func (*movedError) Error() string { return "headgate: the terms have changed" }
