package headgate

import (
	"context"
	"time"
)

// A Hook observes what limiters do; spans and metrics hang on it, those of package trace for instance. It is called
// when an operation begins. The context that it returns goes on to the operation, and the function, which may be nil, is
// called once when the operation has ended, on the same goroutine. A Hook must be safe for concurrent use, and must not
// panic or block.
type Hook func(ctx context.Context, op Operation) (context.Context, func(Outcome))

// around is two hooks as one.
func (outer Hook) around(inner Hook) Hook {
	return func(ctx context.Context, op Operation) (context.Context, func(Outcome)) {
		within, ended := outer(ctx, op)
		if within == nil {
			within = ctx
		}
		innermost, end := inner(within, op)
		if innermost == nil {
			innermost = within
		}
		return innermost, func(o Outcome) {
			if end != nil {
				end(o)
			}
			if ended != nil {
				ended(o)
			}
		}
	}
}

// A Verb names an operation.
type Verb string

// The operations that a Hook sees. A Sleep happens within a Wait, or is the Wait of a Reservation. A Cancel happens
// within either where its context ends. A Call is a script that Redis runs for any of the others; it happens within the
// only one that it is for, and otherwise has links to them. It may outlast a caller who leaves. An Outage begins when Redis
// is found out by a limiter that falls back, which stands for all others of its Store, and ends when Redis is asked again,
// on whatever goroutine; its error is why. The others stand alone.
const (
	VerbAllow   Verb = "allow"
	VerbReserve Verb = "reserve"
	VerbWait    Verb = "wait"
	VerbSleep   Verb = "sleep"
	VerbPeek    Verb = "peek"
	VerbCancel  Verb = "cancel"
	VerbReset   Verb = "reset"
	VerbCall    Verb = "call"
	VerbOutage  Verb = "outage"

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
	// Algorithm is the algorithm's name, "token_bucket" for instance, as far as it is known: empty for a shared limiter
	// that has not been used, and another than the Outcome's if it was changed meanwhile.
	Algorithm string
	// Key is the limiter's key with its parts, as they are stored: escaped where they must be. It is the user's data:
	// it may be a telephone number, and there may be millions of it. Never make it a metric's label. A Call has none.
	Key string
	// Cost is the number of permits concerned. A Call has none.
	Cost int
	// Delay is how long a Sleep is to last.
	Delay time.Duration
	// Command is the command of a Call, which runs a limiter's script: "EVALSHA", or "EVAL" where the server did not
	// have the script.
	Command string
	// Links are contexts, as the Hook returned them, of operations that this one belongs to, whether it stands under
	// them or not: a Sleep or a Cancel belongs to the Wait or Reserve that made the reservation, and a Call that several
	// operations share to each of them.
	Links []context.Context
}

// An Outcome is what a Hook is told at the end.
type Outcome struct {
	// Decision is what was decided, if anything was: the store was asked and answered. For a Wait or Reserve that was
	// granted, Allowed is true and Delay tells when.
	Decision Decision
	// Algorithm is the name of the algorithm that decided, and Rate how many permits a second it grants in the long run.
	// They are empty and zero if nothing was decided.
	Algorithm string
	Rate      float64
	// Delay is how far ahead the granted slot lay.
	Delay time.Duration
	// Slept is how much of a Wait was a Sleep.
	Slept time.Duration
	// Returned is how many of the permits that a Cancel gave back can be taken again.
	Returned int
	// Err is the error that the caller gets, nil if none. A denied Allow has none. That of a Call is the client's: its
	// text may quote a key, and NOSCRIPT is followed by another Call.
	Err error
}

// An observer is a Hook, if there is one, and the name by which it is told of a limiter.
type observer struct {
	hook Hook
	name string
}

// begin tells the hook, if there is one, that an operation begins. The function is nil if nobody wants to know its end.
func (l *Limiter) begin(ctx context.Context, verb Verb, cost int) (context.Context, func(Outcome)) {
	if l.hook == nil {
		return ctx, nil
	}
	return l.tell(ctx, Operation{Verb: verb, Algorithm: l.algorithm(), Key: l.path, Cost: cost})
}

// begin is the limiter's, for what belongs to a reservation.
func (r *Reservation) begin(ctx context.Context, verb Verb, delay time.Duration) (context.Context, func(Outcome)) {
	if r.limiter.hook == nil {
		return ctx, nil
	}
	return r.limiter.tell(ctx, Operation{
		Verb: verb, Algorithm: r.grant.plan.rule.Name(), Key: r.limiter.path, Cost: r.cost, Delay: delay,
		Links: []context.Context{r.made},
	})
}

// tell fills in the name.
func (o *observer) tell(ctx context.Context, op Operation) (context.Context, func(Outcome)) {
	op.Limiter = o.name
	hooked, end := o.hook(ctx, op)
	if hooked == nil {
		hooked = ctx
	}
	return hooked, end
}

// outcome is what a grant and what the caller gets say of an operation.
func outcome(g *grant, d Decision, err error) Outcome {
	o := Outcome{Decision: d, Delay: micros(max(g.Wait, 0)), Err: err}
	if g.plan != nil {
		permits, per := g.plan.rule.Rate()
		o.Algorithm, o.Rate = g.plan.rule.Name(), float64(permits)/per.Seconds()
	}
	return o
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
