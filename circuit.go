package headgate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
)

const (
	// fewFailures in a row, without an answer for silence, mean that Redis is out: one connection that breaks, or one node
	// of a cluster whose others answer, does not.
	fewFailures = 3
	silence     = 100 * time.Millisecond
	// The pauses between probes grow from the first to the longest; each is up to a half longer or shorter.
	firstPause, longestPause = 100 * time.Millisecond, time.Second
	// probeFor is how long a probe may take before the next one is made, of which at most fewProbes are under way: a client
	// lets go of a dead connection after its own timeouts.
	probeFor, fewProbes = time.Second, 3
	// idleFor is after how long without a decision nobody looks for Redis any more, until the next decision, and after how
	// long failures are no longer in a row.
	idleFor = time.Minute
)

// errOut is of calls that are not made, because Redis is out.
var errOut = errors.New("Redis is out, and is not asked until it answers a probe")

// A circuit knows whether Redis is out, for all limiters of one store that fall back. While it is, they do not ask Redis,
// and one goroutine looks for its return. Any answer, to whatever limiter, ends the outage.
type circuit struct {
	probe  func(ctx context.Context, slot string) error
	logger *slog.Logger // may be nil
	base   time.Time    // instants are ns since then, which no change of the machine's clock moves

	users    atomic.Int32 // limiters that fall back and are not closed
	failures atomic.Int32 // since the last answer
	asked    atomic.Int64 // when the first call was made that nothing has been answered since, ns since base; 0 if none
	erred    atomic.Int64 // when a call failed last, ns since base
	outage   atomic.Pointer[outage]
	probing  atomic.Bool
	probes   atomic.Int32 // under way, of this prober's or of one that has ended
	used     atomic.Int64 // when a decision was made without Redis, ns since base

	mu    sync.Mutex
	slow  time.Duration      // the longest time that one of the limiters waits for Redis
	stop  context.CancelFunc // ends the prober; nil if there is none
	ended chan struct{}      // closed when the last prober has ended

	news    []func() // for the hook and the logger, which may use a limiter themselves and are told in order, outside mu
	telling bool
}

// An outage lasts from when Redis is found not to answer until it does.
type outage struct {
	since time.Time
	err   error  // of calls that are not made meanwhile
	slot  string // what a key begins with that lies where the one lies that was not served
	over  chan struct{}
	end   func(Outcome) // the hook's, once it was told; may be nil
}

// join counts a limiter that waits for Redis for so long, and leave forgets it. When the last one leaves, the prober ends;
// leave waits for that.
func (c *circuit) join(timeout time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slow = max(c.slow, timeout)
	c.users.Add(1)
}

