package headgate

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/internal/driver"
)

// Redis makes a Store that keeps limits in Redis 6 or later, or a server that speaks its protocol and runs its Lua:
// standalone, Sentinel, Cluster or Ring. The client stays the caller's, to configure and to close.
//
// Each decision is one call of one script on one key. A call that charges is sent once, whatever the client's
// MaxRetries says; it is repeated only after NOSCRIPT, which proves that it did not run. The caller's context bounds
// each call, its deadline and its cancellation, whatever the client's ContextTimeoutEnabled says. A call whose caller
// has left goes on until the client's own timeouts end it, so that what it is granted can be given back.
//
// For a nil client it returns nil, which New refuses.
func Redis(client redis.UniversalClient, opts ...RedisOption) Store {
	if client == nil {
		return nil
	}
	s := &redisStore{client: client}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	return s
}

// A RedisOption changes what Redis makes.
type RedisOption func(*redisStore)

// ClientClock decides by the caller's clock instead of the server's: for a server that refuses TIME in scripts, and
// for tests in virtual time. All clients of a limit should then agree on the time: the limiter follows the clock that
// is furthest ahead, so one that runs an hour ahead and is then put right stops the limit for an hour.
func ClientClock() RedisOption {
	return func(s *redisStore) { s.now = func() int64 { return time.Now().UnixMicro() } }
}

type redisStore struct {
	client redis.UniversalClient
	now    func() int64 // nil for the server's clock
	ahead  atomic.Int64 // how far the server's clock was seen to be ahead of this machine's, µs
}

// lateFor bounds the call that gives back what came too late.
const lateFor = 5 * time.Second

func (s *redisStore) source() Source { return SourceRedis }

func (s *redisStore) decide(ctx context.Context, p *plan, key string, request driver.Request, _ uint64) (grant, error) {
	var reply driver.Reply
	var err error
	if ctx.Done() == nil { // not by way of bounded: its functions would cost allocations
		reply, err = s.call(ctx, p, key, request)
	} else {
		reply, err = bounded(ctx,
			func(ctx context.Context) (driver.Reply, error) { return s.call(ctx, p, key, request) },
			func(late driver.Reply) { s.giveBackLate(context.WithoutCancel(ctx), p, key, request, late) })
	}
	if err == nil {
		return grant{Reply: reply, plan: p, key: key}, nil
	}
	if moved, ok := errors.AsType[*movedError](err); ok {
		return grant{}, moved
	}
	op := "decide"
	if request.Cost < 0 {
		op = "give back"
	}
	return grant{}, storeError(op, key, err)
}

// giveBackLate returns what was granted to a caller who had left when the reply came.
func (s *redisStore) giveBackLate(ctx context.Context, p *plan, key string, request driver.Request, late driver.Reply) {
	if request.Cost < 0 || late.Wait < 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, lateFor)
	defer cancel()
	// If this fails the permits drain as if used: nobody is over the limit for it.
	_, _ = s.call(ctx, p, key, driver.Request{Cost: -request.Cost, Receipt: late.Receipt})
}

// call runs the script once. A second attempt follows only where the first proves that nothing ran, or answers that
// nothing was done because this machine's clock is wrong: parameters that are dates then follow the server's.
func (s *redisStore) call(ctx context.Context, p *plan, key string, request driver.Request) (driver.Reply, error) {
	params := p.paramsAt(s.ahead.Load())
	n, err := s.send(ctx, p, params.args, key, request)
	if err == nil && len(n) == 1 && params.dated() && ctx.Err() == nil {
		if s.now == nil { // a client's clock is what the caller wants it to be, and it is the limiter that is ahead
			s.ahead.Store(n[0] - time.Now().UnixMicro())
		}
		if n, err = s.send(ctx, p, p.renew(n[0]).args, key, request); err == nil && len(n) == 1 {
			err = errDates
		}
	}
	if err != nil {
		return driver.Reply{}, err
	}
	if len(n) != driver.Integers {
		return driver.Reply{}, errReply
	}
	return driver.ParseReply(n), nil
}

