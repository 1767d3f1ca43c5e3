package headgate

import (
	"context"
	"time"
)

// A Hook observes what limiters do; spans and metrics hang on it. It is called when an operation begins. The context
// that it returns goes on to the operation, and the function, which may be nil, is called once when the operation has
// ended, on the same goroutine. A Hook must be safe for concurrent use, and must not panic or block.
type Hook func(ctx context.Context, op Operation) (context.Context, func(Outcome))

// A Verb names an operation.
type Verb string

// The operations that a Hook sees. A Sleep happens within a Wait, or is the Wait of a Reservation. A Cancel happens
// within either where its context ends. The others stand alone.
const (
	VerbAllow   Verb = "allow"
	VerbReserve Verb = "reserve"
	VerbWait    Verb = "wait"
	VerbSleep   Verb = "sleep"
	VerbPeek    Verb = "peek"
	VerbCancel  Verb = "cancel"
	VerbReset   Verb = "reset"

	// Of a Shared limiter:
	VerbTrySetRate  Verb = "try_set_rate"
	VerbSetRate     Verb = "set_rate"
	VerbUpdateRate  Verb = "update_rate"
	VerbRate        Verb = "rate"
	VerbExpire      Verb = "expire"
	VerbClearExpire Verb = "clear_expire"
	VerbDelete      Verb = "delete"
)

// An Operation is what a Hook is told at the beginning.
type Operation struct {
	Verb Verb
	// Limiter is the limiter's name: see WithName.
	Limiter string
	// Algorithm is the algorithm's name, "token_bucket" for instance; empty for a shared limiter that has not been used.
	Algorithm string
	// Key is the limiter's key with its parts, as they are stored: escaped where they must be. It is the user's data:
	// it may be a telephone number, and there may be millions of it. Never make it a metric's label.
	Key string
	// Cost is the number of permits concerned.
	Cost int
	// Delay is how long a Sleep is to last.
	Delay time.Duration
}

// An Outcome is what a Hook is told at the end.
type Outcome struct {
	// Decision is what was decided, if anything was: the store was asked and answered. For a Wait or Reserve that was
	// granted, Allowed is true and Delay tells when.
	Decision Decision
	// Delay is how far ahead the granted slot lay.
	Delay time.Duration
	// Err is the error that the caller gets, nil if none. A denied Allow has none.
	Err error
}

// begin tells the hook, if there is one, that an operation begins. The function it returns is never nil.
func (l *Limiter) begin(ctx context.Context, verb Verb, cost int, delay time.Duration) (context.Context, func(Outcome)) {
	if l.hook == nil {
		return ctx, ignoreOutcome
	}
	hooked, end := l.hook(ctx, Operation{
		Verb: verb, Limiter: l.name, Algorithm: l.algorithm(), Key: l.path, Cost: cost, Delay: delay,
	})
	if hooked == nil {
		hooked = ctx
	}
	if end == nil {
		end = ignoreOutcome
	}
	return hooked, end
}

// algorithm is the name of the algorithm, empty if its terms are in the store and were not yet seen.
func (l *Limiter) algorithm() string {
	p := l.plan
	if l.shared != nil {
		p = l.shared.plan.Load()
	}
	if p == nil {
		return ""
	}
	return p.rule.Name()
}

func ignoreOutcome(Outcome) {}
