package headgate

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/internal/driver"
)

// Redis makes a Store that keeps limits in Redis 6 or later, or a server that speaks its protocol and runs its Lua:
// standalone, Sentinel, Cluster or Ring. The client stays the caller's, to configure and to close.
//
// Each decision is one call of one script on one key, which those that arrive at the same time share; where one server has
// all keys, a command carries such calls for up to 64 of them, each with an outcome of its own. A call that charges
// is sent once, whatever the client's MaxRetries says; it is repeated only after an answer that proves that it did not
// run: NOSCRIPT, and for up to two seconds LOADING and TRYAGAIN. The caller's context bounds each call, its deadline and
// its cancellation, whatever the client's ContextTimeoutEnabled says. A call whose caller has left goes on until the
// client's own timeouts end it, so that what it is granted can be given back.
//
// For a nil client, or one that is a nil pointer, it returns nil, which New refuses.
func Redis(client redis.UniversalClient, opts ...RedisOption) Store {
	if v := reflect.ValueOf(client); client == nil || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil
	}
	s := &redisStore{client: client, lines: lines{calls: make(map[line]underWay)}, outbox: outbox{client: client}}
	s.lines.serve = s.serve
	s.circuit.probe, s.circuit.base = s.probe, time.Now()
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

// Unbatched has each request make a call of its own, on a connection of its own. Without it, requests for one key that
// arrive while a call for it is under way share the next one, in the order of their arrival, and calls for different keys
// that are made at the same time share pipelines, and commands in them if the server says by HELLO that it stands alone.
// With many callers that is many times faster, the answers are the same, and one who comes alone notices nothing.
func Unbatched() RedisOption {
	return func(s *redisStore) { s.lines.calls, s.outbox.alone = nil, true }
}

// WithLogger has told when Redis is out, as a warning, and when it answers again. Decisions are not logged, and no text
// holds a key. Only limiters with WithFallback or WithStoreTimeout know of outages. No decision waits for the handler; if it
// panics, that line is lost. For nil, as without it, nothing is logged.
func WithLogger(logger *slog.Logger) RedisOption {
	return func(s *redisStore) { s.circuit.logger = logger }
}

type redisStore struct {
	client   redis.UniversalClient
	lines    lines
	outbox   outbox
	outboxes sync.Map // of a cluster's servers, by their addresses
	denials  *denials // nil if none are remembered
	circuit  circuit
	now      func() int64 // nil for the server's clock
	ahead    atomic.Int64 // how far the server's clock was seen to be ahead of this machine's, µs
}

// lateFor bounds the call that gives back what came too late.
const lateFor = 5 * time.Second

func (s *redisStore) source() Source { return SourceRedis }

func (s *redisStore) close(context.Context) error { return nil }

func (s *redisStore) decide(ctx context.Context, p *plan, key string, request driver.Request, life uint64) (g grant, err error) {
	err = s.decideInto(ctx, p, key, request, life, &g)
	return g, err
}

// decideInto is decide, and quicker where a denial is remembered.
func (s *redisStore) decideInto(ctx context.Context, p *plan, key string, request driver.Request, _ uint64, g *grant) (err error) {
	if o := s.circuit.outage.Load(); o != nil && request.Cost < 0 { // clean-up is not worth waiting for
		return &StoreError{Op: "give back", Err: o.err}
	}
	at := line{p, key}
	known, refused := s.denials.refuse(at, request, &g.Reply)
	if refused {
		g.store, g.plan, g.key = remembered{s}, p, key
		return nil
	}
	reply, err := s.ask(ctx, at, request)
	if err == nil {
		s.denials.learn(at, request, reply, known)
		*g = grant{Reply: reply, store: s, plan: p, key: key}
		return nil
	}
	if moved, ok := errors.AsType[*movedError](err); ok {
		return moved
	}
	op := "decide"
	if request.Cost < 0 {
		op = "give back"
	}
	return storeError(op, key, err)
}

