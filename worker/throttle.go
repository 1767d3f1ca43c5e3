package worker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
)

// A Throttle has the tasks of one asynq server run within a limit. Make it with New, let it configure the server, use its
// Middleware, and Drain it before the server shuts down. Its methods are safe for concurrent use.
type Throttle struct {
	limiter   *headgate.Limiter
	rdb       redis.UniversalClient
	inspector *asynq.Inspector
	client    *asynq.Client
	scripts   scripts
	opts      options
	promoter  *promoter

	// Set by Configure:
	configuring sync.Mutex
	configured  atomic.Bool
	concurrency int
	lead        time.Duration
	forwarder   time.Duration // the server's DelayedTaskCheckInterval
	logger      asynq.Logger
	seats       chan struct{} // one for each worker that waits in place

	paces    paces
	draining chan struct{}
	drain    sync.Once
	owed     atomic.Int64 // throttles that asynq was told of and has not asked about
	setup    setup
}

// New makes a Throttle. It makes no call and starts nothing.
//
// The limiter may be of any algorithm, and one of NewShared (pass &shared.Limiter); its store may be another Redis. The
// client is connected to the Redis that asynq uses: the tickets are kept there, and there the promoter brings tasks back,
// of every queue that has tickets of the limiter, whichever queues its own server serves. The client stays the caller's.
//
// The error matches headgate.ErrInvalid.
func New(limiter *headgate.Limiter, rdb redis.UniversalClient, opts ...Option) (*Throttle, error) {
	if !made(limiter) {
		return nil, invalidf("the limiter is nil, or was not made by headgate.New")
	}
	if headgate.Redis(rdb) == nil { // of a pointer that is nil, too
		return nil, invalidf("the client of asynq's Redis is nil")
	}
	t := &Throttle{
		limiter:   limiter,
		rdb:       rdb,
		inspector: asynq.NewInspectorFromRedisClient(rdb),
		client:    asynq.NewClientFromRedisClient(rdb),
		scripts:   newScripts(),
		opts:      defaults(),
		draining:  make(chan struct{}),
	}
	for _, opt := range opts {
		if opt == nil {
			return nil, invalidf("an option is nil")
		}
		if err := opt(&t.opts); err != nil {
			return nil, err
		}
	}
	if t.opts.dedicated && len(t.opts.ofLines) > 0 {
		return nil, invalidf("WithDedicated: %s means nothing beside it", t.opts.ofLines[0])
	}
	if t.opts.lead > t.opts.inPlace {
		return nil, invalidf("WithLead: %v is more than WithMaxInPlace, %v: tasks would come back and have to go away again",
			t.opts.lead, t.opts.inPlace)
	}
	t.promoter = newPromoter(t)
	return t, nil
}

// made tells whether a limiter is one that can be used.
func made(limiter *headgate.Limiter) bool {
	return limiter != nil && limiter.StoredKey("waiting") != ""
}

// Configure prepares the configuration of the server that the Throttle is for, and starts its promoter, which Drain
// ends. Call it once, before the server is made of that configuration: a Throttle serves one server. Several throttles may
// prepare one configuration, each in turn. It does not put the Middleware in place: a server that runs tasks without it
// limits nothing, and says so in its log.
//
// IsFailure, RetryDelayFunc and ErrorHandler go on to decide about all errors but a throttled task's: that is no failure,
// comes back when the Throttle says, and is no error to handle. BaseContext is asked as before. TaskCheckInterval, where it
// is not set, becomes 25 ms and DelayedTaskCheckInterval a second: asynq's own 1 s and 5 s would make tasks late. The rest
// stays as it is.
//
// The error matches headgate.ErrInvalid.
func (t *Throttle) Configure(config *asynq.Config) error {
	if config == nil {
		return invalidf("Configure: the configuration is nil")
	}
	select {
	case <-t.draining:
		return invalidf("Configure: the throttle was drained; make another one")
	default:
	}
	t.configuring.Lock()
	defer t.configuring.Unlock()
	if t.configured.Load() {
		return invalidf("Configure: a throttle serves one server; make another one for the next")
	}

	if config.TaskCheckInterval <= 0 {
		config.TaskCheckInterval = 25 * time.Millisecond
	}
	if config.DelayedTaskCheckInterval <= 0 {
		config.DelayedTaskCheckInterval = time.Second
	}
	t.wrap(config)

	t.concurrency = config.Concurrency
	if t.concurrency < 1 {
		t.concurrency = runtime.NumCPU() // as asynq does
	}
	t.seats = make(chan struct{}, max(1, t.concurrency*t.opts.share/100))
	if t.lead = t.opts.lead; t.lead == 0 { // who is brought back earlier than it may wait in place would go away again
		t.lead = min(max(100*time.Millisecond, 2*config.TaskCheckInterval), t.opts.inPlace)
	}
	t.forwarder = config.DelayedTaskCheckInterval
	t.logger = config.Logger
	t.configured.Store(true) // who sees it sees all of the above
	if !t.opts.dedicated {
		t.promoter.start()
	}
	return nil
}

