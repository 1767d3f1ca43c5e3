package trace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/headgate-go/headgate"
)

// telemetry is what the operations of the limiters of one Instrument have in common. It is safe for concurrent use.
type telemetry struct {
	tracer trace.Tracer
	instruments
	key         func(string) string
	scriptCalls bool
	starts      *cache[spanNames, start]
	series      *cache[labels, series]
}

// An operation is one of a limiter's, from its begin to its end.
type operation struct {
	*telemetry
	headgate.Operation
	began  time.Time
	ctx    context.Context // with the span
	span   trace.Span
	asleep bool // counted among the active waiters
}

// begin is the headgate.Hook.
func (t *telemetry) begin(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
	o := &operation{telemetry: t, Operation: op, began: time.Now(), ctx: ctx, span: noop.Span{}}
	if op.Verb == headgate.VerbCall {
		o.chooseParent()
	}
	o.startSpan()
	switch op.Verb {
	case headgate.VerbSleep:
		o.countWaiter(1)
	case headgate.VerbOutage:
		o.countOutage()
	}
	return o.ctx, o.end
}

// end tells what came of it.
func (o *operation) end(out headgate.Outcome) {
	took := time.Since(o.began)
	if o.asleep {
		o.countWaiter(-1)
	}
	if refusal, ok := errors.AsType[*headgate.DeniedError](out.Err); ok {
		out.Decision = refusal.Decision
	}
	if out.Algorithm == "" {
		out.Algorithm = o.Algorithm
	}
	o.measure(out, took)
	o.endSpan(out, took)
}

// rescue keeps what panics in a provider, an exporter or a user's function from the limiter's caller.
func rescue() {
	if p := recover(); p != nil {
		otel.Handle(fmt.Errorf("headgate: telemetry: panic: %v", p))
	}
}

func (o *operation) startSpan() {
	if o.Verb == headgate.VerbCall && !o.scriptCalls {
		return
	}
	defer rescue()
	s := o.starts.get(spanNames{o.Verb, o.Limiter, o.Algorithm, o.Command})
	opts := s.opts
	if links := o.links(); links != nil {
		opts = append(opts[:len(opts):len(opts)], trace.WithLinks(links...))
	}
	ctx, span := o.tracer.Start(o.ctx, s.name, opts...)
	if ctx == nil || span == nil {
		return
	}
	o.ctx, o.span = ctx, span
	if o.key != nil && o.Key != "" && span.IsRecording() {
		if key := o.key(o.Key); key != "" {
			span.SetAttributes(keyKey.String(key))
		}
	}
}

// chooseParent puts a call that several share under one of them, and keeps the links to the others: such as are sampled, so
// that the call is if one of them is.
func (o *operation) chooseParent() {
	if len(o.Links) == 0 {
		return
	}
	parent := o.Links[0]
	sampled := slices.DeleteFunc(slices.Clone(o.Links), func(ctx context.Context) bool {
		return !trace.SpanContextFromContext(ctx).IsSampled()
	})
	if len(sampled) > 0 {
		parent = sampled[0]
	}
	o.Links = sampled
	o.ctx = trace.ContextWithSpan(o.ctx, trace.SpanFromContext(parent))
}

// links are to the spans that this one belongs to and is not under.
func (o *operation) links() []trace.Link {
	var links []trace.Link
	for _, ctx := range o.Links {
		to := trace.SpanContextFromContext(ctx)
		if to.IsValid() && !to.Equal(trace.SpanContextFromContext(o.ctx)) {
			links = append(links, trace.Link{SpanContext: to})
		}
	}
	return links
}

func (o *operation) countWaiter(n int64) {
	defer rescue()
	o.waitActive.Add(o.ctx, n, o.series.get(labels{limiter: o.Limiter, algorithm: o.Algorithm}).add...)
	o.asleep = n > 0
}

// countOutage counts it when it begins, lest nobody hears of it before it has ended.
func (o *operation) countOutage() {
	defer rescue()
	o.outages.Add(o.ctx, 1, o.series.get(labels{limiter: o.Limiter}).add...)
}

