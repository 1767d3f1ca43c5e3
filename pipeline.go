package headgate

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// Calls for different keys that are made at the same time share connections: while a few are under way, those that come
// meanwhile go together in one pipeline, as soon as one of them has ended. Who comes alone notices nothing.

const (
	// fewCalls is how many calls and pipelines are under way before others wait for one of them: one that Redis works
	// on, and one that is on its way.
	fewCalls = 2
	// maxPipeline bounds the calls of a pipeline.
	maxPipeline = 128
)

// calls sends commands, alone or in pipelines.
type calls struct {
	client redis.UniversalClient
	alone  bool // send each by itself, whatever is under way

	mu       sync.Mutex
	underWay int
	progress time.Time // when a call began or ended last
	waiting  []*parcel
	overdue  *time.Timer // while somebody waits: sends them if what is under way takes too long
}

// A parcel is a command that waits to be sent.
type parcel struct {
	ctx  context.Context
	cmd  once
	done chan struct{} // closed when it has been answered, or has failed
}

// process sends a command once, and returns when it has its answer or its error.
func (c *calls) process(ctx context.Context, cmd redis.Cmder) {
	if c.alone {
		_ = c.client.Process(ctx, once{cmd}) // the error is the command's too
		return
	}
	c.mu.Lock()
	// What is under way for too long has met a dead connection, and holds up nobody else.
	if c.underWay >= fewCalls && time.Since(c.progress) < patience {
		p := &parcel{ctx, once{cmd}, make(chan struct{})}
		c.waiting = append(c.waiting, p)
		if c.overdue == nil {
			c.overdue = time.AfterFunc(patience, c.rescue)
		}
		c.mu.Unlock()
		<-p.done
		return
	}
	c.underWay++
	c.progress = time.Now()
	c.mu.Unlock()
	defer func() { // whatever becomes of this goroutine
		if batch := c.next(); batch != nil {
			go c.flush(batch)
		}
	}()
	_ = c.client.Process(ctx, once{cmd})
}

// rescue sends those who have waited for too long, beside what is under way.
func (c *calls) rescue() {
	c.mu.Lock()
	c.overdue = nil
	stuck := time.Since(c.progress) >= patience
	switch {
	case len(c.waiting) == 0:
	case stuck:
		c.underWay++
	default:
		c.overdue = time.AfterFunc(patience-time.Since(c.progress), c.rescue)
	}
	stuck = stuck && len(c.waiting) > 0
	c.mu.Unlock()
	if stuck {
		if batch := c.next(); batch != nil {
			c.flush(batch)
		}
	}
}

// next takes those who wait now that a call has ended, as many as a pipeline carries.
func (c *calls) next() (batch []*parcel) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress = time.Now()
	n := min(len(c.waiting), maxPipeline)
	if n == 0 {
		c.underWay--
		return nil
	}
	batch, c.waiting = c.waiting[:n:n], c.waiting[n:]
	if len(c.waiting) == 0 && c.overdue != nil {
		c.overdue.Stop()
		c.overdue = nil
	}
	return batch
}

// flush sends a pipeline, and others for those who have come meanwhile.
func (c *calls) flush(batch []*parcel) {
	for ; batch != nil; batch = c.next() {
		pipe := c.client.Pipeline()
		for _, p := range batch {
			if p.ctx.Err() != nil { // nobody waits for it any more
				p.cmd.SetErr(errUnsent)
			} else {
				_ = pipe.Process(p.ctx, p.cmd)
			}
		}
		_, _ = pipe.Exec(context.Background()) // each command has its own error
		for _, p := range batch {
			close(p.done)
		}
	}
}
