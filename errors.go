package headgate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
)

var (
	// ErrInvalid is matched by errors about parameters and arguments that no limiter can work with: a rate of zero, an
	// empty key, n < 1. It is returned before any call to the store. The text says what to change.
	ErrInvalid = algos.ErrInvalid

	// ErrDenied is matched by the error of a Wait or Reserve that was refused and charged nothing, because the slot
	// lies beyond the bound: the context's deadline, Within or WithMaxWait. The error is a *DeniedError.
	ErrDenied = errors.New("headgate: denied")

	// ErrCancelled is returned by the Wait of a Reservation that was cancelled.
	ErrCancelled = errors.New("headgate: the reservation was cancelled")

	// ErrNotInitialized is returned by a shared limiter whose parameters nobody has set, or that were deleted or have
	// expired: call TrySetRate or SetRate.
	ErrNotInitialized = errors.New("headgate: the shared limiter's rate is not set; call TrySetRate or SetRate")

	// ErrNeverAllowed is matched by the error of a request for more permits than the limiter can ever grant at once.
	// Waiting does not help: ask for less, or raise the limiter's burst. It is returned before any call to the store.
	ErrNeverAllowed = errors.New("headgate: never allowed")
)

// A DeniedError says why a Wait or a Reserve was refused, and when to come back. It matches ErrDenied and, if it was
// the context's deadline that the slot did not meet, context.DeadlineExceeded.
type DeniedError struct {
	// Decision is the answer. Its RetryAfter is how long until the same request, with the same bound, would be
	// admitted.
	Decision Decision
	deadline bool
}

// Error implements error.
func (e *DeniedError) Error() string {
	if e.deadline {
		return fmt.Sprintf("headgate: denied: the slot lies %v beyond the context's deadline", e.Decision.RetryAfter)
	}
	return fmt.Sprintf("headgate: denied: try again after %v", e.Decision.RetryAfter)
}

// Is makes errors.Is(err, ErrDenied) hold, and errors.Is(err, context.DeadlineExceeded) where that was the bound.
func (e *DeniedError) Is(target error) bool {
	return target == ErrDenied || e.deadline && target == context.DeadlineExceeded
}

// A StoreError says that the store did not answer, or answered with an error. It is never a denial.
type StoreError struct {
	// Op is what was asked of the store: "decide", "give back", "reset", "terms" of a shared limiter, or "tickets" of
	// package worker.
	Op string
	// Unknown is true where the call may have been carried out: its reply was lost, or came too late. The permits of
	// such a call may be charged; where its reply still comes in, they are given back. If Unknown is false, the call
	// changed nothing: no permit was charged, or given back, or forgotten.
	Unknown bool
	// Err is the cause, without the limiter's key in its text. What it wraps in turn may quote it.
	Err error
}

// Error implements error.
func (e *StoreError) Error() string {
	text := "it changed nothing"
	if e.Unknown {
		text = "it is unknown whether it was carried out"
	}
	if remedy := remedy(e.Err); remedy != "" {
		text += "; " + remedy
	}
	return fmt.Sprintf("headgate: store: %s: %v (%s)", e.Op, e.Err, text)
}

// Is makes errors.Is(err, ErrMisconfigured) hold where that is so.
func (e *StoreError) Is(target error) bool { return target == ErrMisconfigured && remedy(e.Err) != "" }

// Unwrap returns the cause, so that errors.Is finds context.DeadlineExceeded for instance.
func (e *StoreError) Unwrap() error { return e.Err }

// storeError wraps the error of a call that wrote, or would have.
func storeError(op, key string, err error) error {
	return &StoreError{Op: op, Unknown: !neverRan(err), Err: redact(err, key)}
}

// redact takes the limiter's key out of an error's text, whole or cut short: Redis quotes the arguments of a command
// that it does not know. What follows the key goes too.
func redact(err error, key string) error {
	public, _, _ := strings.Cut(key, "{")
	text, _, found := strings.Cut(err.Error(), public+"{")
	if !found {
		return err
	}
	return &redacted{text + "(the limiter's key)", err}
}

// A redacted error says less than its cause, and is it in all else.
type redacted struct {
	text  string
	cause error
}

func (e *redacted) Error() string { return e.text }
func (e *redacted) Unwrap() error { return e.cause }

// neverRan tells whether an error proves that the script changed nothing: the server answered with an error (the first
// command of a script that writes is where it fails, if at all), or no connection was had. The ACL alone is asked before each
// command, and a log writes in several.
func neverRan(err error) bool {
	if within, ok := errors.AsType[*scriptError](err); ok && redis.HasErrorPrefix(within, "NOPERM") {
		return false
	}
	if _, ok := errors.AsType[redis.Error](err); ok {
		return remedy(err) != remedyReply
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return true
	}
	if remedy(err) == remedyTLS {
		return true
	}
	return errors.Is(err, errDates) || errors.Is(err, errUnsent) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed)
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// micros turns whole microseconds, as the drivers count, into a Duration.
func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

func neverAllowed(n, most int) error {
	return fmt.Errorf("%w: %d permits asked for at once; the limiter grants at most %d", ErrNeverAllowed, n, most)
}
