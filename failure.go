package headgate

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// ErrMisconfigured is matched by a *StoreError that no waiting cures and no fallback hides: Redis answers, or the client
// could reach it, but something is set up wrongly. The text says what to do.
var ErrMisconfigured = errors.New("headgate: misconfigured")

// A replyRow is an error that Redis replies, by its first word.
type replyRow struct {
	code   string
	remedy string // what to do; empty if it passes, as an outage does
}

// replies are those that are known: docs/errors.md is held against them by a test. Every other is of a wrong set-up, too.
var replies = []replyRow{
	{"LOADING", ""},
	{"BUSY", ""},
	{"READONLY", ""},
	{"CLUSTERDOWN", ""},
	{"MASTERDOWN", ""},
	{"NOREPLICAS", ""},
	{"TRYAGAIN", ""},
	{"OOM", ""},
	{"MISCONF", ""},
	{"max number of clients reached", ""},
	{"max number of clients + cluster connections reached", ""},

	{"FOREIGN", "something else wrote the key: Reset the limiter (Delete the parameters of a shared one), or give it a prefix or key of its own"},
	{"WRONGTYPE", "something else wrote the key: Reset the limiter (Delete the parameters of a shared one), or give it a prefix or key of its own"},
	{"NOPERM", "allow the client's user the commands and the keys that docs/operations.md lists"},
	{"NOAUTH", "give the client the user name and password of this Redis"},
	{"WRONGPASS", "give the client the user name and password of this Redis"},
	{"DENIED", "Redis is in protected mode: give it a password or an address to listen on"},
	{"CROSSSLOT", "what stands between the client and Redis distributes keys by a rule of its own: it must go by the hash tag in braces"},
	{"MOVED", "this Redis is part of a cluster: make the client by redis.NewClusterClient"},
	{"ASK", "this Redis is part of a cluster: make the client by redis.NewClusterClient"},
	{"NOSCRIPT", "what stands between the client and Redis does not pass on EVAL"},
	{"ERR", "this Redis does not run Headgate's scripts: it must be version 6 or later, with EVALSHA and TIME allowed (or take ClientClock)"},
}

// replyOf is the row of the error that Redis replied, the last one if there is none of its own; nil if it is no reply.
func replyOf(err error) *replyRow {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok || unnamed(err) {
		return nil
	}
	text := strings.TrimPrefix(reply.Error(), "ERR ")
	for i := range replies {
		if rest, found := strings.CutPrefix(text, replies[i].code); found && (rest == "" || rest[0] == ' ') {
			return &replies[i]
		}
	}
	return &replies[len(replies)-1]
}

// fromScript has an error that a script met begin with the code of it, as that of a command alone does: Redis 6 says first where
// in the script it was, and no version says NOPERM of what the ACL forbids a script.
func fromScript(err error) error {
	reply, ok := errors.AsType[redis.Error](err)
	if !ok {
		return err
	}
	text := strings.TrimPrefix(reply.Error(), "ERR ")
	last := strings.LastIndex(text, userScript)
	wrapped := last >= 0 && strings.HasPrefix(text, "Error running script ")
	if wrapped { // (call to f_…): @user_script:22: @user_script: 22: -OOM …
		_, text, _ = strings.Cut(text[last+len(userScript):], ": ")
		text = strings.TrimPrefix(text, "-")
	}
	if strings.HasPrefix(text, "ACL failure in script: ") || strings.HasPrefix(text, "The user executing the script can't ") {
		return &scriptError{"NOPERM " + text, err}
	}
	if code, _, _ := strings.Cut(text, " "); wrapped && code == strings.ToUpper(code) {
		return &scriptError{text, err}
	}
	return err
}

// userScript is how Redis 6 begins to say where in a script an error came up.
const userScript = "@user_script:"

// A scriptError is a reply of Redis, as redis.Error, in other words than it came.
type scriptError struct {
	text string
	sent error
}

func (e *scriptError) Error() string { return e.text }
func (e *scriptError) Unwrap() error { return e.sent }
func (*scriptError) RedisError()     {}

// unnamed tells whether the Sentinels that answered know no primary of the client's MasterName. Their answer is go-redis's
// Nil, which of Redis itself would be no reply of Headgate's scripts.
func unnamed(err error) bool {
	return errors.Is(err, redis.Nil) && strings.Contains(err.Error(), "sentinel")
}

// The remedies of errors that are no reply.
const (
	remedyClosed = "the client was closed: close it after the last use of its limiters"
	remedyReply  = "something between the client and Redis changes replies"
	remedyName   = "no Sentinel that answers knows the client's MasterName: give it the one of Sentinel's configuration"
	remedyTLS    = "make the client's TLSConfig fit the certificate of this Redis"
	remedyAlert  = "make the client's TLSConfig one that this Redis accepts: its certificate, its versions"
	remedyTerms  = "the parameters are those of a newer version, or of something else: set them by SetRate, or Delete them"
)

// remedy is what to do about an error that is of a wrong set-up; empty for every other.
func remedy(err error) string {
	switch {
	case unnamed(err):
		return remedyName
	case errors.Is(err, redis.Nil):
		return remedyReply
	}
	if reply := replyOf(err); reply != nil {
		return reply.remedy
	}
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case errors.Is(err, redis.ErrClosed):
		return remedyClosed
	case errors.Is(err, errReply):
		return remedyReply
	case errors.Is(err, errTerms):
		return remedyTerms
	case certificate, record:
		return remedyTLS
	case alerted(err):
		return remedyAlert
	}
	return ""
}

// alerted tells whether one side of a TLS handshake has refused the other, and not because it failed itself.
func alerted(err error) bool {
	alert, ok := errors.AsType[*net.OpError](err)
	return ok && (alert.Op == "remote error" || alert.Op == "local error") && !strings.Contains(alert.Error(), "internal error")
}

// isOutage tells whether an error means that Redis is out. The caller's context is none, nor is what is set up wrongly.
// Whatever else keeps a reply from coming is: connections that are refused or reset, timeouts of the client and of its
// pool, and the replies of a server that cannot serve now.
func isOutage(err error) bool {
	switch {
	case err == nil, errors.Is(err, errUnsent), errors.Is(err, errDates), errors.Is(err, context.Canceled):
		return false
	case remedy(err) != "":
		return false
	case replyOf(err) != nil:
		return true
	}
	_, network := errors.AsType[*net.OpError](err) // whose timeouts match the context's error
	return network || !errors.Is(err, context.DeadlineExceeded)
}
