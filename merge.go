package headgate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate/internal/driver"
)

// Requests for a key that arrive while a call for it is under way go together in the next one, in the order in which
// they came, as databases commit transactions in groups. There is no timer: who comes alone is served at once, by a call
// on its own goroutine, and a queue grows only for as long as Redis takes to answer.

// patience is how long a call may be under way before those who come do not wait for it any more. Its connection is
// probably dead, and the client takes seconds to say so.
const patience = 250 * time.Millisecond

// maxBatch bounds what one call carries, and so for how long it holds up Redis.
const maxBatch = 256

// A line is what requests have in common that can share a call.
type line struct {
	plan *plan
	key  string
}

// lines has an entry for each line with a call under way.
type lines struct {
	mu    sync.Mutex
	calls map[line]underWay // nil if nothing is merged
}

// underWay is since when a call is, and who waits for it to end.
type underWay struct {
	since   time.Time
	waiting []*caller
}

// A caller is a request whose goroutine waits while another one makes the call.
type caller struct {
	ctx     context.Context
	request driver.Request
	answers chan answer
	state   atomic.Int32
}

// The states of a caller.
const (
	inLine  = iota
	sent    // on its way to Redis
	settled // by the answer, or by the caller's leaving: whichever comes first
)

// An answer is what becomes of a request.
type answer struct {
	driver.Reply
	err error
}

func newCaller(ctx context.Context, request driver.Request) *caller {
	return &caller{ctx: ctx, request: request, answers: make(chan answer, 1)}
}

// ask answers one request, by a call of its own or by one that it shares.
func (s *redisStore) ask(ctx context.Context, at line, request driver.Request) (driver.Reply, error) {
	c, batch := s.lines.join(ctx, at, request)
	switch {
	case batch != nil:
		go s.serve(at, batch)
		return c.wait()
	case c != nil:
		return c.wait()
	}
	n, err := s.call(ctx, at, []driver.Request{request}, nil)
	if batch := s.lines.next(at); batch != nil {
		go s.serve(at, batch)
	}
	if err != nil {
		return driver.Reply{}, err
	}
	return driver.ParseReply(n), nil
}

// join queues a request behind the call of its line that is under way. If there is none, or it has taken too long, a new
// one has begun: that of the batch, or if there is no batch either, of the caller itself, who cannot leave.
func (l *lines) join(ctx context.Context, at line, request driver.Request) (c *caller, batch []*caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	call, found := l.calls[at]
	idle := !found || time.Since(call.since) > patience
	if idle && len(call.waiting) == 0 && ctx.Done() == nil {
		l.begin(at, nil)
		return nil, nil
	}
	c = newCaller(ctx, request)
	call.waiting = append(call.waiting, c)
	if idle {
		return c, l.begin(at, call.waiting)
	}
	l.calls[at] = call
	return c, nil
}

// next takes those who wait now that a call has ended. If there are none the line is idle.
func (l *lines) next(at line) (batch []*caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if batch = l.begin(at, l.calls[at].waiting); batch == nil {
		delete(l.calls, at)
	}
	return batch
}

// begin notes that a call is under way, and takes along as many of those who wait as it carries. Under mu.
func (l *lines) begin(at line, waiting []*caller) (batch []*caller) {
	for len(waiting) > 0 && len(batch) < maxBatch {
		if c := waiting[0]; c.state.CompareAndSwap(inLine, sent) { // nobody asks for one who has left
			batch = append(batch, c)
		}
		waiting = waiting[1:]
	}
	if l.calls != nil {
		l.calls[at] = underWay{time.Now(), waiting}
	}
	return batch
}

// wait returns the answer, or leaves when the context ends, whatever the client does. What the call grants to one who
// has left is given back.
func (c *caller) wait() (driver.Reply, error) {
	var a answer
	select {
	case a = <-c.answers:
	case <-c.ctx.Done():
		switch c.state.Swap(settled) {
		case inLine:
			return driver.Reply{}, fmt.Errorf("%w: %w", errUnsent, c.ctx.Err())
		case sent:
			return driver.Reply{}, c.ctx.Err()
		}
		a = <-c.answers // it came just now
	}
	if a.err != nil && c.ctx.Err() != nil { // which may be why
		return driver.Reply{}, c.ctx.Err()
	}
	return a.Reply, a.err
}

// errUnsent is of callers who left while they waited for a call.
var errUnsent = errors.New("it was not sent")

// serve makes a call for a batch, and others for those who have come meanwhile, until the line is idle.
func (s *redisStore) serve(at line, batch []*caller) {
	for ; batch != nil; batch = s.lines.next(at) {
		s.serveBatch(at, batch)
	}
}

func (s *redisStore) serveBatch(at line, batch []*caller) {
	// The context of one who is alone goes along with the call, but does not end it once it was sent. If there are more
	// it is nobody's.
	ctx := context.Background()
	if len(batch) == 1 {
		ctx = context.WithoutCancel(batch[0].ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	requests := make([]driver.Request, len(batch))
	var callers []context.Context
	for i, c := range batch {
		requests[i] = c.request
		if len(batch) > 1 {
			callers = append(callers, c.ctx)
		} else { // a call that still waits for a connection is not made if its only caller leaves
			defer context.AfterFunc(c.ctx, cancel)()
		}
	}
	n, err := s.call(ctx, at, requests, callers)
	var late []driver.Request
	for i, c := range batch {
		a := answer{err: err}
		if err == nil {
			a.Reply = driver.ParseReply(n[i*driver.Integers:])
		}
		if c.state.CompareAndSwap(sent, settled) {
			c.answers <- a
		} else if err == nil && c.request.Cost > 0 && a.Wait >= 0 {
			late = append(late, driver.Request{Cost: -c.request.Cost, Receipt: a.Receipt})
		}
	}
	if late != nil {
		s.giveBackLate(context.WithoutCancel(ctx), at, late)
	}
}

// giveBackLate returns what was granted to callers who had left when the reply came.
func (s *redisStore) giveBackLate(ctx context.Context, at line, late []driver.Request) {
	ctx, cancel := context.WithTimeout(ctx, lateFor)
	defer cancel()
	// If this fails the permits drain as if used: nobody is over the limit for it.
	_ = at.plan.giveBack(func(p *plan) error {
		_, err := s.call(ctx, line{p, at.key}, late, nil)
		return err
	})
}
