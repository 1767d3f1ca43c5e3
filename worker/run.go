package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
)

// ErrPastDeadline is matched by the error of a task whose deadline (asynq.Deadline) passes before its slot. The task
// ends with it: asynq archives it, unrun.
var ErrPastDeadline = errors.New("worker: the task's deadline passes before its slot")

// late is how long after its slot a task may still start. Who wakes later claims again: else a process that stalled would
// run at once all that it had reserved.
const late = 10 * time.Millisecond

// unknownWait is how long a task goes away for, at least, while the pace of its line is not known.
const unknownWait = 30 * time.Second

// safety is how long after its expected slot asynq's forwarder brings a task back that no promoter has.
const safety = 5 * time.Second

// Middleware runs a task within the limit, or sends it away until its slot. Use it with asynq.ServeMux.Use, or around a
// handler. Middleware that is used before it sees each time that a task comes, those used after it only the run.
//
// What the handler returns is asynq's to judge, as ever. If Redis fails the task fails with the error, unless
// WithFailOpen says otherwise.
func (t *Throttle) Middleware(next asynq.Handler) asynq.Handler {
	t.setup.used.Store(true)
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		if t.opts.concerns != nil && !t.opts.concerns(ctx, task) {
			return next.ProcessTask(ctx, task)
		}
		c, err := t.call(ctx, task)
		if err != nil {
			t.notice(task, err)
			return err
		}
		ctx, traced := c.trace(ctx)
		err = errPanicked
		defer func() { traced.end(ctx, c, err) }()
		refusal := c.throttle(traced.throttling(ctx))
		traced.throttled(c, refusal)
		switch {
		case errors.Is(refusal, errCloned):
			err = nil
		case refusal == nil, t.opts.failOpen && isOutage(ctx, refusal):
			err = next.ProcessTask(ctx, task)
		default:
			t.notice(task, refusal)
			err = refusal
		}
		return err
	})
}

// isOutage tells whether an error says that Redis cannot serve, and not that the task was told to end, that it may go on as
// a clone, or that something was set up wrongly, which would be so for good.
func isOutage(ctx context.Context, err error) bool {
	_, ok := errors.AsType[*headgate.StoreError](err)
	if !ok || ctx.Err() != nil || errors.Is(err, errMayBeCloned) || errors.Is(err, errReply) {
		return false
	}
	reply, ok := errors.AsType[redis.Error](err)
	return !ok || slices.ContainsFunc(passing, func(code string) bool { return strings.Contains(reply.Error(), code) })
}

// passing are the replies of a Redis that starts, fails over, is full or busy. It may quote them inside others, from scripts.
var passing = []string{
	"LOADING ", "READONLY ", "CLUSTERDOWN ", "MASTERDOWN ", "TRYAGAIN ", "NOREPLICAS ", "OOM ", "MISCONF ", "BUSY ",
	"max number of clients",
}

// A call is one time that a task comes to a worker.
type call struct {
	line
	task      *asynq.Task
	queue, id string
	cost      int
	last      bool            // an error would archive the task
	inLine    bool            // it may hold a ticket
	drained   <-chan struct{} // closed when it shall wait no longer; nil if it cannot go away

	// What came of it, for tracing:
	stood  time.Duration // in line
	waited bool          // in place
	putOff time.Duration
	clone  string // the ID
}

func (t *Throttle) call(ctx context.Context, task *asynq.Task) (*call, error) {
	id, ok := asynq.GetTaskID(ctx)
	queue, _ := asynq.GetQueueName(ctx)
	if !ok {
		return nil, invalidf("the context is not that of an asynq task")
	}
	c := &call{task: task, queue: queue, id: id, cost: 1, drained: t.draining}
	key := ""
	if t.opts.key != nil {
		if key = t.opts.key(ctx, task); key == "" {
			return nil, invalidf("WithKey: the key of a task is empty")
		}
	}
	c.line = t.lineOf(key)
	if t.opts.cost != nil {
		if c.cost = t.opts.cost(ctx, task); c.cost < 1 {
			return nil, invalidf("WithCost: a task costs %d permits; it must be at least 1", c.cost)
		}
	}
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	c.last = retried >= most
	return c, nil
}

// throttle returns nil when the task may run: its permits are charged, and their slot has come.
func (c *call) throttle(ctx context.Context) error {
	found := c.inRedis(ctx)
	bouncing := found && c.mayBounce()
	if c.inLine = bouncing && !c.opts.dedicated; !c.inLine {
		mayLeave := bouncing || found && c.last // as a clone
		if !mayLeave {
			c.drained = nil
		}
		slot, err := c.claim(ctx, untilDeadline(ctx), anywhere)
		if mayLeave && errors.Is(err, errTooFar) {
			return c.goAway(ctx, standing{known: true}, slot)
		}
		return err
	}

	m := c.member()
	s, err := c.arrive(ctx, m, c.cost, !c.last)
	if err != nil {
		return err
	}
	var slot time.Time // of a claim that is refused
	if s.verdict == returned {
		c.stood = time.Since(time.UnixMicro(s.place))
	}
	if s.verdict == nobodyWaits || s.verdict == returned {
		bound, seat := min(c.opts.inPlace, untilDeadline(ctx)), anySeat
		if s.forced {
			bound, seat = untilDeadline(ctx), lastSeat
		}
		if s.verdict == nobodyWaits {
			seat = newcomersSeat
		}
		if slot, err = c.claim(ctx, bound, seat); !errors.Is(err, errTooFar) {
			return err
		}
		if !c.last {
			stand := c.join
			if s.forced && time.Until(slot) > bound {
				stand = c.yield
			}
			if s, err = stand(ctx, m, s.place, slot, c.cost); err != nil {
				return err
			}
		}
	}
	return c.goAway(ctx, s, slot)
}