func (c *circuit) leave(ctx context.Context) error {
	if c.users.Add(-1) > 0 {
		return nil
	}
	c.mu.Lock()
	if c.users.Load() == 0 {
		c.slow = 0
	}
	c.failures.Store(0)
	if o := c.outage.Swap(nil); o != nil {
		c.finish(o)
	}
	c.rest()
	ended := c.ended
	c.tell()
	c.mu.Unlock()
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ns is this instant, ns since base: never 0.
func (c *circuit) ns() int64 { return int64(time.Since(c.base)) + 1 }

// watched tells whether anybody wants to know how calls end.
func (c *circuit) watched() bool { return c.users.Load() > 0 }

// begin notes that a call is made, and returns when, if it is the first one that is not answered; else -1.
func (c *circuit) begin() (first int64) {
	asked := c.asked.Load()
	if asked == 0 || c.ns()-max(asked, c.erred.Load()) > int64(idleFor) { // what failed so long ago says nothing of now
		if now := c.ns(); c.asked.CompareAndSwap(asked, now) {
			c.failures.Store(0)
			return now
		}
	}
	return -1
}

// end notes how a call has ended, for which begin returned first.
func (c *circuit) end(first int64, told observer, key string, err error) {
	switch {
	case answers(err):
		c.answered()
	case isOutage(err):
		c.failed(told, key, err)
	default: // it was not made, as of a caller who left while it waited for a connection, and tells nothing
		c.asked.CompareAndSwap(first, 0)
	}
}

// answers tells whether an error, or none, proves that Redis is there and serves.
func answers(err error) bool {
	_, moved := errors.AsType[*movedError](err)
	return err == nil || moved || replyOf(err) != nil && !isOutage(err)
}

func (c *circuit) answered() {
	if c.asked.Load() != 0 {
		c.asked.Store(0)
	}
	if c.failures.Load() != 0 {
		c.failures.Store(0)
	}
	if c.outage.Load() != nil {
		c.over(true)
	}
}

// over ends the outage, if there is one. It is logged if Redis answered.
func (c *circuit) over(answered bool) {
	c.mu.Lock()
	if o := c.outage.Swap(nil); o != nil {
		c.rest()
		c.finish(o)
		if c.logger != nil && answered {
			lasted := time.Since(o.since)
			c.news = append(c.news, func() { c.logger.Info("headgate: Redis answers again", "out_for", lasted) })
		}
	}
	c.tell()
	c.mu.Unlock()
}

// failed counts a call that failed, or that somebody has waited for in vain. If there are several and Redis has answered
// none for a while, it is out: if they were only slow, for longer than any of the limiters waits.
func (c *circuit) failed(told observer, key string, cause error) {
	c.erred.Store(c.ns())
	if c.failures.Add(1) < fewFailures || c.outage.Load() != nil {
		return
	}
	c.mu.Lock()
	unanswered := silence
	if errors.Is(cause, errSlow) {
		unanswered = max(silence, c.slow)
	}
	asked := c.asked.Load()
	if c.outage.Load() == nil && c.watched() && asked != 0 && c.ns()-asked >= int64(unanswered) {
		c.open(told, key, redact(cause, key))
	}
	c.tell()
	c.mu.Unlock()
}

// open begins an outage. Under mu.
func (c *circuit) open(told observer, key string, cause error) {
	o := &outage{since: time.Now(), err: fmt.Errorf("%w: %w", errOut, cause), slot: slotOf(key), over: make(chan struct{})}
	c.outage.Store(o)
	c.used.Store(c.ns())
	c.look(o)
	c.news = append(c.news, func() {
		if told.hook != nil {
			_, o.end = told.tell(context.Background(), Operation{Verb: VerbOutage})
		}
		if c.logger != nil {
			c.logger.Warn("headgate: Redis is out", "cause", cause.Error())
		}
	})
}

// finish ends an outage for those who wait for that. Under mu.
func (c *circuit) finish(o *outage) {
	close(o.over)
	c.news = append(c.news, func() {
		if o.end != nil {
			o.end(Outcome{Err: o.err})
		}
	})
}

// tell has the news told, unless somebody is at it: on a goroutine of its own, since no decision should wait for a slow
// handler, nor Close for one that calls it. Under mu.
func (c *circuit) tell() {
	if c.telling || len(c.news) == 0 {
		return
	}
	c.telling = true
	go func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		defer func() { c.telling = false }()
		for len(c.news) > 0 {
			next := c.news[0]
			c.news = c.news[1:]
			c.attempt(next)
		}
	}()
}

// attempt calls a hook or handler of the user's without mu, whose panic nobody but this goroutine could recover from.
func (c *circuit) attempt(f func()) {
	c.mu.Unlock()
	defer c.mu.Lock()
	defer func() { _ = recover() }()
	f()
}

// now is the outage, nil if Redis is asked. It sees to it that somebody looks for the return.
func (c *circuit) now() *outage {
	o := c.outage.Load()
	if o == nil {
		return nil
	}
	c.used.Store(c.ns())
	if !c.probing.Load() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if o = c.outage.Load(); o != nil {
			c.look(o)
		}
	}
	return o
}

// look starts the prober, if there is none. Under mu.
func (c *circuit) look(o *outage) {
	if c.stop != nil || !c.watched() {
		return
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(context.Background())
	before, ended := c.ended, make(chan struct{})
	c.ended = ended
	c.probing.Store(true)
	go func() {
		defer close(ended)
		if before != nil {
			<-before // it was told to end
		}
		c.probeUntil(ctx, o)
	}()
}

// rest tells the prober to end. Under mu.
func (c *circuit) rest() {
	if c.stop != nil {
		c.stop()
		c.stop = nil
		c.probing.Store(false)
	}
}

// probeUntil looks for Redis until it answers, nobody is left to know, or nobody has asked for long.
func (c *circuit) probeUntil(ctx context.Context, o *outage) {
	pauses := newPauses()
	for next := pauses.NextBackOff(); pause(ctx, next); {
		if c.ns()-c.used.Load() > int64(idleFor) {
			c.mu.Lock()
			defer c.mu.Unlock()
			if ctx.Err() == nil { // else this prober's place is another's
				c.rest()
			}
			return
		}
		began := time.Now()
		probing, done := context.WithTimeout(ctx, probeFor)
		err := c.probe(probing, o.slot)
		done()
		switch {
		case ctx.Err() != nil:
		case answers(err):
			c.answered()
			return
		case remedy(err) != "": // a client that was closed, say: its callers hear of it
			c.over(false)
			return
		}
		next = max(pauses.NextBackOff()-time.Since(began), 0)
	}
}

// newPauses are those between attempts to find Redis again.
func newPauses() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstPause), backoff.WithMaxInterval(longestPause),
		backoff.WithMaxElapsedTime(0))
}

// pause reports whether the context lasted for so long.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
