package worker

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// tick is how often a promoter looks at a line whose next slot is near.
const tick = 20 * time.Millisecond

// held is how long a promoter has a line to itself while it looks; if it dies, another takes over then.
const held = time.Second

// idleFor is how long a promoter sleeps, at most, while others look after all there is.
const idleFor = 500 * time.Millisecond

// Lines whose slots are far off are looked at once a second, and less often if there are many: once for each tick for all
// of them, and each at least once in farAtMost. A rate that was raised, or permits that came back, are noticed then.
const (
	farAtLeast = time.Second
	farAtMost  = 30 * time.Second
)

// endsWithin is how long a promoter has to end; it takes longer if Redis does not answer.
const endsWithin = 2 * time.Second

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

// stop ends the promoter and waits for that, but not for long.
func (p *promoter) stop() {
	p.end()
	p.begin.Do(func() { close(p.ended) }) // it never ran
	select {
	case <-p.ended:
	case <-time.After(endsWithin):
	}
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
		keys, until, lines, wait, err := p.due(looked)
		looked = looked[:0]
		switch {
		case p.ctx.Err() != nil:
			return
		case err != nil:
			keys, wait = nil, idleFor // the forwarder still brings tasks back
		}
		far := min(max(time.Duration(lines)*tick, farAtLeast), farAtMost)
		for _, key := range keys {
			next, err := p.look(p.t.lineOf(key), far)
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

// due says which lines have been looked at, and takes those that are due, of so many that there are.
func (p *promoter) due(looked []any) (keys []string, until string, lines int, wait time.Duration, err error) {
	args := append([]any{held.Microseconds(), p.t.ttl().Milliseconds()}, looked...)
	reply, err := p.t.scripts.due.Run(p.ctx, p.t.rdb, []string{p.t.waitingKey()}, args...).StringSlice()
	if err != nil {
		return nil, "", 0, 0, err
	}
	if len(reply) < 3 {
		return nil, "", 0, 0, errReply
	}
	us, err := strconv.ParseInt(reply[0], 10, 64)
	if err != nil {
		return nil, "", 0, 0, errReply
	}
	if lines, err = strconv.Atoi(reply[1]); err != nil {
		return nil, "", 0, 0, errReply
	}
	wait = time.Duration(us) * time.Microsecond
	if us < 0 {
		wait = idleFor
	}
	return reply[3:], reply[2], lines, wait, nil
}

// look brings back the tasks of a line whose slots are near, and says when to look again; 0 if nobody stands there.
func (p *promoter) look(l line, far time.Duration) (next time.Duration, err error) {
	for range 20 { // the tickets of tasks that do not come make room for others
		d, err := l.limiter.Peek(p.ctx)
		if err != nil {
			return 0, err
		}
		members, next, err := l.release(p.ctx, d, far)
		if err != nil {
			return 0, err
		}
		absent, gone, err := p.bringBack(l, members)
		if err != nil || absent == 0 {
			return next, err
		}
		if gone == len(members) {
			if err := p.purge(l); err != nil {
				return 0, err
			}
		}
	}
	return tick, nil
}

// purge drops the tickets, among the first thousand, whose tasks asynq does not have any more: where one was deleted many were.
func (p *promoter) purge(l line) error {
	members, err := p.t.rdb.ZRangeByScore(p.ctx, l.keys[0], &redis.ZRangeBy{Min: "0", Max: "+inf", Count: 1000}).Result()
	if err != nil || len(members) == 0 {
		return l.failed(err)
	}
	there := make([]*redis.IntCmd, len(members))
	if _, err := p.t.rdb.Pipelined(p.ctx, func(pipe redis.Pipeliner) error {
		for i, m := range members {
			queue, id, _ := parseMember(m)
			there[i] = pipe.Exists(p.ctx, taskKey(queue, id))
		}
		return nil
	}); err != nil {
		return l.failed(err)
	}
	var outcomes []any
	for i, m := range members {
		if there[i].Val() == 0 {
			outcomes = append(outcomes, m, drop)
		}
	}
	return l.settle(p.ctx, outcomes)
}

// bringBack has released tasks come to a worker, and says how many of them do not come now, and how many of those never.
func (p *promoter) bringBack(l line, members []string) (absent, gone int, err error) {
	var outcomes []any
	settle := func(member, outcome string) { outcomes = append(outcomes, member, outcome) }
	// A task that has just taken its ticket is active until asynq has put it away.
	for attempt, wait := 0, 5*time.Millisecond; len(members) > 0; attempt, wait = attempt+1, 2*wait {
		var again []string
		for _, m := range members {
			if p.ctx.Err() != nil { // others may bring it back
				settle(m, back)
				continue
			}
			switch p.t.bring(p.ctx, m) {
			case taskGone:
				settle(m, drop)
				absent++
				gone++
			case taskComing:
				settle(m, park)
			case taskActive:
				if attempt == 4 {
					settle(m, later)
					absent++
				} else {
					again = append(again, m)
				}
			case taskUnknown:
				settle(m, back)
			case taskBrought:
			}
		}
		if members = again; len(members) > 0 {
			select {
			case <-time.After(wait):
			case <-p.ctx.Done():
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), endsWithin)
	defer cancel()
	return absent, gone, l.settle(ctx, outcomes)
}
