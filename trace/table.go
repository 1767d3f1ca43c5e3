package trace

import (
	"slices"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/headgate-go/headgate"
)

// This file is the one place that says what is told: docs/observability.md and the dashboard are held against it by
// tests, and so is what is really sent.

// An attributeRow is an attribute of spans or metrics.
type attributeRow struct {
	key     attribute.Key
	unit    string // or its values
	meaning string
}

// A spanRow is a span.
type spanRow struct {
	verb       headgate.Verb
	name       string
	kind       trace.SpanKind
	meaning    string
	attributes []attribute.Key // those that it may have
}

// A metricRow is a metric.
type metricRow struct {
	name       string
	kind       metricKind
	unit       string // as UCUM writes it
	meaning    string
	attributes []attribute.Key // those that it may have
	bounds     []float64       // of a histogram's buckets
}

type metricKind string

const (
	counter       metricKind = "counter"
	upDownCounter metricKind = "up-down counter"
	gauge         metricKind = "gauge"
	histogram     metricKind = "histogram"
)

const (
	keyLimiter    = attribute.Key("headgate.limiter")
	keyAlgorithm  = attribute.Key("headgate.algorithm")
	keyOperation  = attribute.Key("headgate.operation")
	keyCost       = attribute.Key("headgate.cost")
	keyResult     = attribute.Key("headgate.result")
	keySource     = attribute.Key("headgate.source")
	keyRemaining  = attribute.Key("headgate.remaining")
	keyRetryAfter = attribute.Key("headgate.retry_after")
	keyDelay      = attribute.Key("headgate.delay")
	keyOvershoot  = attribute.Key("headgate.overshoot")
	keyReturned   = attribute.Key("headgate.returned")
	keyKey        = attribute.Key("headgate.key")
	keyThrottle   = attribute.Key("headgate.throttle.result")
)

var attributes = []attributeRow{
	{keyLimiter, "", "the limiter's name: `WithName`, or the algorithm's name"},
	{keyAlgorithm, "`token_bucket`, …", "the algorithm that decided"},
	{keyOperation, "`allow`, `reserve`, `wait`", "the verb that was called"},
	{keyCost, "permits", "how many were asked for, slept for or given back"},
	{keyResult, "`acquired`, `denied`, `canceled`, `error`", "what came of it. A `peek` acquires nothing and tells what `allow` would have; a `cancel` or `reset` that was done has none"},
	{keySource, "`redis`, `memory`, `lease`, `remembered`, `local`, `open`", "who decided: Redis, the store in memory, or the process by a lease or a denial that it remembers; absent if nobody did. The last two are degraded: Redis was out, and the process decided by its share, or everything was admitted"},
	{keyRemaining, "permits", "what one request is sure to be granted now"},
	{keyRetryAfter, "s", "how long until the same request would be admitted"},
	{keyDelay, "s", "how far ahead the slot was when it was granted; of a `sleep`, how long it was to last; of a `throttle`, how long the task stood in line, or after how long it is back at the latest"},
	{keyOvershoot, "s", "how much longer the sleep lasted than it was to"},
	{keyReturned, "permits", "how many of those given back can be taken again"},
	{keyKey, "", "what the function given to `WithKey` makes of the limiter's key; absent without one"},
	{keyThrottle, "`ran`, `waited`, `rescheduled`, `rejected`, `error`", "what a task's throttle came to: it ran at once, it waited for its slot in the worker, it went away until then, it ended because its deadline comes first, or the throttle failed"},
	{semconv.MessagingSystemKey, "`asynq`", ""},
	{semconv.MessagingOperationNameKey, "`process`", ""},
	{semconv.MessagingDestinationNameKey, "", "the queue"},
	{semconv.ErrorTypeKey, "`timeout`, `WRONGTYPE`, …", "what kind of error it was: the first word of Redis's reply, `timeout`, `connect`, `connection`, `closed`, `invalid`, `never_allowed`, `not_initialized` or `_OTHER`"},
	{semconv.DBSystemNameKey, "`redis`", ""},
	{semconv.DBOperationNameKey, "`EVALSHA`, `EVAL`", "the command"},
	{semconv.DBStoredProcedureNameKey, "`token_bucket`, …", "the script, by its algorithm; `terms`"},
	{semconv.DBResponseStatusCodeKey, "`NOSCRIPT`, …", "the first word of an error that Redis replied"},
}

