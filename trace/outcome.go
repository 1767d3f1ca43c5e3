package trace

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/headgate-go/headgate"
)

// A result is what came of an operation.
type result string

const (
	acquired result = "acquired"
	denied   result = "denied"
	canceled result = "canceled"
	failed   result = "error"
	done     result = "" // of what neither acquires nor asks, and needs no word
)

func resultOf(verb headgate.Verb, out headgate.Outcome) result {
	switch asked := verb == headgate.VerbAllow || verb == headgate.VerbPeek; {
	case out.Err == nil && (verb == headgate.VerbCancel || verb == headgate.VerbReset):
		return done
	case out.Err == nil && asked && !out.Decision.Allowed:
		return denied
	case out.Err == nil:
		return acquired
	case errors.Is(out.Err, headgate.ErrDenied):
		return denied
	case left(out.Err):
		return canceled
	}
	return failed
}

// left tells whether the caller went away, and not the store. A deadline that passes while the store is asked is the
// store's fault: it did not answer in time.
func left(err error) bool {
	if errors.Is(err, headgate.ErrCancelled) || errors.Is(err, context.Canceled) {
		return true
	}
	_, asked := errors.AsType[*headgate.StoreError](err)
	return !asked && errors.Is(err, context.DeadlineExceeded)
}

// errorType is the kind of an error, one of few: empty for nil.
func errorType(err error) string {
	if err == nil {
		return ""
	}
	if code, _ := replied(err); code != "" {
		return code
	}
	if network, ok := errors.AsType[net.Error](err); ok && network.Timeout() {
		return "timeout"
	}
	dial, isNetwork := errors.AsType[*net.OpError](err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, redis.ErrPoolTimeout):
		return "timeout"
	case isNetwork && dial.Op == "dial":
		return "connect"
	case isNetwork, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection"
	case errors.Is(err, redis.ErrClosed), errors.Is(err, net.ErrClosed):
		return "closed"
	case errors.Is(err, headgate.ErrNeverAllowed):
		return "never_allowed"
	case errors.Is(err, headgate.ErrNotInitialized):
		return "not_initialized"
	case errors.Is(err, headgate.ErrInvalid):
		return "invalid"
	}
	return semconv.ErrorTypeOther.Value.AsString()
}

// replied is the first word of the error that Redis replied, if it is one that Redis would write, and whether err is a
// failure: that Redis does not have the script is none, since it is sent next, nor is it one that the caller left.
func replied(err error) (code string, failure bool) {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok {
		return "", err != nil && !errors.Is(err, context.Canceled)
	}
	code, _, _ = strings.Cut(reply.Error(), " ")
	if len(code) > 16 || strings.ContainsFunc(code, func(r rune) bool { return r < 'A' || r > 'Z' }) {
		code = "ERR"
	}
	return code, code != "NOSCRIPT"
}
