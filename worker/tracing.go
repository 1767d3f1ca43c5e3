package worker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/headgate-go/headgate/trace"
	"github.com/hibiken/asynq"
)

// NewTask is asynq.NewTaskWithHeaders with the trace context of ctx in the headers, so that the spans of the task's runs are
// linked to the span in ctx: see WithTracing.
func NewTask(ctx context.Context, typename string, payload []byte, headers map[string]string, opts ...asynq.Option) *asynq.Task {
	return asynq.NewTaskWithHeaders(typename, payload, trace.Headers(ctx, headers), opts...)
}

// A traced is the telemetry of a call; nil if there is none.
type traced struct {
	run         *trace.TaskRun
	previous    bool // a run of the task is remembered
	endThrottle func(trace.ThrottleResult, time.Duration, error)
}

// errPanicked is what the span of a task says whose handler did not return.
var errPanicked = errors.New("worker: the handler panicked")

func (c *call) trace(ctx context.Context) (context.Context, *traced) {
	if c.opts.tracing == nil {
		return ctx, nil
	}
	previous := c.previousRun(ctx)
	ctx, run := c.opts.tracing.Begin(ctx, trace.Task{
		Queue: c.queue, Limiter: c.limiter.Name(), Headers: c.task.Headers(), Previous: previous,
	})
	return ctx, &traced{run: run, previous: previous != ""}
}

// throttling begins the throttle's part.
func (t *traced) throttling(ctx context.Context) context.Context {
	if t == nil {
		return ctx
	}
	ctx, t.endThrottle = t.run.Throttle(ctx)
	return ctx
}

// throttled ends it.
func (t *traced) throttled(c *call, err error) {
	if t == nil {
		return
	}
	switch {
	case err == nil && c.waited:
		t.endThrottle(trace.Waited, c.stood, nil)
	case err == nil:
		t.endThrottle(trace.Ran, c.stood, nil)
	case isThrottled(err), errors.Is(err, errCloned):
		t.endThrottle(trace.Rescheduled, c.putOff, nil)
	case errors.Is(err, ErrPastDeadline):
		t.endThrottle(trace.Rejected, 0, nil)
	default:
		t.endThrottle(trace.Failed, 0, err)
	}
}

// end ends the call's span. If the task comes again, that run will be linked to this one; what is done is forgotten.
func (t *traced) end(ctx context.Context, c *call, err error) {
	if t == nil {
		return
	}
	if err != nil || c.clone != "" {
		c.rememberRun(ctx, t.run.Context())
	}
	if err == nil && t.previous {
		c.forgetRun(ctx)
	}
	if isThrottled(err) {
		err = nil
	}
	t.run.End(err)
}

// runKey is where the latest run of a task is kept. IDs may be anything, so it is made of a hash.
func (c *call) runKey(id string) string {
	sum := sha256.Sum256([]byte(member(c.cost, c.queue, id)))
	return c.limiter.StoredKey("run:" + hex.EncodeToString(sum[:16]))
}

// previousRun is what was remembered of the task's previous run. Telemetry fails no task: if Redis does, it is none.
func (c *call) previousRun(ctx context.Context) string {
	previous, err := c.rdb.Get(ctx, c.runKey(c.id)).Result()
	if err != nil {
		return ""
	}
	return previous
}

func (c *call) rememberRun(ctx context.Context, run string) {
	id := c.id
	if c.clone != "" {
		id = c.clone
	}
	if run != "" {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rememberWithin)
		defer cancel()
		_ = c.rdb.Set(ctx, c.runKey(id), run, c.ttl()).Err()
	}
}

func (c *call) forgetRun(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rememberWithin)
	defer cancel()
	_ = c.rdb.Del(ctx, c.runKey(c.id)).Err()
}

// rememberWithin bounds what remembering a run, or forgetting it, may take from its worker.
const rememberWithin = 100 * time.Millisecond
