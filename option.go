package headgate

import (
	"math"
	"strings"
	"time"
	"unicode"
)

// An Option changes what New builds.
type Option func(*Limiter) error

// WithName names the limiter in spans and metrics. The default is the algorithm's name. The name must not hold a
// user's data: it becomes a label.
func WithName(name string) Option {
	return func(l *Limiter) error {
		if name == "" {
			return invalidf("WithName: the name is empty")
		}
		l.name = name
		return nil
	}
}

// Name is the limiter's name in spans and metrics; see WithName.
func (l *Limiter) Name() string { return l.name }

// WithPrefix sets what all of the limiter's keys begin with, before a colon. The default is "hg". Limiters under
// different prefixes never meet. A prefix has no braces and no control characters.
func WithPrefix(prefix string) Option {
	return func(l *Limiter) error {
		if prefix == "" || strings.ContainsAny(prefix, "{}") || strings.ContainsFunc(prefix, unicode.IsControl) {
			return invalidf("WithPrefix: the prefix must not be empty, nor contain braces or control characters")
		}
		l.prefix = prefix
		return nil
	}
}

// WithMaxWait bounds every Wait and Reserve: a slot further off than d, at least 0, is refused before anything is
// charged.
func WithMaxWait(d time.Duration) Option {
	return func(l *Limiter) error {
		if d < 0 {
			return invalidf("WithMaxWait: %v is negative", d)
		}
		l.maxWait = d
		return nil
	}
}

// WithLease has the process take up to n permits of a key at a time, at least 2 and at most the burst, and hand them out
// itself: for keys that are asked for far more often than Redis can answer. The limit holds at every instant, in all
// processes together, since a permit that is held is good only until the limiter would have refilled it: what is not used
// decays at the limiter's rate. Waits, costs and bounds are as without; where the process holds too little, a request waits
// for the lease that is on its way, which brings what is asked for beside its own n, or goes to Redis.
//
// The first lease of a key is taken when it is asked for twice within a second, and is small; each is twice as large as the
// one before, and half as large after one that the limiter had too little left for. They are only of permits that may be
// used at once, so under a limit that is used up everybody stands in the same queue as without. The next one is fetched
// when half is used, or at once if somebody had to wait for the last, so a limiter holds up to two. What it holds, others
// are refused until it decays: the limit is used in full only if the burst is larger than what all processes hold
// together. Remaining and ResetAfter of such a decision are what this limiter knows. A Reset forgets what this limiter
// holds, and not what others do. A machine that was suspended may use what has decayed meanwhile.
//
// Close gives back what is held. A lease needs an algorithm that refills steadily, TokenBucket or Funnel, and parameters
// that nobody changes; New refuses others. With a Memory store there is nothing to save, and the option does nothing.
func WithLease(n int) Option {
	return func(l *Limiter) error {
		if n < 2 {
			return invalidf("WithLease: %d permits; at least 2 are needed", n)
		}
		l.lease = n
		return nil
	}
}

// WithHook has a Hook called at each operation. Without one, observing costs nothing. Of several, each is called within
// the one before.
func WithHook(hook Hook) Option {
	return func(l *Limiter) error {
		if hook == nil {
			return nil
		}
		if l.hook != nil {
			hook = l.hook.around(hook)
		}
		l.hook = hook
		return nil
	}
}

// A ReserveOption changes one reservation.
type ReserveOption func(*reserveOptions)

type reserveOptions struct {
	within time.Duration
}

// Within refuses a slot further off than d before anything is charged. d is at least 0, which accepts only a slot
// that has come.
func Within(d time.Duration) ReserveOption {
	return func(o *reserveOptions) { o.within = d }
}

// applyReserveOptions gives the bound that the options set.
func applyReserveOptions(opts []ReserveOption) (within time.Duration, err error) {
	if len(opts) == 0 {
		return math.MaxInt64, nil // and nothing is allocated
	}
	o := reserveOptions{within: math.MaxInt64}
	for _, opt := range opts {
		if opt == nil {
			return 0, invalidf("an option is nil")
		}
		opt(&o)
	}
	if o.within < 0 {
		return 0, invalidf("Within: %v is negative", o.within)
	}
	return o.within, nil
}