func (c *call) member() string { return member(c.cost, c.queue, c.id) }

// untilDeadline is how long a task may wait in place: half of the time that it has, so that the other half is left to run.
func untilDeadline(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 24 * time.Hour
	}
	return max(time.Until(deadline)/2, 0)
}

// errTooFar says that the slot is too far off to wait for in place.
var errTooFar = errors.New("worker: the slot is too far off to wait for it in place")

// claim charges the task's permits and waits for their slot, for as long as bound. If the slot is further off, or no seat
// is free to wait for it, nothing is charged, the error is errTooFar, and the slot is when it would be.
func (c *call) claim(ctx context.Context, bound time.Duration, where seating) (slot time.Time, err error) {
	until := time.Now().Add(bound)
	for {
		leave, seated := c.sit(where)
		bound = 0
		if seated {
			bound = max(time.Until(until), 0)
		}
		slot, lateness, err := c.claimOnce(ctx, bound)
		leave()
		if err != nil || lateness <= late {
			return slot, err
		}
	}
}

// claimOnce claims once, and says how long after the slot the task is.
func (c *call) claimOnce(ctx context.Context, bound time.Duration) (slot time.Time, lateness time.Duration, err error) {
	r, err := c.limiter.ReserveN(ctx, c.cost, headgate.Within(bound))
	if denied, ok := errors.AsType[*headgate.DeniedError](err); ok {
		return time.Now().Add(bound + denied.Decision.RetryAfter), 0, errTooFar
	}
	if err != nil {
		return time.Time{}, 0, err
	}
	delay := r.Delay()
	slot = time.Now().Add(delay)
	if delay == 0 {
		return slot, 0, ctx.Err()
	}
	c.paces.saw(c.key, slot, c.cost)
	select {
	case <-r.Ready():
		c.waited, c.stood = true, c.stood+delay
		return slot, time.Since(slot), ctx.Err()
	case <-ctx.Done():
		_ = r.Cancel(ctx)
		return slot, 0, ctx.Err()
	case <-c.drained:
		_ = r.Cancel(ctx)
		return slot, 0, errTooFar
	}
}

// A seating says which seats a task may take to wait in place.
type seating int

const (
	anySeat       seating = iota
	newcomersSeat         // one of the first half: the others are for those who are brought back for their slots
	lastSeat              // there is one even where none is to wait
	anywhere              // it needs none
)

// sit takes a seat for a wait in place, if one is free, or none is needed. The function leaves it.
func (c *call) sit(where seating) (leave func(), seated bool) {
	select {
	case <-c.drained:
		return func() {}, false
	default:
	}
	if where == anywhere {
		return func() {}, true
	}
	if where == newcomersSeat && 2*len(c.seats) >= cap(c.seats) || where != lastSeat && c.opts.share == 0 {
		return func() {}, false
	}
	select {
	case c.seats <- struct{}{}:
		return func() { <-c.seats }, true
	default:
		return func() {}, false
	}
}

// goAway ends a call whose task does not run now. Its ticket is taken, unless it has to go on as a clone.
func (c *call) goAway(ctx context.Context, s standing, slot time.Time) error {
	putOff, err := c.awayFor(ctx, s, slot)
	switch {
	case err != nil && !c.last && c.inLine:
		return errors.Join(err, c.leave(ctx, c.member()))
	case err != nil:
		return err
	case c.last:
		return c.goOnAsClone(ctx, s, slot, putOff)
	}
	c.putOff = putOff
	return c.bounce(putOff)
}

// awayFor is after how long asynq brings the task back, if no promoter has, or why it never need: the limiter itself has told
// that the slot is past the deadline, or there is no time left to go away. What the line tells is no reason: tasks before
// this one may be deleted, or the rate raised.
func (c *call) awayFor(ctx context.Context, s standing, slot time.Time) (time.Duration, error) {
	off := max(time.Until(slot), 0)
	wait := max(s.wait, off)
	putOff := wait + wait/4 + safety // what the line tells is an estimate
	if !s.known {
		putOff = max(unknownWait, putOff)
	}
	putOff = min(putOff, c.opts.putOff)

	// Only if the context's deadline is near may there be one of the task's own: the other kind begins anew each time.
	deadline, ok := ctx.Deadline()
	if !ok || time.Until(deadline) > putOff+c.forwarder+2*time.Second {
		return putOff, nil
	}
	info, err := c.taskInfo(ctx, c.queue, c.id)
	if err != nil {
		return 0, c.failed(err)
	}
	if info.Deadline.IsZero() {
		return putOff, nil
	}
	left := time.Until(info.Deadline)
	if off >= left || left < time.Second {
		return 0, fmt.Errorf("%w: the slot is %v off, the deadline %v: %w", ErrPastDeadline,
			off.Round(time.Millisecond), left.Round(time.Millisecond), asynq.SkipRetry)
	}
	return max(min(putOff, left-c.forwarder-2*time.Second), 0), nil
}