// measure adds the operation to the metrics. Their context has the span, for exemplars.
func (o *operation) measure(out headgate.Outcome, took time.Duration) {
	defer rescue()
	l := labels{limiter: o.Limiter, algorithm: out.Algorithm}
	switch o.Verb {
	case headgate.VerbAllow, headgate.VerbReserve, headgate.VerbWait:
		o.measureDecision(out, took)
	case headgate.VerbSleep:
		l.result = resultOf(o.Verb, out)
		o.waitDuration.Record(o.ctx, took.Seconds(), o.series.get(l).record...)
	case headgate.VerbCancel:
		these := o.series.get(l)
		o.returned.Add(o.ctx, int64(out.Returned), these.add...)
		o.wasted.Add(o.ctx, int64(o.Cost-out.Returned), these.add...)
		if resultOf(o.Verb, out) == failed {
			l.errorType = errorType(out.Err)
		}
		o.cancellations.Add(o.ctx, 1, o.series.get(l).add...)
	case headgate.VerbCall:
		l.command = o.Command
		if _, failed := replied(out.Err); failed {
			l.errorType = errorType(out.Err)
		}
		o.storeDuration.Record(o.ctx, took.Seconds(), o.series.get(l).record...)
	}
}

func (o *operation) measureDecision(out headgate.Outcome, took time.Duration) {
	l := labels{limiter: o.Limiter, algorithm: out.Algorithm}
	if out.Rate > 0 {
		o.limit.Record(o.ctx, out.Rate, o.series.get(l).record...)
	}
	l.operation, l.result, l.source = o.Verb, resultOf(o.Verb, out), out.Decision.Source
	if l.result == failed {
		l.errorType = errorType(out.Err)
	}
	these := o.series.get(l)
	if l.source.Degraded() {
		o.degraded.Add(o.ctx, 1, these.add...)
	}
	o.requests.Add(o.ctx, 1, these.add...)
	if l.result != failed {
		o.permits.Add(o.ctx, int64(o.Cost), these.add...)
	}
	o.requestDuration.Record(o.ctx, (took - out.Slept).Seconds(), these.record...)
}

func (o *operation) endSpan(out headgate.Outcome, took time.Duration) {
	defer rescue()
	defer o.span.End()
	if !o.span.IsRecording() {
		return
	}
	if o.Verb == headgate.VerbCall {
		o.describeCall(out.Err)
		return
	}
	attributes := make([]attribute.KeyValue, 0, 8)
	if out.Algorithm != o.Algorithm { // it was changed, or not known
		attributes = append(attributes, keyAlgorithm.String(out.Algorithm))
	}
	if permits(o.Verb) {
		attributes = append(attributes, keyCost.Int(o.Cost))
	}
	result := resultOf(o.Verb, out)
	if result != done {
		attributes = append(attributes, keyResult.String(string(result)))
	}
	if d := out.Decision; d.Source != "" {
		attributes = append(attributes, keySource.String(string(d.Source)), keyRemaining.Int(d.Remaining))
		if !d.Allowed {
			attributes = append(attributes, keyRetryAfter.Float64(d.RetryAfter.Seconds()))
		} else if o.Verb == headgate.VerbReserve || o.Verb == headgate.VerbWait {
			attributes = append(attributes, keyDelay.Float64(out.Delay.Seconds()))
		}
	}
	if o.Verb == headgate.VerbSleep {
		attributes = append(attributes, keyDelay.Float64(o.Delay.Seconds()))
		if result == acquired {
			attributes = append(attributes, keyOvershoot.Float64((took - o.Delay).Seconds()))
		}
	}
	if o.Verb == headgate.VerbCancel {
		attributes = append(attributes, keyReturned.Int(out.Returned))
	}
	if result == failed {
		attributes = append(attributes, semconv.ErrorTypeKey.String(errorType(out.Err)))
		o.span.SetStatus(codes.Error, out.Err.Error()) // which holds no key
	}
	o.span.SetAttributes(attributes...)
}

// describeCall tells how a call ended. The text of its error may quote a key, so only its kind is told.
func (o *operation) describeCall(err error) {
	code, isFailure := replied(err)
	if code != "" {
		o.span.SetAttributes(semconv.DBResponseStatusCode(code))
	}
	if isFailure {
		kind := errorType(err)
		o.span.SetAttributes(semconv.ErrorTypeKey.String(kind))
		o.span.SetStatus(codes.Error, kind)
	}
}