// call runs the script once, for all requests in their order. A second attempt follows only where the first proves
// that nothing ran, or answers that nothing was done because this machine's clock is wrong: parameters that are dates then
// follow the server's. The hook is told of the callers that share the call.
func (s *redisStore) call(ctx context.Context, at line, requests []driver.Request, callers []context.Context) (replies driver.Replies, err error) {
	if s.circuit.watched() {
		first := s.circuit.begin()
		defer func() { s.circuit.end(first, at.plan.observer, at.key, err) }()
	}
	if slices.ContainsFunc(requests, func(r driver.Request) bool { return r.Cost < 0 }) {
		defer s.denials.forget(at.key)
	}
	params := at.plan.paramsAt(s.ahead.Load())
	n, err := s.send(ctx, at, params, requests, callers)
	if err == nil && len(n) == 1 && params.dated() && ctx.Err() == nil {
		if s.now == nil { // a client's clock is what the caller wants it to be, and it is the limiter that is ahead
			s.ahead.Store(n[0] - time.Now().UnixMicro())
		}
		if n, err = s.send(ctx, at, at.plan.renew(n[0]), requests, callers); err == nil && len(n) == 1 {
			err = errDates
		}
	}
	if err != nil {
		return driver.Replies{}, err
	}
	replies, ok := driver.ReadReplies(n, at.plan.rule, requests)
	if !ok {
		err = errReply
	}
	return replies, err
}

func (s *redisStore) send(ctx context.Context, at line, params *params, requests []driver.Request, callers []context.Context) ([]int64, error) {
	p := at.plan
	args := make([]any, 0, 5+len(params.args)+min(2*len(requests), 4)) // what equal charges take; the rarer ones grow it
	if p.shared == nil {
		args = append(args, "evalsha", p.sha1, 1, at.key)
	} else {
		args = append(args, "evalsha", p.sha1, 2, at.key, p.shared.key)
	}
	if s.now == nil {
		args = append(args, "")
	} else {
		args = append(args, s.now())
	}
	args = append(args, params.args...)
	args = driver.AppendArgs(args, requests)
	script := scriptCall{&p.observer, p.rule.Name(), p.script.Source, params, callers}
	if p.shared == nil {
		return eval(ctx, script, args, s.run)
	}
	return eval(ctx, script, append(args, p.terms), s.runGuarded)
}

// A scriptCall is what is to be known of a call beside its arguments.
type scriptCall struct {
	*observer
	algorithm string // in the script; may be empty
	source    string
	params    *params           // what it decides by
	callers   []context.Context // who share it, if there is more than one
}

// until is when the last of those who share the call asks no more, if all of them said.
func (s scriptCall) until(ctx context.Context) (last time.Time, ok bool) {
	callers := s.callers
	if len(callers) == 0 {
		callers = []context.Context{ctx}
	}
	for _, caller := range callers {
		until, said := caller.Value(lastAttempt{}).(time.Time)
		if !said {
			return time.Time{}, false
		}
		if until.After(last) {
			last = until
		}
	}
	return last, true
}

// eval runs a script, whose EVALSHA the arguments are. It is sent again only after an answer that proves that it did not
// run: NOSCRIPT, and for two seconds LOADING (the server has just started) and TRYAGAIN (a cluster is moving the keys).
// The hook is told of each.
func eval[T any](ctx context.Context, script scriptCall, args []any, run func(context.Context, scriptCall, []any) (T, error)) (T, error) {
	reply, err := observed(ctx, script, args, run)
	var pauses *backoff.ExponentialBackOff
	for err != nil && ctx.Err() == nil {
		switch {
		case redis.HasErrorPrefix(err, "NOSCRIPT") && args[0] == "evalsha":
			args[0], args[1] = "eval", script.source
		case redis.HasErrorPrefix(err, "LOADING"), redis.HasErrorPrefix(err, "TRYAGAIN"):
			if pauses == nil {
				pauses = backoff.NewExponentialBackOff(backoff.WithInitialInterval(5*time.Millisecond), backoff.WithMaxElapsedTime(2*time.Second))
			}
			pause := pauses.NextBackOff()
			if until, ok := script.until(ctx); pause == backoff.Stop || ok && time.Until(until) < pause {
				return reply, err
			}
			select {
			case <-ctx.Done():
				return reply, err
			case <-time.After(pause):
			}
		default:
			return reply, err
		}
		reply, err = observed(ctx, script, args, run)
	}
	return reply, err
}