// wrap has the server's functions told apart a throttled task from one that failed.
func (t *Throttle) wrap(config *asynq.Config) {
	isFailure := config.IsFailure
	config.IsFailure = func(err error) bool {
		if e, ok := errors.AsType[*throttledError](err); ok && e.by == t { // another throttle's is for that one to know of
			t.owed.Store(0)
			return false
		}
		if isFailure == nil {
			return err != nil
		}
		return isFailure(err)
	}

	retryDelay := config.RetryDelayFunc
	if retryDelay == nil {
		retryDelay = asynq.DefaultRetryDelayFunc
	}
	config.RetryDelayFunc = func(n int, err error, task *asynq.Task) time.Duration {
		if e, ok := errors.AsType[*throttledError](err); ok {
			return e.delay
		}
		return retryDelay(n, err, task)
	}

	base := config.BaseContext
	if base == nil {
		base = context.Background
	}
	config.BaseContext = func() context.Context { // asynq asks before it hands a task on
		t.taskStarts()
		return base()
	}

	if handler := config.ErrorHandler; handler != nil {
		config.ErrorHandler = asynq.ErrorHandlerFunc(func(ctx context.Context, task *asynq.Task, err error) {
			if !isThrottled(err) {
				handler.HandleError(ctx, task, err)
			}
		})
	}
}

// Drain prepares the server's shutdown: call it before Shutdown. From then on no task waits in a worker; those that do go
// back to their line at once, with their permits, to run elsewhere or after the next start, and their retry counts stay
// as they are. (Without it they may hold up the shutdown for as long as they wait: asynq tells nobody that it begins.) It
// ends the promoter and returns when that has ended, or after two seconds if Redis does not answer. It may be called any
// number of times.
//
// In a server that Configure has not prepared tasks cannot go away, except for those on their last attempt: they wait on,
// and asynq puts those that still do back to the queue at the end of its ShutdownTimeout.
func (t *Throttle) Drain() {
	t.drain.Do(func() { close(t.draining) })
	t.promoter.stop()
}

// A throttledError is what asynq is told of a task that goes away until its slot. It is never seen by the server's own
// functions.
type throttledError struct {
	by    *Throttle
	delay time.Duration
}

// throttledText is how a throttledError begins. Promoters know by it a task that waits for its slot from one that failed.
const throttledText = "throttled: over the limit, no failure"

// Error is what asynq's dashboard shows as the task's last error.
func (e *throttledError) Error() string {
	return fmt.Sprintf("%s; back at its slot, in %v at the latest", throttledText, e.delay)
}

func isThrottled(err error) bool {
	_, ok := errors.AsType[*throttledError](err)
	return ok
}

// bounce sends a task away for at most d.
func (t *Throttle) bounce(d time.Duration) error {
	t.owed.Add(1)
	// asynq cuts the time to a whole second.
	return &throttledError{by: t, delay: d.Truncate(time.Second) + 2*time.Second}
}
