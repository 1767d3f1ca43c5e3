package headgate_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
)

// answering is a client of a Redis that a function plays.
func answering(t *testing.T, answer func(ctx context.Context, cmd redis.Cmder) error) *redis.Client {
	t.Helper()
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	rdb.AddHook(player(answer))
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

type player func(ctx context.Context, cmd redis.Cmder) error

func (p player) DialHook(next redis.DialHook) redis.DialHook { return next }

func (p player) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := p(ctx, cmd)
		cmd.SetErr(err)
		return err
	}
}

func (p player) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) (err error) {
		for _, cmd := range cmds {
			if failed := p(ctx, cmd); failed != nil {
				cmd.SetErr(failed)
				err = failed
			}
		}
		return err
	}
}

// What is never sent, because its caller has no time, tells nothing of Redis.
func TestShortDeadlinesAreNoOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := answering(t, func(ctx context.Context, _ redis.Cmder) error {
			select {
			case <-ctx.Done():
				return ctx.Err() // while it waited for a connection
			case <-time.After(60 * time.Millisecond):
				return &net.OpError{Op: "read", Err: errTimeout{}}
			}
		})
		book := &diary{}
		l := newLimiter(t, headgate.Redis(rdb, headgate.WithLogger(book.logger())), anyBucket, headgate.WithFallback(headgate.FailOpen()))
		defer closing(t, l)
		for range 100 {
			ctx, cancel := context.WithTimeout(context.Background(), 40*time.Millisecond)
			if d, err := l.Allow(ctx); err != nil || d.Source != headgate.SourceOpen {
				t.Errorf("%+v, %v", d, err)
			}
			cancel()
			synctest.Wait()
		}
		if lines := book.all(); len(lines) > 0 {
			t.Errorf("logged are %v", lines)
		}
	})
}

// That a caller has left does not make the client's own timeout any less of a failure.
func TestAHangIsAnOutageHoweverShortTheDeadlines(t *testing.T) {
	for name, fallback := range map[string]headgate.Fallback{
		"fail closed": headgate.FailClosed(), "keep waiting": headgate.KeepWaiting(), "local": headgate.Local(1),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rdb := answering(t, func(context.Context, redis.Cmder) error {
					time.Sleep(time.Second)
					return &net.OpError{Op: "read", Err: errTimeout{}}
				})
				l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(fallback))
				ask := func() time.Duration {
					ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
					defer cancel()
					began := time.Now()
					_, _ = l.Allow(ctx)
					return time.Since(began)
				}
				for range 100 {
					ask()
					time.Sleep(10 * time.Millisecond)
				}
				for range 100 {
					if took := ask(); took > 0 {
						t.Fatalf("a decision waited %v for a Redis that hangs", took)
					}
				}
				closing(t, l)
				time.Sleep(2 * time.Second) // until the calls under way end
			})
		})
	}
}

// What another node answers does not end the outage of the one that fails.
func TestAnOutageOfOneNodeLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := answering(t, func(_ context.Context, cmd redis.Cmder) error {
			for _, arg := range cmd.Args() {
				if key, ok := arg.(string); ok && strings.Contains(key, "{test}") {
					return refused
				}
			}
			return nil
		})
		book := &diary{}
		l := newLimiter(t, headgate.Redis(rdb, headgate.WithLogger(book.logger())), anyBucket, headgate.WithFallback(headgate.FailOpen()))
		defer closing(t, l)
		for range 100 {
			allowN(t, l, 1)
			time.Sleep(100 * time.Millisecond)
		}
		if lines := book.all(); len(lines) != 1 {
			t.Errorf("logged are\n%s", strings.Join(lines, "\n"))
		}
	})
}

// A handler or a hook that panics ends neither the program nor what is told afterwards.
func TestAPanicOfTheLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		lines := 0
		l := newLimiter(t, headgate.Redis(rdb, headgate.WithLogger(slogger(func() {
			if lines++; lines == 3 {
				runtime.Goexit() // as t.FailNow does
			}
			panic("handler")
		}))), anyBucket, headgate.WithFallback(headgate.FailOpen()), headgate.WithHook(func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
			if op.Verb == headgate.VerbOutage {
				return ctx, func(headgate.Outcome) { panic("hook") }
			}
			return ctx, nil
		}))
		defer closing(t, l)
		for i := range 3 {
			f.set(refused)
			breakDown(t, l)
			f.set(replied("NOSCRIPT")) // an answer
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if lines != 2*(i+1) {
				t.Errorf("%d lines after %d outages", lines, i+1)
			}
		}
	})
}

