package headgate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
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
	serve func(line, *batch) // makes calls for a batch and for those who come meanwhile

	mu    sync.Mutex
	calls map[line]underWay // nil if nothing is merged
}

// underWay is since when a call is, and who waits for it to end.
type underWay struct {
	since time.Time
	queue *queue // nil if nobody waits
}

// A queue is those who wait for a call to end.
type queue struct {
	batches []*batch    // none is empty; the last one takes more callers
	overdue *time.Timer // serves them if the call takes too long
}

// A batch is callers whose requests go in one call.
type batch struct {
	callers []*caller
	done    chan struct{} // closed when the call has ended, with:
	replies driver.Replies
	err     error
}

// A caller is a request whose goroutine waits while another one makes the call.
type caller struct {
	ctx     context.Context
	request driver.Request
	batch   *batch
	place   int // of the request in the call
	state   atomic.Int32
}

// The states of a caller.
const (
	inLine  = iota
	sent    // on its way to Redis
	settled // by the answer, or by the caller's leaving: whichever comes first
)

// ask answers one request, by a call of its own or by one that it shares.
func (s *redisStore) ask(ctx context.Context, at line, request driver.Request) (driver.Reply, error) {
	c, b := s.lines.join(ctx, at, request)
	if b != nil {
		go s.serve(at, b)
	}
	if c != nil {
		return c.wait()
	}
	defer func() { // whatever becomes of this goroutine
		if b := s.lines.next(at); b != nil {
			go s.serve(at, b)
		}
	}()
	replies, err := s.call(ctx, at, []driver.Request{request}, nil)
	if err != nil {
		return driver.Reply{}, err
	}
	return replies.At(0), nil
}

// join queues a request behind the call of its line that is under way. If there is none, or it has taken too long, a new
// one has begun: that of the batch, or if there is no batch either, of the caller itself, who cannot leave.
func (l *lines) join(ctx context.Context, at line, request driver.Request) (c *caller, b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	call, found := l.calls[at]
	idle := !found || call.queue == nil && time.Since(call.since) >= patience // those who wait have their timer
	if idle && ctx.Done() == nil {
		l.begin(at, nil)
		return nil, nil
	}
	c = &caller{ctx: ctx, request: request}
	if idle {
		q := new(queue)
		q.add(c)
		return c, l.begin(at, q)
	}
	if call.queue == nil {
		call.queue = new(queue)
		call.queue.overdue = time.AfterFunc(patience-time.Since(call.since), func() { l.rescue(at) })
		l.calls[at] = call
	}
	call.queue.add(c)
	return c, nil
}

// add has a caller wait with the others.
func (q *queue) add(c *caller) {
	last := len(q.batches) - 1
	if last < 0 || len(q.batches[last].callers) == maxBatch {
		q.batches = append(q.batches, &batch{done: make(chan struct{})})
		last++
	}
	c.batch = q.batches[last]
	c.batch.callers = append(c.batch.callers, c)
}

// rescue serves those who have waited too long for a call.
func (l *lines) rescue(at line) {
	l.mu.Lock()
	var b *batch
	if call, found := l.calls[at]; found && call.queue != nil && time.Since(call.since) >= patience {
		b = l.begin(at, call.queue)
	}
	l.mu.Unlock()
	if b != nil {
		l.serve(at, b)
	}
}

// next takes those who wait now that a call has ended. If there are none the line is idle.
func (l *lines) next(at line) (b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b = l.begin(at, l.calls[at].queue); b == nil {
		delete(l.calls, at)
	}
	return b
}

// begin notes that a call is under way, and takes along the first batch of those who wait, who may be nil. Under mu.
func (l *lines) begin(at line, q *queue) (b *batch) {
	if q != nil {
		if q.overdue != nil {
			q.overdue.Stop()
		}
		for len(q.batches) > 0 && b == nil {
			if q.batches[0].depart() {
				b = q.batches[0]
			}
			q.batches = q.batches[1:]
		}
		if len(q.batches) == 0 {
			q = nil
		}
	}
	if l.calls == nil {
		return b
	}
	if q != nil {
		q.overdue = time.AfterFunc(patience, func() { l.rescue(at) })
	}
	l.calls[at] = underWay{since: time.Now(), queue: q}
	return b
}

// depart keeps those who are still there: nobody asks for one who has left. It tells whether there are any.
func (b *batch) depart() bool {
	all := b.callers
	b.callers = b.callers[:0]
	for _, c := range all {
		if c.state.CompareAndSwap(inLine, sent) {
			c.place = len(b.callers)
			b.callers = append(b.callers, c)
		}
	}
	return len(b.callers) > 0
}

// wait returns the answer, or leaves when the context ends, whatever the client does. What the call grants to one who
// has left is given back.
func (c *caller) wait() (driver.Reply, error) {
	select {
	case <-c.batch.done:
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
		<-c.batch.done // it came just now
	}
	if err := c.batch.err; err != nil {
		if c.ctx.Err() != nil { // which may be why
			err = c.ctx.Err()
		}
		return driver.Reply{}, err
	}
	return c.batch.replies.At(c.place), nil
}

// errUnsent is of callers who left while they waited for a call.
var errUnsent = errors.New("it was not sent")

// serve makes a call for a batch, and others for those who have come meanwhile, until the line is idle.
func (s *redisStore) serve(at line, b *batch) {
	for ; b != nil; b = s.lines.next(at) {
		s.serveBatch(at, b)
		if len(b.callers) > 1 {
			runtime.Gosched() // they may have more to ask, which goes together too
		}
	}
}

func (s *redisStore) serveBatch(at line, b *batch) {
	ctx := context.Background() // it is nobody's, if there are several
	var callers []context.Context
	if c := b.callers[0]; len(b.callers) > 1 {
		callers = make([]context.Context, len(b.callers))
	} else if c.request.Cost > 0 {
		ctx = undated{c.ctx}
	} else {
		ctx = context.WithoutCancel(c.ctx)
	}
	requests := make([]driver.Request, len(b.callers))
	for i, c := range b.callers {
		requests[i] = c.request
		if callers != nil {
			callers[i] = c.ctx
		}
	}
	b.replies, b.err = s.call(ctx, at, requests, callers)
	var late []late
	for i, c := range b.callers {
		if !c.state.CompareAndSwap(sent, settled) && b.err == nil {
			if reply := b.replies.At(i); reply.Wait >= 0 {
				late = append(late, newLate(c, reply.Receipt))
			}
		}
	}
	close(b.done)
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
	var replies driver.Replies
	called := false
	err := at.plan.giveBack(func(p *plan) (err error) {
		replies, err = s.call(ctx, line{p, at.key}, requests, callers)
		called = err == nil
		return err
	})
	for i, end := range ends {
		if end == nil {
			continue
		}
		o := Outcome{Err: err}
		if err == nil && called {
			o.Returned = int(replies.At(i).Wait)
		}
		if err != nil {
			o.Err = storeError("give back", at.key, err)
		}
		end(o)
	}
}