func (s *redisStore) send(ctx context.Context, p *plan, params []any, key string, request driver.Request) ([]int64, error) {
	args := make([]any, 0, 5+len(params)+2) // what a charge takes; the rarer ones grow it
	if p.termsKey == "" {
		args = append(args, "evalsha", p.sha1, 1, key)
	} else {
		args = append(args, "evalsha", p.sha1, 2, key, p.termsKey)
	}
	if s.now == nil {
		args = append(args, "")
	} else {
		args = append(args, s.now())
	}
	args = append(args, params...)
	if request.Cost > 0 {
		args = append(args, request.Cost, request.Bound)
	} else {
		args = append(args, request.Cost, request.Receipt.Period, request.Receipt.Number)
	}
	if p.termsKey != "" {
		args = append(args, p.terms)
	}
	n, err := s.run(ctx, p, args)
	if err != nil && redis.HasErrorPrefix(err, "NOSCRIPT") && ctx.Err() == nil {
		args[0], args[1] = "eval", p.script.Source
		n, err = s.run(ctx, p, args)
	}
	return n, err
}

// errDates means that between two calls a clock went on by more than the dates leave room for; nothing was done.
var errDates = errors.New("the server's clock is another than it was a moment ago")

// errReply means that something between here and the server changed the reply: the call has run.
var errReply = errors.New("the reply is not that of Headgate's script")

// run sends one command that runs the script, and tells the hook of it.
func (s *redisStore) run(ctx context.Context, p *plan, args []any) ([]int64, error) {
	run := s.runPlain
	if p.termsKey != "" {
		run = s.runGuarded
	}
	ctx, end := p.begin(ctx, args[0].(string))
	n, err := run(ctx, args)
	if end != nil {
		end(callOutcome(err))
	}
	return n, err
}

func (s *redisStore) runPlain(ctx context.Context, args []any) ([]int64, error) {
	cmd := redis.NewIntSliceCmd(ctx, args...)
	_ = s.client.Process(ctx, once{cmd}) // the error is the command's too
	return cmd.Result()
}

// runGuarded runs a script that may answer with the terms that count instead.
func (s *redisStore) runGuarded(ctx context.Context, args []any) ([]int64, error) {
	cmd := redis.NewCmd(ctx, args...)
	_ = s.client.Process(ctx, once{cmd})
	if text, err := cmd.Text(); err == nil {
		return nil, &movedError{text}
	}
	return cmd.Int64Slice()
}

// once is a command that go-redis does not send again after a network error: the first may have run.
type once struct{ redis.Cmder }

// NoRetry is what go-redis asks before it does, alone and in a pipeline; MOVED and ASK are followed all the same.
func (once) NoRetry() bool { return true }

func (s *redisStore) reset(ctx context.Context, key string) error {
	_, err := bounded(ctx,
		func(ctx context.Context) (int64, error) {
			cmd := redis.NewIntCmd(ctx, "del", key)
			_ = s.client.Process(ctx, once{cmd}) // a second time it would forget what was charged since
			return cmd.Result()
		},
		func(int64) {})
	if err != nil {
		return storeError("reset", key, err)
	}
	return nil
}

// bounded makes a call that may outlast its caller's context. A context that can end gets the call made on another
// goroutine, detached, so that the caller leaves when its context ends, whatever the client does; if the call is then
// answered after all, late has the answer.
func bounded[T any](ctx context.Context, call func(context.Context) (T, error), late func(T)) (T, error) {
	if ctx.Done() == nil {
		return call(ctx)
	}
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	var settled atomic.Bool // by the answer, or by the caller's leaving: whichever comes first
	detached, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer cancel()
		value, err := call(detached)
		if settled.CompareAndSwap(false, true) {
			answers <- answer{value, err}
		} else if err == nil {
			late(value)
		}
	}()
	select {
	case a := <-answers:
		return a.value, a.err
	case <-ctx.Done():
		if !settled.CompareAndSwap(false, true) {
			a := <-answers // it came just now
			return a.value, a.err
		}
		cancel() // a call that still waits for a connection is not made; one that was sent is answered all the same
		var none T
		return none, ctx.Err()
	}
}
