package headgate_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
)

// What passes is an outage, whatever it is called, and what must be mended is shown in every mode.
func TestEachErrorInEachMode(t *testing.T) {
	reset := &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	slowDial := &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
	for name, row := range map[string]struct {
		err             error
		outage, unknown bool
	}{
		"refused":          {refused, true, false},
		"dial timeout":     {slowDial, true, false},
		"reset":            {reset, true, true},
		"broken pipe":      {&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE}, true, true},
		"end of file":      {io.EOF, true, true},
		"read timeout":     {&net.OpError{Op: "read", Net: "tcp", Err: errTimeout{}}, true, true},
		"pool timeout":     {redis.ErrPoolTimeout, true, false},
		"pool exhausted":   {redis.ErrPoolExhausted, true, false},
		"TLS fails":        {&net.OpError{Op: "remote error", Err: errors.New("tls: internal error")}, true, true},
		"no sentinel":      {errors.New("redis: all sentinels specified in configuration are unreachable"), true, true},
		"sentinels down":   {fmt.Errorf("redis: all sentinels specified in configuration are unreachable: %w", errors.Join(refused, refused)), true, false},
		"LOADING":          {replied("LOADING Redis is loading the dataset in memory"), true, false},
		"BUSY":             {replied("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."), true, false},
		"READONLY":         {replied("READONLY You can't write against a read only replica."), true, false},
		"CLUSTERDOWN":      {replied("CLUSTERDOWN The cluster is down"), true, false},
		"MASTERDOWN":       {replied("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."), true, false},
		"NOREPLICAS":       {replied("NOREPLICAS Not enough good replicas to write."), true, false},
		"TRYAGAIN":         {replied("TRYAGAIN Multiple keys request during rehashing of slot"), true, false},
		"OOM":              {replied("OOM command not allowed when used memory > 'maxmemory'."), true, false},
		"MISCONF":          {replied("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."), true, false},
		"too many clients": {replied("ERR max number of clients reached"), true, false},
		"too many in all":  {replied("ERR max number of clients + cluster connections reached"), true, false},
		"OOM in Redis 6":   {replied("ERR Error running script (call to f_0123): @user_script:22: @user_script: 22: -OOM command not allowed when used memory > 'maxmemory'. "), true, false},

		"CROSSSLOT":          {replied("CROSSSLOT Keys in request don't hash to the same slot"), false, false},
		"WRONGTYPE":          {replied("WRONGTYPE Operation against a key holding the wrong kind of value"), false, false},
		"FOREIGN":            {replied("FOREIGN the key holds something that Headgate did not write"), false, false},
		"NOPERM":             {replied("NOPERM this user has no permissions to run the 'evalsha' command"), false, false},
		"NOAUTH":             {replied("NOAUTH Authentication required."), false, false},
		"WRONGPASS":          {replied("WRONGPASS invalid username-password pair or user is disabled."), false, false},
		"DENIED":             {replied("DENIED Redis is running in protected mode"), false, false},
		"MOVED":              {replied("MOVED 3999 127.0.0.1:6381"), false, false},
		"a script's error":   {replied("ERR user_script:1: Script attempted to access nonexistent global variable 'x'"), false, false},
		"WRONGTYPE, Redis 6": {replied("ERR Error running script (call to f_0123): @user_script:22: WRONGTYPE Operation against a key"), false, false},
		"no such command":    {replied("ERR unknown command 'evalsha', with args beginning with: 'abc' '1' 'hg:{test/secret}:tb' "), false, false},
		"no reply":           {redis.Nil, false, true},
		"no such primary":    {errUnnamed, false, false},
		"closed":             {redis.ErrClosed, false, false},
		"TLS alert":          {&net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")}, false, true},
		"TLS alert of ours":  {&net.OpError{Op: "local error", Err: errors.New("tls: protocol version not supported")}, false, true},
		"certificate":        {&tls.CertificateVerificationError{Err: errors.New("signed by an unknown authority")}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb, f := faulty(t)
				f.set(row.err)
				for _, mode := range []struct {
					fallback headgate.Fallback
					source   headgate.Source
				}{{headgate.FailClosed(), ""}, {headgate.FailOpen(), "open"}, {headgate.Local(0.5), "local"}, {headgate.KeepWaiting(), ""}} {
					l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(mode.fallback)).For("secret")
					d, err := l.Allow(context.Background())
					switch {
					case row.outage && mode.source != "":
						if err != nil || !d.Allowed || d.Source != mode.source || !d.Source.Degraded() {
							t.Errorf("%v: %+v, %v", mode.fallback, d, err)
						}
					default:
						// What eval sends again for two seconds, it may be sending when the caller leaves.
						again := (name == "LOADING" || name == "TRYAGAIN") && mode.fallback == headgate.FailClosed()
						wantUnknown(t, err, row.unknown || again)
						if errors.Is(err, headgate.ErrMisconfigured) == row.outage {
							t.Errorf("%v: misconfigured? %v", mode.fallback, err)
						}
						if d != (headgate.Decision{}) {
							t.Errorf("%v: beside the error there is %+v", mode.fallback, d)
						}
					}
					if err != nil && strings.Contains(err.Error(), "secret") {
						t.Errorf("the key is in %q", err)
					}
					began := time.Now()
					ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
					err = l.Wait(ctx)
					kept := row.outage && !row.unknown && mode.fallback == headgate.KeepWaiting()
					if got := time.Since(began) >= time.Minute; got != kept {
						t.Errorf("%v: waited %v: %v", mode.fallback, time.Since(began), err)
					}
					if kept && (!errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, row.err)) {
						t.Errorf("%v: %v", mode.fallback, err)
					}
					cancel()
					closing(t, l)
				}
			})
		})
	}
}

