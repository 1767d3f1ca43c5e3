package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/hibiken/asynq"

	"github.com/headgate-go/headgate"
)

// setup is what is known of how a Throttle was put into its server. What is wrong is told once, in the server's log: the
// tasks alone would show it, or nothing.
type setup struct {
	found   atomic.Bool  // a task was seen in the Redis given to New
	started atomic.Int64 // tasks, as long as nobody has used the Middleware
	used    atomic.Bool  // the Middleware

	toldConfig, toldRedis, toldMiddleware, toldTask sync.Once
}

// waitInPlace is what becomes of tasks that cannot go away.
const waitInPlace = "limited tasks wait in their workers, and fail if their slots are further off than half of their time"

// mayBounce tells whether a task may go away by an error without counting as failed. It may not if asynq does not ask
// whether an error is a failure: as many throttles as there are workers can be on their way, and no more.
func (t *Throttle) mayBounce() bool {
	if t.configured.Load() && t.owed.Load() <= 2*int64(t.concurrency) {
		return true
	}
	t.setup.toldConfig.Do(func() {
		if !t.configured.Load() {
			t.errorf("headgate: Throttle.Configure was not called before this asynq server was made, and going away would " +
				"count as a failure. Until it is, " + waitInPlace + ".")
			return
		}
		t.errorf("headgate: this asynq server was not made of the configuration that Throttle.Configure has prepared. "+
			"So the first tasks that were sent away, about %d, have been counted as failed. "+
			"From now on "+waitInPlace+". Call Configure first and make the server then.", t.owed.Load())
	})
	return false
}

// inRedis tells whether the task is in the Redis given to New. If it is not it cannot be brought back from there.
func (c *call) inRedis(ctx context.Context) bool {
	if c.setup.found.Load() || ctx.Err() != nil {
		return true
	}
	_, err := c.taskInfo(ctx, c.queue, c.id)
	if !isGone(err) {
		c.setup.found.Store(err == nil)
		return true // or it is not known
	}
	c.setup.toldRedis.Do(func() {
		c.errorf("headgate: a limited task is not in the Redis given to worker.New: pass the one that asynq uses, and its DB. " +
			"Until then " + waitInPlace + ".")
	})
	return false
}

// taskStarts notices a server that, as it seems, does not use the Middleware. As many tasks as there are workers can be on
// their way to it, and no more.
func (t *Throttle) taskStarts() {
	if t.setup.used.Load() || t.setup.started.Add(1) <= int64(t.concurrency) {
		return
	}
	t.setup.toldMiddleware.Do(func() {
		t.errorf("headgate: none of the first %d tasks of this asynq server came through the throttle's Middleware. "+
			"If it is not used nothing is limited: mux.Use(throttle.Middleware).", t.concurrency)
	})
}

// notice tells of the first task that cannot run for what New was given. asynq only writes it into its dashboard.
func (t *Throttle) notice(task *asynq.Task, err error) {
	if errors.Is(err, headgate.ErrInvalid) || errors.Is(err, headgate.ErrNeverAllowed) || errors.Is(err, headgate.ErrNotInitialized) {
		t.setup.toldTask.Do(func() {
			t.errorf("headgate: a task of type %q fails: %v. The next ones do so silently.", task.Type(), err)
		})
	}
}

func (t *Throttle) errorf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if t.logger != nil {
		t.logger.Error(text)
		return
	}
	slog.Error(text)
}
