package headgate_test

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A replied is an error that a Redis replies.
type replied string

func (r replied) Error() string { return string(r) }
func (replied) RedisError()     {}

// refused is what a client says of a Redis that is not there.
var refused = &net.OpError{Op: "dial", Net: "tcp", Err: net.UnknownNetworkError("connection refused")}

// A fault is a client's hook that keeps commands from Redis, and has them fail or hang instead.
type fault struct {
	mu     sync.Mutex
	err    error         // what all fail by; nil lets them through
	hang   chan struct{} // they wait until it is closed; nil for not
	calls  int           // of scripts
	probes []time.Time
}

func (f *fault) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
	if f.hang != nil {
		close(f.hang)
		f.hang = nil
	}
}

func (f *fault) stall() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang = make(chan struct{})
}

// counts are how many scripts were run or tried, and when probes were made.
func (f *fault) counts() (calls int, probes []time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls, append([]time.Time(nil), f.probes...)
}

func (f *fault) meet(cmd redis.Cmder) error {
	f.mu.Lock()
	if name := cmd.Name(); name == "set" {
		f.probes = append(f.probes, time.Now())
	} else if name == "evalsha" || name == "eval" {
		f.calls++
	}
	hang := f.hang
	f.mu.Unlock()
	if hang != nil {
		<-hang
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		cmd.SetErr(f.err)
	}
	return f.err
}

func (f *fault) DialHook(next redis.DialHook) redis.DialHook { return next }

func (f *fault) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := f.meet(cmd); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (f *fault) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var failed error
		for _, cmd := range cmds {
			if err := f.meet(cmd); err != nil {
				failed = err
			}
		}
		if failed != nil {
			return failed
		}
		return next(ctx, cmds)
	}
}

// faulty is a client of no Redis, for a fault that fails always.
func faulty(t *testing.T) (*redis.Client, *fault) {
	t.Helper()
	f := &fault{}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	rdb.AddHook(f)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb, f
}

// realFault is a real server behind a fault.
func realFault(t *testing.T) (*redistest.Server, *redis.Client, *fault) {
	t.Helper()
	server := redistest.Start(t)
	rdb := server.Client(func(o *redis.Options) { o.DialerRetries = 1 })
	f := &fault{}
	rdb.AddHook(f)
	return server, rdb, f
}

// probers is how many goroutines look for a Redis.
func probers() int {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	return bytes.Count(stacks, []byte(").probeUntil("))
}

// A diary is what was logged.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) Write(line []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, strings.TrimSpace(string(line)))
	return len(line), nil
}

func (d *diary) logger() *slog.Logger { return slog.New(slog.NewTextHandler(d, nil)) }

func (d *diary) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.lines...)
}

// closing closes a limiter at the end of a test, in its bubble.
func closing(t *testing.T, l *headgate.Limiter) {
	t.Helper()
	if err := l.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// slogger is a logger that calls a function for each line.
func slogger(f func()) *slog.Logger { return slog.New(slog.NewTextHandler(writer(f), nil)) }

type writer func()

func (w writer) Write(line []byte) (int, error) {
	w()
	return len(line), nil
}
