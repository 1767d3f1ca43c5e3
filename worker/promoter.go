package worker

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/hibiken/asynq"
)

// tick is how often a promoter looks at a line whose next slot is near.
const tick = 20 * time.Millisecond

// held is how long a promoter has a line to itself while it looks; if it dies, another takes over then.
const held = time.Second

// idleFor is how long a promoter sleeps, at most, while others look after all there is.
const idleFor = 500 * time.Millisecond

// A promoter brings tasks back just before their slots. There is one in each server; they share the lines.
type promoter struct {
	t     *Throttle
	ctx   context.Context // ends with the promoter
	end   context.CancelFunc
	begin sync.Once
	ended chan struct{}
	poked chan struct{}
}

func newPromoter(t *Throttle) *promoter {
	p := &promoter{t: t, ended: make(chan struct{}), poked: make(chan struct{}, 1)}
	p.ctx, p.end = context.WithCancel(context.Background())
	return p
}

func (p *promoter) start() { p.begin.Do(func() { go p.run() }) }

// stop ends the promoter and waits for that.
func (p *promoter) stop() {
	p.end()
	p.begin.Do(func() { close(p.ended) }) // it never ran
	<-p.ended
}

// poke has it look at once.
func (p *promoter) poke() {
	select {
	case p.poked <- struct{}{}:
	default:
	}
}

func (p *promoter) run() {
	defer close(p.ended)
	var looked []any // triples for due.lua
	nothing := 0     // how often nothing was due
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		keys, until, wait, err := p.due(looked)
		looked = looked[:0]
		switch {
		case p.ctx.Err() != nil:
			return
		case err != nil:
			keys, wait = nil, idleFor // the forwarder still brings tasks back
		}
		for _, key := range keys {
			next, err := p.look(p.t.lineOf(key))
			if err != nil {
				next = held
			}
			looked = append(looked, key, until, next.Microseconds())
		}
		if len(keys) > 0 {
			nothing = 0
			continue
		}
		// Where another promoter is quicker each time, leave it to that one, and see now and then whether it lives.
		if nothing++; nothing > 1 {
			wait = max(wait, min(tick<<min(nothing, 10), idleFor))
		}
		timer.Reset(min(wait, idleFor))
		select {
		case <-timer.C:
		case <-p.poked:
			nothing = 0
		case <-p.ctx.Done():
			return
		}
	}
}

// due says which lines have been looked at, and takes those that are due.
func (p *promoter) due(looked []any) (keys []string, until string, wait time.Duration, err error) {
	args := append([]any{held.Microseconds(), p.t.ttl().Milliseconds()}, looked...)
	reply, err := p.t.scripts.due.Run(p.ctx, p.t.rdb, []string{p.t.waitingKey()}, args...).StringSlice()
	if err != nil {
		return nil, "", 0, err
	}
	us, err := strconv.ParseInt(reply[0], 10, 64)
	if err != nil || len(reply) < 2 {
		return nil, "", 0, errReply
	}
	wait = time.Duration(us) * time.Microsecond
	if us < 0 {
		wait = idleFor
	}
	return reply[2:], reply[1], wait, nil
}

// look brings back the tasks of a line whose slots are near, and says when to look again; 0 if nobody stands there.
func (p *promoter) look(l line) (next time.Duration, err error) {
	for range 20 { // the tickets of tasks that are gone make room for others
		d, err := l.limiter.Peek(p.ctx)
		if err != nil {
			return 0, err
		}
		members, next, err := l.release(p.ctx, d)
		if err != nil {
			return 0, err
		}
		gone, err := p.bringBack(l, members)
		if err != nil || gone == 0 {
			return next, err
		}
	}
	return tick, nil
}

// bringBack has released tasks come to a worker, and says how many are gone for good.
func (p *promoter) bringBack(l line, members []string) (gone int, err error) {
	var outcomes []any
	// A task that has just taken its ticket is active until asynq has put it away.
	for attempt, wait := 0, 5*time.Millisecond; len(members) > 0; attempt, wait = attempt+1, 2*wait {
		var again []string
		for _, m := range members {
			switch p.bring(m) {
			case taskGone:
				outcomes = append(outcomes, m, drop)
				gone++
			case taskComing:
				outcomes = append(outcomes, m, park)
			case taskActive:
				if attempt == 4 {
					outcomes = append(outcomes, m, park)
				} else {
					again = append(again, m)
				}
			case taskUnknown:
				outcomes = append(outcomes, m, back)
			case taskBrought:
			}
		}
		if members = again; len(members) > 0 {
			select {
			case <-time.After(wait):
			case <-p.ctx.Done():
				return gone, p.ctx.Err()
			}
		}
	}
	return gone, l.settle(p.ctx, outcomes)
}

// whereabouts is what became of a task that was to be brought back.
type whereabouts int

const (
	taskBrought whereabouts = iota
	taskComing              // it is pending already
	taskActive              // it is in a worker: still, or again
	taskGone                // it will never come
	taskUnknown             // Redis failed, or it has just changed
)

// bring has asynq run a task that waits. A task that has ended is left alone: RunTask would run it again. It may end
// between being seen to wait and RunTask only if the forwarder brings it back in just that moment; so one that the
// forwarder is about to bring back is left to it.
func (p *promoter) bring(member string) whereabouts {
	queue, id, ok := parseMember(member)
	if !ok {
		return taskGone
	}
	info, err := p.t.inspector.GetTaskInfo(queue, id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return taskGone
	case err != nil:
		return taskUnknown
	}
	switch info.State {
	case asynq.TaskStateActive:
		return taskActive
	case asynq.TaskStatePending:
		return taskComing
	case asynq.TaskStateRetry, asynq.TaskStateScheduled:
	default:
		return taskGone
	}
	if time.Until(info.NextProcessAt) <= time.Second {
		return taskComing
	}
	if p.t.inspector.RunTask(queue, id) != nil {
		return taskUnknown
	}
	return taskBrought
}
