package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/trace"
)

// An Option changes what New builds.
type Option func(*options) error

type options struct {
	concerns  func(context.Context, *asynq.Task) bool
	key       func(context.Context, *asynq.Task) string
	cost      func(context.Context, *asynq.Task) int
	lead      time.Duration // 0: by the server's TaskCheckInterval
	inPlace   time.Duration
	share     int // percent
	putOff    time.Duration
	grace     time.Duration
	patience  time.Duration
	most      int
	failOpen  bool
	dedicated bool
	tracing   *trace.Tasks
	ofLines   []string // the names of the options that are about lines
}

// longest is the most that any time may be.
const longest = 365 * 24 * time.Hour

func defaults() options {
	return options{
		inPlace:  time.Second,
		share:    90,
		putOff:   time.Hour,
		grace:    5 * time.Second,
		patience: 5 * time.Second,
		most:     100_000,
	}
}

// WithTasks limits only the tasks of which the function says so; the others pass untouched. Without it all are limited.
// The context is the task's: asynq.GetQueueName tells its queue.
func WithTasks(concerned func(context.Context, *asynq.Task) bool) Option {
	return func(o *options) error {
		o.concerns = concerned
		return present("WithTasks", concerned == nil)
	}
}

// WithKey gives each key, a tenant for instance, a limit of its own: that of limiter.For(key). The function must answer
// the same each time for one task. A task with an empty key fails.
func WithKey(key func(context.Context, *asynq.Task) string) Option {
	return func(o *options) error {
		o.key = key
		return present("WithKey", key == nil)
	}
}

// WithCost says how many permits a task needs; without it, one. The function must answer the same each time for one
// task. A task that costs less than one permit, or more than the limiter ever grants, fails.
func WithCost(cost func(context.Context, *asynq.Task) int) Option {
	return func(o *options) error {
		o.cost = cost
		return present("WithCost", cost == nil)
	}
}

// WithLead sets how long before its slot a task is brought back, at least; more if tasks are seen to take longer to
// arrive. The default is 100 ms, or twice the server's TaskCheckInterval if that is more, and at most WithMaxInPlace: who
// comes earlier may not wait in place, and would go away again.
func WithLead(lead time.Duration) Option {
	return func(o *options) error {
		o.ofLines = append(o.ofLines, "WithLead")
		o.lead = lead
		return positive("WithLead", lead)
	}
}

// WithMaxInPlace sets the longest wait for a slot inside a worker; a task whose slot is further off goes away until then.
// The default is a second. A wait also takes at most half of the time that is left until the task's deadline or timeout.
func WithMaxInPlace(d time.Duration) Option {
	return func(o *options) error {
		o.ofLines = append(o.ofLines, "WithMaxInPlace")
		o.inPlace = d
		return positive("WithMaxInPlace", d)
	}
}

// WithShare sets how many in a hundred of the server's workers may wait in place at one time: 90 by default, at least
// one worker unless it is 0. Half of those seats are for tasks that were brought back for their slots, and wait for a
// tenth of a second or so; the other workers are always there for tasks that need not wait. Several throttles of one server
// each have their own share: give each a part of what may wait. Where it is 0 one worker waits all the same, now and then,
// for a task that others have kept waiting: see WithPatience.
func WithShare(percent int) Option {
	return func(o *options) error {
		o.ofLines = append(o.ofLines, "WithShare")
		if percent < 0 || percent > 100 {
			return invalidf("WithShare: %d is no percentage", percent)
		}
		o.share = percent
		return nil
	}
}

// WithMaxPutOff sets after how long, at most, asynq's forwarder brings a waiting task back if no promoter has: an hour
// by default, at least a second and at most a year, as for all times here. It is no bound on the waiting itself.
func WithMaxPutOff(d time.Duration) Option {
	return func(o *options) error {
		o.putOff = d
		if d < time.Second {
			return invalidf("WithMaxPutOff: %v is less than a second", d)
		}
		return positive("WithMaxPutOff", d)
	}
}

// WithGrace sets how long a task that was brought back, and has not arrived, is still counted on: 5 s by default. For so
// long, at most, a ticket whose task never comes holds up the others of its key, or all the queues from which nothing
// comes, with all their tickets, the other queues.
func WithGrace(d time.Duration) Option {
	return func(o *options) error {
		o.ofLines = append(o.ofLines, "WithGrace")
		o.grace = d
		return positive("WithGrace", d)
	}
}

// WithPatience sets for how long other callers of the key, who Wait or Reserve, may keep the tasks waiting by taking
// every slot: 5 s by default. Then the first task reserves a slot as they do, and waits for it in place; if it may not wait
// so long, for its deadline or timeout, it goes to the end of the line, and after another such time the next one tries.
func WithPatience(d time.Duration) Option {
	return func(o *options) error {
		o.ofLines = append(o.ofLines, "WithPatience")
		o.patience = d
		return positive("WithPatience", d)
	}
}

// WithMaxWaiting sets how many tasks of one key may hold a ticket: 100,000 by default. Those beyond go away without one,
// for about as long as the line is, and then come as new.
func WithMaxWaiting(n int) Option {
	return func(o *options) error {
		o.ofLines = append(o.ofLines, "WithMaxWaiting")
		o.most = n
		if n < 1 {
			return invalidf("WithMaxWaiting: %d; at least 1 is needed", n)
		}
		return nil
	}
}

// WithFailOpen runs tasks, unlimited, while Redis does not answer the limiter, starts, fails over or is full. Without it
// they fail, as by any error; and with it, too, where Redis refuses for good: a key of another type, a missing permission.
func WithFailOpen() Option {
	return func(o *options) error {
		o.failOpen = true
		return nil
	}
}

// WithDedicated is for a server that serves nothing but one limited queue with one key: tasks wait in their workers,
// all of them if need be, and none goes away. Then every slot is used to the millisecond. In a server that does anything
// else it is ruinous: all workers soon wait for the same limit, and whatever else there is waits behind them. WithShare,
// WithMaxInPlace, WithMaxWaiting, WithLead, WithGrace and WithPatience mean nothing then; New refuses them beside it.
func WithDedicated() Option {
	return func(o *options) error {
		o.dedicated = true
		return nil
	}
}

// WithTracing tells OpenTelemetry of each time that a task comes to a worker: a span "process {queue}" with links to the one
// that enqueued it (see NewTask) and to the task's previous run, with "throttle {queue}" and the handler's own under it;
// and metrics. docs/observability.md lists them. It costs a call to Redis each time that a task comes, and another when it
// goes away or fails. The limiter's own spans are those of trace.Instrument.
func WithTracing(opts ...trace.Option) Option {
	return func(o *options) error {
		o.tracing = trace.NewTasks(opts...)
		return nil
	}
}

func present(option string, missing bool) error {
	if missing {
		return invalidf("%s: the function is nil", option)
	}
	return nil
}

func positive(option string, d time.Duration) error {
	if d <= 0 {
		return invalidf("%s: %v is not positive", option, d)
	}
	if d > longest {
		return invalidf("%s: %v is more than a year", option, d)
	}
	return nil
}

func invalidf(format string, args ...any) error {
	return fmt.Errorf("%w: worker: "+format, append([]any{headgate.ErrInvalid}, args...)...)
}
