package headgate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/headgate-go/headgate/internal/driver"
)

// Requests for a key that arrive while a call for it is under way go together in the next one, in the order in which
// they came, as databases commit transactions in groups. There is no timer: who comes alone is served at once, by a call
// on its own goroutine, and a queue grows only for as long as Redis takes to answer.

// patience is how long a call may be under way before nobody waits for it any more but those whose requests it carries.
// Its connection is probably dead, and the client takes seconds to say so.
const patience = 250 * time.Millisecond

// maxBatch bounds what one call carries, in decisions, and so for how long it holds up Redis.
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
	turns uint64            // calls begun so far

	rooms sync.Pool // that no batch uses
}

// underWay is the call that has a line, and who waits for it to end.
type underWay struct {
	turn  uint64 // its number among the calls begun: one that takes too long loses the line to another
	since time.Time
	queue *queue // nil if nobody waits
}

// ask answers one request, by a call of its own or by one that it shares.
func (s *redisStore) ask(ctx context.Context, at line, request driver.Request) (driver.Reply, error) {
	b, number, turn, begins := s.lines.join(ctx, at, request)
	if begins {
		go s.serve(at, b)
	}
	if b != nil {
		return s.lines.wait(ctx, b, number, request)
	}
	defer func() { // whatever becomes of this goroutine
		if b := s.lines.next(at, turn); b != nil {
			go s.serve(at, b)
		}
	}()
	replies, err := s.call(ctx, at, []driver.Request{request}, nil)
	if err != nil {
		return driver.Reply{}, err
	}
	return replies.At(0), nil
}

// join queues a request behind the call of its line that is under way, and returns its batch and its number there. If no
// call is under way, or that one has taken too long, a new one begins, which is to be made: of a batch, if the caller may
// leave, and otherwise by the caller, who gets no batch but the turn of the call.
func (l *lines) join(ctx context.Context, at line, request driver.Request) (b *batch, number int, turn uint64, begins bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	call, found := l.calls[at]
	if !found || call.queue == nil && time.Since(call.since) >= patience { // those who wait have their timer
		if ctx.Done() != nil {
			b = l.newBatch()
			b.add(ctx, request)
			b.depart()
		}
		turn = l.begin(at, nil)
		if b != nil {
			b.turn = turn
		}
		return b, 0, turn, b != nil
	}
	if call.queue == nil {
		call.queue = new(queue)
		call.queue.overdue = time.AfterFunc(patience-time.Since(call.since), func() { l.rescue(at) })
		l.calls[at] = call
	}
	b = l.last(call.queue)
	return b, b.add(ctx, request), 0, false
}

// begin notes that a call is under way, and who waits for it, which may be nil. Under mu.
func (l *lines) begin(at line, waiting *queue) (turn uint64) {
	if l.calls == nil {
		return 0
	}
	l.turns++
	since := time.Now() // before the timer, which must not find that it comes too early
	if waiting != nil {
		waiting.overdue = time.AfterFunc(patience, func() { l.rescue(at) })
	}
	l.calls[at] = underWay{turn: l.turns, since: since, queue: waiting}
	return l.turns
}

// next takes a batch of those who wait now that a call has ended. If there are none the line is idle.
func (l *lines) next(at line, turn uint64) (b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	call := l.calls[at]
	if call.turn != turn {
		return nil // another call has taken over the line
	}
	b, waiting := call.queue.next()
	if b == nil {
		delete(l.calls, at)
	} else {
		b.turn = l.begin(at, waiting)
	}
	return b
}

// rescue serves those who have waited too long for a call.
func (l *lines) rescue(at line) {
	l.mu.Lock()
	var b *batch
	if call, found := l.calls[at]; found && call.queue != nil && time.Since(call.since) >= patience {
		var waiting *queue
		if b, waiting = call.queue.next(); b != nil {
			b.turn = l.begin(at, waiting)
		} else {
			call.queue = nil // all have left; the call is still under way
			l.calls[at] = call
		}
	}
	l.mu.Unlock()
	if b != nil {
		l.serve(at, b)
	}
}

// wait returns the answer, or leaves when the context ends, whatever the client does. What the call grants to one who
// has left is given back.
func (l *lines) wait(ctx context.Context, b *batch, number int, request driver.Request) (driver.Reply, error) {
	if ctx.Done() == nil {
		<-b.done
	} else {
		select {
		case <-b.done:
		case <-ctx.Done():
			if request.Cost < 0 { // it is sent all the same, and only its caller does not wait
				return driver.Reply{}, ctx.Err()
			}
			switch l.leave(b, number) {
			case inLine:
				return driver.Reply{}, fmt.Errorf("%w: %w", errUnsent, ctx.Err())
			case sent:
				return driver.Reply{}, ctx.Err()
			case settled:
				<-b.done // it came just now
			}
		}
	}
	if b.err != nil && ctx.Err() != nil { // which may be why
		return driver.Reply{}, ctx.Err()
	}
	if b.err != nil {
		return driver.Reply{}, b.err
	}
	return b.replies.At(b.place(number)), nil
}

// leave notes that a caller has left, unless it has its answer, and tells when.
func (l *lines) leave(b *batch, number int) phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.phase != settled {
		if b.left == nil {
			b.left = make(map[int]bool)
		}
		b.left[number] = true
	}
	return b.phase
}

// settle keeps callers from leaving, and tells who has left since the batch was sent, in their order.
func (l *lines) settle(b *batch) (left []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.phase = settled
	return slices.Sorted(maps.Keys(b.left))
}

// errUnsent is of callers who left while they waited for a call.
var errUnsent = errors.New("it was not sent")

// serve makes a call for a batch, and others for those who have come meanwhile, until the line is idle.
func (s *redisStore) serve(at line, b *batch) {
	for ; b != nil; b = s.lines.next(at, b.turn) {
		several := len(b.requests) > 1
		s.serveBatch(at, b)
		if at.plan.hook == nil { // a hook may have kept the callers' slice, as links
			s.lines.leaveRoom(b)
		}
		if several {
			runtime.Gosched() // they may have more to ask, which goes together too
		}
	}
}

func (s *redisStore) serveBatch(at line, b *batch) {
	ctx, callers := context.Background(), b.callers // it is nobody's, if there are several
	if len(callers) == 1 {
		ctx, callers = undated{callers[0]}, nil
		if b.requests[0].Cost < 0 {
			ctx = context.WithoutCancel(ctx)
		}
	}
	b.replies, b.err = s.call(ctx, at, b.requests, callers)
	left := s.lines.settle(b)
	close(b.done)
	if b.err != nil {
		return
	}
	var all []late
	for _, number := range left {
		i := b.place(number)
		if reply := b.replies.At(i); reply.Wait >= 0 {
			back := driver.Request{Cost: -b.requests[i].Cost, Receipt: reply.Receipt}
			all = append(all, late{context.WithoutCancel(b.callers[i]), back})
		}
	}
	if all != nil {
		s.giveBackLate(at, all)
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
