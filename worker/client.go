package worker

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
)

// A Client enqueues tasks for their slots: it takes the slot of a limiter when a task is enqueued, and has asynq make the
// task pending about then. So tasks flow out at the limiter's mean pace however they come in, none bounces, and who comes
// when the queue in front is too long is refused: a leaky bucket that is made of a message queue.
//
// The slot is charged when the task is enqueued, whatever becomes of the task. asynq counts in whole seconds, looks for
// scheduled tasks once in a DelayedTaskCheckInterval (5 s), and an idle worker looks for those once in a TaskCheckInterval
// (1 s), half as much again at worst. So a task starts up to the sum of these after its slot, 7.5 s with asynq's defaults,
// and all whose slots lie within one DelayedTaskCheckInterval start together: set it to time.Second. Where no start may be
// beyond the limit, use a Throttle instead; not both for one key, which would charge twice.
//
// A Client is safe for concurrent use.
type Client struct {
	limiter *headgate.Limiter
	client  *asynq.Client
}

// NewClient makes a Client of a limiter and of a client of the Redis that asynq uses, which stays the caller's to close. An
// algorithm that queues by itself gives the queue its length: algos.LeakyBucket has a Capacity. It makes no call. The error
// matches headgate.ErrInvalid.
//
// It is not made of an asynq.Client: go-redis sends a command again whose reply is lost, and asynq would then refuse the task
// as a duplicate of itself.
func NewClient(limiter *headgate.Limiter, rdb redis.UniversalClient) (*Client, error) {
	if !made(limiter) {
		return nil, invalidf("NewClient: the limiter is nil, or was not made by headgate.New")
	}
	if headgate.Redis(rdb) == nil { // of a pointer that is nil, too
		return nil, invalidf("NewClient: the client of asynq's Redis is nil")
	}
	return &Client{limiter: limiter, client: asynq.NewClientFromRedisClient(sentOnce{rdb})}, nil
}

// For is a Client with the limit of limiter.For(parts...).
func (c *Client) For(parts ...string) *Client {
	return &Client{limiter: c.limiter.For(parts...), client: c.client}
}

// Enqueue takes the next slot and enqueues the task for it, unless the slot is further off than within, at least 0: then
// the error is a *headgate.DeniedError, which says when to try again, and nothing is enqueued or charged. The options are
// asynq's, of which ProcessAt and ProcessIn are overruled. NextProcessAt of the answer is the slot, rounded up to a second.
//
// If the task is a duplicate, its ID is taken or an option is bad, asynq's error is returned and the slot is given back. After
// another error of asynq's, such as that of a reply that was lost, the task may be there, so the slot stays charged. Other
// errors are those of Limiter.Reserve; a task that is nil or has no type is refused before.
func (c *Client) Enqueue(ctx context.Context, task *asynq.Task, within time.Duration, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	return c.EnqueueN(ctx, task, 1, within, opts...)
}

// EnqueueN enqueues a task that needs n permits; see Enqueue.
func (c *Client) EnqueueN(ctx context.Context, task *asynq.Task, n int, within time.Duration, opts ...asynq.Option) (*asynq.TaskInfo, error) {
	if task == nil || strings.TrimSpace(task.Type()) == "" {
		return nil, invalidf("Enqueue: the task is nil, or has no type")
	}
	r, err := c.limiter.ReserveN(ctx, n, headgate.Within(within))
	if err != nil {
		return nil, err
	}
	at := time.Now()
	if delay := r.Delay(); delay > 0 {
		at = at.Add(delay + time.Second - time.Nanosecond).Truncate(time.Second)
	}
	info, err := c.client.EnqueueContext(ctx, task, append(opts[:len(opts):len(opts)], asynq.ProcessAt(at))...)
	refused := err != nil && errors.Unwrap(err) == nil // by asynq itself: it wraps what Redis says
	if refused || errors.Is(err, asynq.ErrDuplicateTask) || errors.Is(err, asynq.ErrTaskIDConflict) {
		return nil, errors.Join(err, r.Cancel(ctx))
	}
	return info, err
}