// observed tells the hook, if there is one, of a command.
func observed[T any](ctx context.Context, script scriptCall, args []any, run func(context.Context, scriptCall, []any) (T, error)) (T, error) {
	if script.hook == nil {
		reply, err := run(ctx, script, args)
		return reply, fromScript(err)
	}
	command, _ := args[0].(string)
	ctx, end := script.tell(ctx, Operation{
		Verb: VerbCall, Algorithm: script.algorithm, Command: strings.ToUpper(command), Links: script.callers,
	})
	reply, err := run(ctx, script, args)
	err = fromScript(err)
	switch _, moved := errors.AsType[*movedError](err); {
	case end == nil:
	case moved: // that the terms are others is an answer and no error
		end(Outcome{})
	default:
		end(Outcome{Err: err})
	}
	return reply, err
}

// errDates means that between two calls a clock went on by more than the dates leave room for; nothing was done.
var errDates = errors.New("the server's clock is another than it was a moment ago")

// errReply means that something between here and the server changed the reply: the call has run.
var errReply = errors.New("the reply is not that of Headgate's script")

func (s *redisStore) run(ctx context.Context, script scriptCall, args []any) ([]int64, error) {
	cmd := redis.NewIntSliceCmd(ctx, args...)
	s.outboxFor(ctx, args[3].(string)).process(ctx, script, cmd)
	return cmd.Result()
}

// runGuarded runs a script that may answer with the terms that count instead.
func (s *redisStore) runGuarded(ctx context.Context, script scriptCall, args []any) ([]int64, error) {
	cmd := redis.NewCmd(ctx, args...)
	s.outboxFor(ctx, args[3].(string)).process(ctx, script, cmd)
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
	return s.resetThen(ctx, key, func() {})
}

// resetThen is reset, and calls done when it has been done, whether or not its caller has left.
func (s *redisStore) resetThen(ctx context.Context, key string, done func()) error {
	_, err := bounded(ctx, func(ctx context.Context) (int64, error) {
		cmd := redis.NewIntCmd(ctx, "del", key)
		defer done()
		defer s.denials.forget(key)          // when it has been done, whether or not its caller has left
		_ = s.client.Process(ctx, once{cmd}) // a second time it would forget what was charged since
		return cmd.Result()
	})
	if err != nil {
		return storeError("reset", key, err)
	}
	return nil
}

// probe asks Redis whether it serves, by writing a key of nobody's in a hash slot that was not served: another node of a
// cluster may answer all the while. It does not while too many others hang.
func (s *redisStore) probe(ctx context.Context, slot string) error {
	underWay := &s.circuit.probes
	if underWay.Add(1) > fewProbes {
		underWay.Add(-1)
		return errSlow
	}
	_, err := bounded(ctx, func(ctx context.Context) (string, error) {
		defer underWay.Add(-1)
		cmd := redis.NewStatusCmd(ctx, "set", slot+":probe", "", "px", 1)
		_ = s.client.Process(ctx, once{cmd})
		return cmd.Result()
	})
	return err
}

// bounded makes a call whose caller leaves when the context ends, whatever the client does: on another goroutine, where it
// is not made if it still waits for a connection then, and otherwise goes on.
func bounded[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	if ctx.Done() == nil {
		return call(ctx)
	}
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	go func() {
		value, err := call(undated{ctx})
		results <- result{value, err}
	}()
	select {
	case r := <-results:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
