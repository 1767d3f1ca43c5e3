package trace

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
)

// Tasks tells OpenTelemetry of the tasks that package worker runs, which makes one where it is asked to trace. It is safe
// for concurrent use, and never fails a task.
type Tasks struct {
	tracer      trace.Tracer
	tasks       metric.Int64Counter
	delay       metric.Float64Histogram
	reschedules metric.Int64Counter
}

// NewTasks makes a Tasks. Of the options the providers count.
func NewTasks(opts ...Option) *Tasks {
	c := newConfig(opts)
	meter := c.meter()
	return &Tasks{
		tracer:      c.tracer(),
		tasks:       count(meter, rowThrottleTasks),
		delay:       durations(meter, rowThrottleDelay),
		reschedules: count(meter, rowThrottleReschedules),
	}
}

// A Task is one time that a task comes to a worker.
type Task struct {
	Queue    string
	Limiter  string            // its name
	Headers  map[string]string // of the task, with the trace context of what enqueued it
	Previous string            // what Context said of the previous run; empty if there was none
}

// A TaskRun is a Task's telemetry until its End.
type TaskRun struct {
	tasks *Tasks
	task  Task
	span  trace.Span
}

// Begin starts the span of a task. Headers without a trace context, or with one that is not valid, are none.
func (t *Tasks) Begin(ctx context.Context, task Task) (_ context.Context, run *TaskRun) {
	run = &TaskRun{tasks: t, task: task, span: tracenoop.Span{}}
	defer rescue()
	var links []trace.Link
	for _, headers := range []map[string]string{task.Headers, {parentHeader: task.Previous}} {
		if from := remote(headers); from.IsValid() {
			links = append(links, trace.Link{SpanContext: from})
		}
	}
	started, span := t.tracer.Start(ctx, named(rowProcess, task.Queue), trace.WithSpanKind(rowProcess.kind), trace.WithLinks(links...),
		trace.WithAttributes(semconv.MessagingSystemKey.String("asynq"), semconv.MessagingOperationName("process"),
			semconv.MessagingDestinationName(task.Queue)))
	if started != nil && span != nil {
		ctx, run.span = started, span
	}
	return ctx, run
}

// End ends the span with the handler's error, if it has one.
func (r *TaskRun) End(err error) {
	defer rescue()
	r.fail(r.span, err)
	r.span.End()
}

// Context identifies the run, for the Previous of the next; empty if it is not traced.
func (r *TaskRun) Context() string {
	headers := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), r.span.SpanContext()), headers)
	return headers[parentHeader]
}

// A ThrottleResult is what a task's throttle came to.
type ThrottleResult string

// The results; see the table of attributes in docs/observability.md.
const (
	Ran         ThrottleResult = "ran"
	Waited      ThrottleResult = "waited"
	Rescheduled ThrottleResult = "rescheduled"
	Rejected    ThrottleResult = "rejected"
	Failed      ThrottleResult = "error"
)

// Throttle starts the span of what a task does until it may run. The function ends it: with how long the task stood in
// line, or after how long it is back.
func (r *TaskRun) Throttle(ctx context.Context) (context.Context, func(result ThrottleResult, delay time.Duration, err error)) {
	started, span := r.startThrottle(ctx)
	return started, func(result ThrottleResult, delay time.Duration, err error) {
		defer rescue()
		limiter := keyLimiter.String(r.task.Limiter)
		if result == Rescheduled {
			r.tasks.reschedules.Add(started, 1, metric.WithAttributes(limiter))
		} else {
			r.tasks.tasks.Add(started, 1, metric.WithAttributes(limiter, keyThrottle.String(string(result))))
		}
		attributes := []attribute.KeyValue{keyThrottle.String(string(result))}
		switch result {
		case Ran, Waited:
			r.tasks.delay.Record(started, delay.Seconds(), metric.WithAttributes(limiter))
			attributes = append(attributes, keyDelay.Float64(delay.Seconds()))
		case Rescheduled:
			attributes = append(attributes, keyDelay.Float64(delay.Seconds()))
		case Failed:
			r.fail(span, err)
		case Rejected:
		}
		span.SetAttributes(attributes...)
		span.End()
	}
}

func (r *TaskRun) startThrottle(ctx context.Context) (started context.Context, span trace.Span) {
	started, span = ctx, tracenoop.Span{}
	defer rescue()
	with, s := r.tasks.tracer.Start(ctx, named(rowThrottle, r.task.Queue), trace.WithSpanKind(rowThrottle.kind),
		trace.WithAttributes(keyLimiter.String(r.task.Limiter)))
	if with != nil && s != nil {
		started, span = with, s
	}
	return started, span
}

// fail marks a span. The text of the error may be the user's handler's, so only its kind is told.
func (*TaskRun) fail(span trace.Span, err error) {
	if err == nil || !span.IsRecording() {
		return
	}
	kind := errorType(err)
	span.SetAttributes(semconv.ErrorTypeKey.String(kind))
	span.SetStatus(codes.Error, kind)
}

// Headers are those that carry the trace context of ctx to a task: a copy of headers with it.
func Headers(ctx context.Context, headers map[string]string) map[string]string {
	with := propagation.MapCarrier{}
	for k, v := range headers {
		with[k] = v
	}
	propagation.TraceContext{}.Inject(ctx, with)
	return with
}

// parentHeader is the header of the W3C's trace context that names a span.
const parentHeader = "traceparent"

// remote is the span that headers name.
func remote(headers map[string]string) trace.SpanContext {
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier(headers))
	return trace.SpanContextFromContext(ctx)
}

func named(row taskSpanRow, queue string) string {
	return strings.ReplaceAll(row.name, "{queue}", queue)
}
