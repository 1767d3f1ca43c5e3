package headgate

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// Requests for a key that arrive while a call for it is under way go together in the next one, in the order in which
// they came, as databases commit transactions in groups. There is no timer: who comes alone is served at once, by a call
// on its own goroutine, and a queue grows only for as long as Redis takes to answer.

// patience is how long a call may be under way before nobody waits for it any more but those whose requests it carries.
// Its connection is probably dead, and the client takes seconds to say so.
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
	serve func(line, []*caller) // makes calls for a batch and for those who come meanwhile

	mu    sync.Mutex
	calls map[line]underWay // nil if nothing is merged
}

// underWay is since when a call is, and who waits for it to end.
type underWay struct {
	since   time.Time
	waiting []*caller
	overdue *time.Timer // while somebody waits: serves them if the call takes too long
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
	if batch != nil {
		go s.serve(at, batch)
	}
	if c != nil {
		return c.wait()
	}
	defer func() { // whatever becomes of this goroutine
		if batch := s.lines.next(at); batch != nil {
			go s.serve(at, batch)
		}
	}()
	n, err := s.call(ctx, at, []driver.Request{request}, nil)
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
	idle := !found || time.Since(call.since) >= patience
	if idle && len(call.waiting) == 0 && ctx.Done() == nil {
		l.begin(at, nil)
		return nil, nil
	}
	c = newCaller(ctx, request)
	call.waiting = append(call.waiting, c)
	if idle {
		return c, l.begin(at, call.waiting)
	}
	if call.overdue == nil {
		call.overdue = time.AfterFunc(patience-time.Since(call.since), func() { l.rescue(at) })
	}
	l.calls[at] = call
	return c, nil
}

// rescue serves those who have waited too long for a call.
func (l *lines) rescue(at line) {
	l.mu.Lock()
	var batch []*caller
	if call, found := l.calls[at]; found && time.Since(call.since) >= patience {
		batch = l.begin(at, call.waiting)
	}
	l.mu.Unlock()
	if batch != nil {
		l.serve(at, batch)
	}
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
	if l.calls == nil {
		return batch
	}
	if timer := l.calls[at].overdue; timer != nil {
		timer.Stop()
	}
	call := underWay{since: time.Now(), waiting: waiting}
	if len(waiting) > 0 {
		call.overdue = time.AfterFunc(patience, func() { l.rescue(at) })
	}
	l.calls[at] = call
	return batch
}

// wait returns the answer, or leaves when the context ends, whatever the client does. What the call grants to one who
// has left is given back.
func (c *caller) wait() (driver.Reply, error) {
	var a answer
	select {
	case a = <-c.answers:
	case <-c.ctx.Done():
		if c.request.Cost < 0 { // it is sent all the same, and only its caller does not wait
			return driver.Reply{}, c.ctx.Err()
		}
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
	ctx := context.Background() // it is nobody's, if there are several
	var callers []context.Context
	if c := batch[0]; len(batch) > 1 {
		for _, c := range batch {
			callers = append(callers, c.ctx)
		}
	} else if c.request.Cost > 0 {
		ctx = undated{c.ctx}
	} else {
		ctx = context.WithoutCancel(c.ctx)
	}
	requests := make([]driver.Request, len(batch))
	for i, c := range batch {
		requests[i] = c.request
	}
	n, err := s.call(ctx, at, requests, callers)
	var late []late
	for i, c := range batch {
		a := answer{err: err}
		if err == nil {
			a.Reply = driver.ParseReply(n[i*driver.Integers:])
		}
		if c.state.CompareAndSwap(sent, settled) {
			c.answers <- a
		} else if err == nil && a.Wait >= 0 {
			late = append(late, newLate(c, a.Receipt))
		}
	}
	if late != nil {
		s.giveBackLate(at, late)
	}
}

// undated is the context of a call's only caller, without its deadline. If it ends, a call that still waits for a
// connection is not made; one that was sent is answered all the same, where a client that heeds deadlines would let go of
// it.
type undated struct{ context.Context }

// Deadline implements context.Context.
func (undated) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// late is what was granted to a caller who had left when the reply came.
type late struct {
	ctx     context.Context
	request driver.Request // to give it back
}

func newLate(c *caller, receipt algos.Receipt) late {
	return late{context.WithoutCancel(c.ctx), driver.Request{Cost: -c.request.Cost, Receipt: receipt}}
}

// giveBackLate returns it, and tells the hook of each.
func (s *redisStore) giveBackLate(at line, all []late) {
	ends := make([]func(Outcome), len(all))
	requests := make([]driver.Request, len(all))
	callers := make([]context.Context, len(all))
	for i, l := range all {
		requests[i], callers[i] = l.request, l.ctx
		if at.plan.hook != nil {
			callers[i], ends[i] = at.plan.tell(l.ctx, Operation{
				Verb: VerbCancel, Algorithm: at.plan.rule.Name(), Cost: int(-l.request.Cost), Links: []context.Context{l.ctx},
			})
		}
	}
	ctx := callers[0]
	if len(all) > 1 {
		ctx = context.Background()
	} else {
		callers = nil
	}
	ctx, cancel := context.WithTimeout(ctx, lateFor)
	defer cancel()
	// If this fails the permits drain as if used: nobody is over the limit for it.
	var n []int64
	err := at.plan.giveBack(func(p *plan) (err error) {
		n, err = s.call(ctx, line{p, at.key}, requests, callers)
		return err
	})
	for i, end := range ends {
		if end == nil {
			continue
		}
		o := Outcome{Err: err}
		if err == nil && n != nil {
			o.Returned = int(driver.ParseReply(n[i*driver.Integers:]).Wait)
		}
		if err != nil {
			o.Err = storeError("give back", at.key, err)
		}
		end(o)
	}
}