var spans = []spanRow{
	{headgate.VerbAllow, "allow {limiter}", trace.SpanKindInternal, "`Allow`",
		[]attribute.Key{keyLimiter, keyAlgorithm, keyCost, keyResult, keySource, keyRemaining, keyRetryAfter, keyKey, semconv.ErrorTypeKey}},
	{headgate.VerbReserve, "reserve {limiter}", trace.SpanKindInternal, "`Reserve`: taking the slot, not waiting for it",
		[]attribute.Key{keyLimiter, keyAlgorithm, keyCost, keyResult, keySource, keyRemaining, keyRetryAfter, keyDelay, keyKey, semconv.ErrorTypeKey}},
	{headgate.VerbWait, "wait {limiter}", trace.SpanKindInternal, "`Wait`: taking the slot and sleeping until it",
		[]attribute.Key{keyLimiter, keyAlgorithm, keyCost, keyResult, keySource, keyRemaining, keyRetryAfter, keyDelay, keyKey, semconv.ErrorTypeKey}},
	{headgate.VerbSleep, "sleep {limiter}", trace.SpanKindInternal, "the sleep within a `wait`, or the `Wait` of a reservation, with a link to the span that made it",
		[]attribute.Key{keyLimiter, keyAlgorithm, keyCost, keyResult, keyDelay, keyOvershoot, keyKey}},
	{headgate.VerbPeek, "peek {limiter}", trace.SpanKindInternal, "`Peek`",
		[]attribute.Key{keyLimiter, keyAlgorithm, keyCost, keyResult, keySource, keyRemaining, keyRetryAfter, keyKey, semconv.ErrorTypeKey}},
	{headgate.VerbCancel, "cancel {limiter}", trace.SpanKindInternal, "giving permits back: within a `wait` that came to nothing, or the `Cancel` of a reservation, with a link to the span that made it",
		[]attribute.Key{keyLimiter, keyAlgorithm, keyCost, keyResult, keyReturned, keyKey, semconv.ErrorTypeKey}},
	{headgate.VerbReset, "reset {limiter}", trace.SpanKindInternal, "`Reset`",
		[]attribute.Key{keyLimiter, keyAlgorithm, keyResult, keyKey, semconv.ErrorTypeKey}},
	{headgate.VerbOutage, "outage {limiter}", trace.SpanKindInternal, "from when Redis is found out until it is asked again, of a limiter with `WithFallback`; one for all limiters of a store, by the one that found it out; under no other span",
		[]attribute.Key{keyLimiter, keyResult, semconv.ErrorTypeKey}},
	sharedRow(headgate.VerbTrySetRate, "TrySetRate"),
	sharedRow(headgate.VerbSetRate, "SetRate"),
	sharedRow(headgate.VerbUpdateRate, "UpdateRate"),
	sharedRow(headgate.VerbRate, "Rate"),
	sharedRow(headgate.VerbExpire, "Expire"),
	sharedRow(headgate.VerbClearExpire, "ClearExpire"),
	sharedRow(headgate.VerbDelete, "Delete"),
	{headgate.VerbCall, "{command} {algorithm}", trace.SpanKindClient, "one run of a script in Redis: `EVALSHA`, or `EVAL` where Redis did not have it, and the algorithm in it, or `terms` where a shared limiter's parameters are read or changed; under the first of those that share it which is sampled, with links to the others that are; with `WithScriptCalls` only",
		[]attribute.Key{keyLimiter, semconv.DBSystemNameKey, semconv.DBOperationNameKey, semconv.DBStoredProcedureNameKey, semconv.DBResponseStatusCodeKey, semconv.ErrorTypeKey}},
}

// sharedRow is of a verb that only a shared limiter has.
func sharedRow(verb headgate.Verb, method string) spanRow {
	return spanRow{verb, string(verb) + " {limiter}", trace.SpanKindInternal, "`" + method + "` of a shared limiter",
		[]attribute.Key{keyLimiter, keyAlgorithm, keyResult, keyKey, semconv.ErrorTypeKey}}
}

// A taskSpanRow is a span of a task that package worker runs.
type taskSpanRow struct {
	name       string
	kind       trace.SpanKind
	meaning    string
	attributes []attribute.Key // those that it may have
}