// A handler that takes its time holds up no decision, nor one that closes the limiter itself.
func TestASlowLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		var l *headgate.Limiter
		lines, closed := 0, errors.New("not closed")
		l = newLimiter(t, headgate.Redis(rdb, headgate.WithLogger(slogger(func() {
			time.Sleep(time.Hour)
			if lines++; lines == 2 {
				closed = l.Close(context.Background())
			}
		}))), anyBucket, headgate.WithFallback(headgate.FailOpen()))
		f.stall()
		for range 5 {
			began := time.Now()
			allowN(t, l, 1)
			if took := time.Since(began); took > 250*time.Millisecond {
				t.Errorf("a decision took %v", took)
			}
		}
		f.set(replied("NOSCRIPT"))
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if closed != nil || lines != 2 || probers() > 0 {
			t.Errorf("%v; %d lines; %d look for Redis", closed, lines, probers())
		}
	})
}

// The outage of a client that is closed meanwhile is at an end, but nothing answers again.
func TestAClosedClientDoesNotAnswerAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		book := &diary{}
		l := newLimiter(t, headgate.Redis(rdb, headgate.WithLogger(book.logger())), anyBucket, headgate.WithFallback(headgate.FailOpen()))
		breakDown(t, l)
		f.set(redis.ErrClosed)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if _, err := l.Allow(context.Background()); !errors.Is(err, redis.ErrClosed) {
			t.Error(err)
		}
		if lines := book.all(); len(lines) != 1 || probers() > 0 {
			t.Errorf("%d look for it, logged are\n%s", probers(), strings.Join(lines, "\n"))
		}
		closing(t, l)
	})
}

// Before a slow Redis is out it has been slow for the most patient limiter, too.
func TestTheImpatientSpeakForThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := answering(t, func(context.Context, redis.Cmder) error {
			time.Sleep(150 * time.Millisecond)
			return replied("FOREIGN")
		})
		book := &diary{}
		store := headgate.Redis(rdb, headgate.WithLogger(book.logger()))
		hasty := newLimiter(t, store, anyBucket, headgate.WithFallback(headgate.FailOpen()), headgate.WithStoreTimeout(20*time.Millisecond))
		calm := newLimiter(t, store, anyBucket, headgate.WithFallback(headgate.FailOpen()))
		for range 100 {
			allowN(t, hasty, 1)
		}
		if _, err := calm.Allow(context.Background()); !errors.Is(err, headgate.ErrMisconfigured) {
			t.Error(err)
		}
		closing(t, hasty)
		closing(t, calm)
		time.Sleep(time.Second)
		synctest.Wait()
		if lines := book.all(); len(lines) > 0 {
			t.Errorf("logged are %v", lines)
		}
	})
}

// Probes that hang do not make the pauses longer, nor pile up.
func TestProbesThatHang(t *testing.T) {
	for name, row := range map[string]struct {
		hang    time.Duration
		gap     time.Duration // at most
		atOnce  int
		between int // in a minute, at least
	}{
		"for a moment": {2 * time.Second, 1500 * time.Millisecond, 3, 40},
		"for long":     {20 * time.Second, 21 * time.Second, 3, 6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var probes []time.Time
				underWay, most := 0, 0
				rdb := answering(t, func(_ context.Context, cmd redis.Cmder) error {
					if cmd.Name() != "set" {
						return refused
					}
					mu.Lock()
					probes = append(probes, time.Now())
					underWay++
					most = max(most, underWay)
					mu.Unlock()
					time.Sleep(row.hang)
					mu.Lock()
					defer mu.Unlock()
					underWay--
					return &net.OpError{Op: "read", Err: errTimeout{}}
				})
				l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(headgate.FailOpen()))
				for range 600 {
					allowN(t, l, 1)
					time.Sleep(100 * time.Millisecond)
				}
				closing(t, l)
				time.Sleep(time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if most > row.atOnce || underWay > 0 || len(probes) < row.between {
					t.Errorf("%d probes, %d at once, %d left", len(probes), most, underWay)
				}
				for i := 1; i < len(probes); i++ {
					if gap := probes[i].Sub(probes[i-1]); gap > row.gap {
						t.Errorf("probe %d came after %v", i, gap)
					}
				}
			})
		})
	}
}

// Failures are in a row if they are not far apart.
func TestAFailureOfLongAgoIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb, f := faulty(t)
		f.set(refused)
		book := &diary{}
		l := newLimiter(t, headgate.Redis(rdb, headgate.WithLogger(book.logger())), anyBucket, headgate.WithFallback(headgate.FailOpen()))
		defer closing(t, l)
		for range 20 {
			for range 3 { // connections that died meanwhile, all of them
				allowN(t, l, 1)
			}
			time.Sleep(2 * time.Minute)
		}
		if lines := book.all(); len(lines) > 0 {
			t.Errorf("logged are %v", lines)
		}
		breakDown(t, l)
		synctest.Wait()
		if lines := book.all(); len(lines) != 1 {
			t.Errorf("logged are %v", lines)
		}
	})
}