// errUnnamed is what a client says if one Sentinel does not know its MasterName, and the other is away.
var errUnnamed = fmt.Errorf("redis: all sentinels specified in configuration are unreachable: %w", errors.Join(redis.Nil, refused))

// What must be mended says where.
func TestRemedies(t *testing.T) {
	for want, err := range map[string]error{
		"docs/operations.md": replied("NOPERM this user has no permissions to run the 'evalsha' command"),
		"MasterName":         errUnnamed,
		"changes replies":    redis.Nil,
		"TLSConfig":          &net.OpError{Op: "remote error", Err: errors.New("tls: certificate required")},
	} {
		rdb, f := faulty(t)
		f.set(err)
		if _, err := newLimiter(t, headgate.Redis(rdb), anyBucket).Allow(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

// What a script met begins with its code, whatever words the server puts before it, for callers and for hooks.
func TestErrorsOfScriptsBeginWithTheirCode(t *testing.T) {
	const redis6 = "ERR Error running script (call to f_0123): "
	for reply, want := range map[string]string{
		"OOM command not allowed script: 0123, on @user_script:22.":                                                      "OOM",
		redis6 + "@user_script:22: @user_script: 22: -OOM command not allowed. ":                                         "OOM",
		"WRONGTYPE Operation against a key script: 0123, on @user_script:22.":                                            "WRONGTYPE",
		redis6 + "@user_script:22: WRONGTYPE Operation against a key":                                                    "WRONGTYPE",
		"ERR ACL failure in script: User app has no permissions to run the 'get' command":                                "NOPERM",
		"ERR The user executing the script can't run this command or subcommand":                                         "NOPERM",
		redis6 + "@user_script:22: @user_script: 22: The user executing the script can't run this command or subcommand": "NOPERM",
		redis6 + "@user_script:22: user_script:22: attempt to index a nil value":                                         "ERR",
		redis6 + "unheard of": "ERR",
	} {
		rdb, f := faulty(t)
		f.set(replied(reply))
		var heard error
		hook := func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
			return ctx, func(o headgate.Outcome) {
				if op.Verb == headgate.VerbCall {
					heard = o.Err
				}
			}
		}
		l := newLimiter(t, headgate.Redis(rdb), anyBucket)
		_, err := l.Allow(context.Background())
		_, _ = newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithHook(hook)).Allow(context.Background())
		for _, err := range []error{err, heard} {
			met, ok := errors.AsType[redis.Error](err)
			if !ok || !strings.HasPrefix(met.Error(), want+" ") || !errors.Is(err, replied(reply)) {
				t.Errorf("%q became %v, want %s", reply, err, want)
			}
		}
	}
}

// errTimeout is what net says.
type errTimeout struct{}

func (errTimeout) Error() string { return "i/o timeout" }

func (errTimeout) Timeout() bool { return true }

func (errTimeout) Temporary() bool { return true }