var (
	rowProcess = taskSpanRow{"process {queue}", trace.SpanKindConsumer,
		"one time that a task comes to a worker, with links to the span that enqueued it and to its previous run",
		[]attribute.Key{semconv.MessagingSystemKey, semconv.MessagingOperationNameKey, semconv.MessagingDestinationNameKey, semconv.ErrorTypeKey}}
	rowThrottle = taskSpanRow{"throttle {queue}", trace.SpanKindInternal,
		"what it does there until it may run, or goes away; the limiter's own spans are under it",
		[]attribute.Key{keyLimiter, keyThrottle, keyDelay, semconv.ErrorTypeKey}}
)

var taskSpans = []taskSpanRow{rowProcess, rowThrottle}

var (
	rowThrottleTasks = metricRow{"headgate.throttle.tasks", counter, "{task}",
		"tasks that a throttle let run, rejected or failed", []attribute.Key{keyLimiter, keyThrottle}, nil}
	rowThrottleDelay = metricRow{"headgate.throttle.delay", histogram, "s",
		"how long tasks that ran had stood in line", []attribute.Key{keyLimiter}, waitBounds}
	rowThrottleReschedules = metricRow{"headgate.throttle.reschedules", counter, "{task}",
		"times that a task went away until its slot", []attribute.Key{keyLimiter}, nil}
)

var taskMetrics = []metricRow{rowThrottleTasks, rowThrottleDelay, rowThrottleReschedules}

// The boundaries of the buckets, in seconds.
var (
	callBounds = []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10}
	waitBounds = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300}
)

// What metrics are told apart by: all of few values, whatever the number of keys.
var (
	byLimiter  = []attribute.Key{keyLimiter, keyAlgorithm}
	byAnswer   = []attribute.Key{keyLimiter, keyAlgorithm, keyOperation, keyResult, keySource}
	byDecision = append(slices.Clone(byAnswer), semconv.ErrorTypeKey)
)

var (
	rowRequests = metricRow{"headgate.requests", counter, "{request}",
		"calls of Allow, Reserve and Wait", byDecision, nil}
	rowPermits = metricRow{"headgate.permits", counter, "{permit}",
		"permits that they asked for, but for those that ended in an error", byAnswer, nil}
	rowRequestDuration = metricRow{"headgate.request.duration", histogram, "s",
		"how long a decision took: the call, less the sleep of a Wait", byDecision, callBounds}
	rowWaitDuration = metricRow{"headgate.wait.duration", histogram, "s",
		"how long callers slept until their slots, those that left before it too; who need not sleep is not in it",
		[]attribute.Key{keyLimiter, keyAlgorithm, keyResult}, waitBounds}
	rowWaitActive = metricRow{"headgate.wait.active", upDownCounter, "{waiter}",
		"callers that sleep until their slots now", byLimiter, nil}
	rowCancellations = metricRow{"headgate.reservation.cancellations", counter, "{reservation}",
		"reservations given back, those of a Wait that came to nothing too",
		[]attribute.Key{keyLimiter, keyAlgorithm, semconv.ErrorTypeKey}, nil}
	rowReturned = metricRow{"headgate.permits.returned", counter, "{permit}",
		"permits given back that can be taken again", byLimiter, nil}
	rowWasted = metricRow{"headgate.permits.wasted", counter, "{permit}",
		"permits given back that nobody can take any more", byLimiter, nil}
	rowLimit = metricRow{"headgate.limit", gauge, "{permit}/s",
		"the rate that the limiter's parameters allow in the long run, as of the last decision", byLimiter, nil}
	rowDegraded = metricRow{"headgate.degraded.decisions", counter, "{decision}",
		"decisions made without Redis, of those in headgate.requests", byAnswer, nil}
	rowOutages = metricRow{"headgate.outages", counter, "{outage}",
		"times that Redis was found out, by the limiter that found it out", []attribute.Key{keyLimiter}, nil}
	rowStoreDuration = metricRow{"headgate.store.duration", histogram, "s",
		"how long a run of the script took, as the client saw it",
		[]attribute.Key{keyLimiter, keyAlgorithm, semconv.DBOperationNameKey, semconv.ErrorTypeKey}, callBounds}
)

var metrics = []metricRow{
	rowRequests, rowPermits, rowRequestDuration, rowWaitDuration, rowWaitActive,
	rowCancellations, rowReturned, rowWasted, rowLimit, rowDegraded, rowOutages, rowStoreDuration,
}
