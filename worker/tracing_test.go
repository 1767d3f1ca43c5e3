package worker_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/trace"
	"github.com/headgate-go/headgate/worker"
)

// A telescope keeps what is exported.
type telescope struct {
	exporter *tracetest.InMemoryExporter
	reader   *sdkmetric.ManualReader
	tracers  *sdktrace.TracerProvider
	opts     []trace.Option
}

func newTelescope() *telescope {
	s := &telescope{exporter: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	s.tracers = sdktrace.NewTracerProvider(sdktrace.WithSyncer(s.exporter))
	s.opts = []trace.Option{
		trace.WithTracerProvider(s.tracers),
		trace.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(s.reader))),
	}
	return s
}

// named are the spans of a name, in the order of their ends.
func (s *telescope) named(name string) []tracetest.SpanStub {
	var found []tracetest.SpanStub
	for _, span := range s.exporter.GetSpans() {
		if span.Name == name {
			found = append(found, span)
		}
	}
	return found
}

// text is a span's attributes.
func text(span tracetest.SpanStub) string {
	var parts []string
	for _, a := range span.Attributes {
		parts = append(parts, string(a.Key)+"="+a.Value.String())
	}
	return strings.Join(parts, " ")
}

// asynq 321 and its like: each run is linked to what enqueued the task and to the run before, whoever ran that.
func TestTracesGoOnAcrossTheQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	s := newTelescope()
	l := r.limiter(onePerDay(), headgate.WithName("vendor"), trace.Instrument(s.opts...))
	use(t, l, 1)
	s.exporter.Reset()
	failures := 1
	inside := make(chan oteltrace.SpanContext, 10)
	r.serve(r.throttle(l, worker.WithTracing(s.opts...)), asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		inside <- oteltrace.SpanContextFromContext(ctx)
		if failures--; failures == 0 {
			return errors.New("the work failed, and says a secret")
		}
		return r.note(ctx, task)
	}), func(c *asynq.Config) {
		c.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return 0 }
	})

	enqueuing, span := s.tracers.Tracer("test").Start(ctx, "enqueue")
	if _, err := r.client.Enqueue(worker.NewTask(enqueuing, "limited", nil, map[string]string{"mine": "kept"}), asynq.TaskID("a")); err != nil {
		t.Fatal(err)
	}
	span.End()
	r.waits("a")
	if headers := r.info("a").Headers; headers["mine"] != "kept" || headers["traceparent"] == "" {
		t.Errorf("the headers are %v", headers)
	}
	for range 2 { // it fails, and then it does not
		if err := l.Reset(ctx); err != nil {
			t.Fatal(err)
		}
		first := <-inside
		eventually(t, "the run's span ends", func() bool {
			return slices.ContainsFunc(s.named("process default"), func(p tracetest.SpanStub) bool { return p.SpanContext.SpanID() == first.SpanID() })
		})
	}

	runs := s.named("process default")
	if len(runs) < 3 {
		t.Fatalf("%d runs", len(runs))
	}
	for i, run := range runs {
		want := []oteltrace.SpanID{span.SpanContext().SpanID()}
		if i > 0 {
			want = append(want, runs[i-1].SpanContext.SpanID())
		}
		var got []oteltrace.SpanID
		for _, link := range run.Links {
			got = append(got, link.SpanContext.SpanID())
		}
		if !slices.Equal(got, want) {
			t.Errorf("run %d is linked to %v, want %v", i, got, want)
		}
		if run.SpanKind != oteltrace.SpanKindConsumer || !strings.Contains(text(run), "messaging.destination.name=default") {
			t.Errorf("run %d: %v %s", i, run.SpanKind, text(run))
		}
		if all := text(run) + run.Status.Description; strings.Contains(all, "secret") {
			t.Errorf("run %d tells %q", i, all)
		}
	}
	var results []string
	for i, throttle := range s.named("throttle default") {
		if throttle.Parent.SpanID() != runs[i].SpanContext.SpanID() {
			t.Errorf("throttle %d is not under its run", i)
		}
		_, after, _ := strings.Cut(text(throttle), "headgate.throttle.result=")
		result, _, _ := strings.Cut(after, " ")
		results = append(results, result)
	}
	if results[0] != "rescheduled" || !slices.Contains([]string{"ran", "waited"}, results[len(results)-1]) {
		t.Errorf("the throttle's results are %v", results)
	}
	for _, reserve := range s.named("reserve vendor") {
		if !reserve.Parent.IsValid() {
			t.Error("a claim is under no throttle")
		}
	}
	counts := s.counts(t)
	if counts["headgate.throttle.reschedules"] < 1 || counts["headgate.throttle.tasks"] != 2 || counts["headgate.throttle.delay"] != 2 {
		t.Errorf("the metrics count %v", counts)
	}
}

// counts is how much each metric has counted.
func (s *telescope) counts(t *testing.T) map[string]int {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := s.reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	counts := make(map[string]int)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					counts[m.Name] += int(p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					counts[m.Name] += int(p.Count)
				}
			}
		}
	}
	return counts
}

// Headers without a trace, or with one that is not valid, make a trace of its own; without a provider all works the same.
func TestTracingWithoutAContext(t *testing.T) {
	r := newRig(t)
	s := newTelescope()
	server := r.serve(r.throttle(r.limiter(onePerDay()), worker.WithTracing(s.opts...), worker.WithKey(func(ctx context.Context, _ *asynq.Task) string {
		id, _ := asynq.GetTaskID(ctx)
		return id
	})), nil)
	r.enqueue("plain")
	bad := asynq.NewTaskWithHeaders("limited", nil, map[string]string{"traceparent": "00-zz-zz-01"})
	if _, err := r.client.Enqueue(bad, asynq.TaskID("bad")); err != nil {
		t.Fatal(err)
	}
	r.allRan(2)
	server.stop()
	for _, run := range s.named("process default") {
		if len(run.Links) != 0 || run.Parent.IsValid() {
			t.Errorf("links %v, parent %v", run.Links, run.Parent)
		}
	}
	other := newRig(t)
	other.serve(other.throttle(other.limiter(onePerDay()), worker.WithTracing()), nil)
	other.enqueue("a")
	other.allRan(1)
}

// A task that ends because its deadline comes first, and one whose limiter fails.
func TestTracesOfWhatNeverRuns(t *testing.T) {
	r := newRig(t)
	s := newTelescope()
	l := r.limiter(onePerDay())
	use(t, l, 1)
	r.serve(r.throttle(l, worker.WithTracing(s.opts...), worker.WithCost(func(ctx context.Context, _ *asynq.Task) int {
		if id, _ := asynq.GetTaskID(ctx); id == "huge" {
			return 2
		}
		return 1
	})), nil)
	r.enqueue("huge", asynq.MaxRetry(0))
	eventually(t, "it is archived", func() bool { return r.queue().Archived == 1 })
	r.enqueue("hopeless", asynq.Deadline(time.Now().Add(10*time.Second)))
	eventually(t, "both are archived", func() bool { return r.queue().Archived == 2 })
	var seen []string
	for _, throttle := range s.named("throttle default") {
		seen = append(seen, text(throttle))
	}
	all := strings.Join(seen, "\n")
	for _, want := range []string{"headgate.throttle.result=rejected", "headgate.throttle.result=error", "error.type=never_allowed"} {
		if !strings.Contains(all, want) {
			t.Errorf("there is no %s in\n%s", want, all)
		}
	}
}

// What links a task's runs is forgotten when the task is done, by itself or by a clone.
func TestRunsOfTasksThatAreDoneAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	s := newTelescope()
	l := r.limiter(onePerDay(), headgate.WithName("vendor"))
	use(t, l, 1)
	r.serve(r.throttle(l, worker.WithTracing(s.opts...)), nil)
	remembered := func() int { return len(r.rdb.Keys(ctx, "hg:{test}:run:*").Val()) }
	r.enqueue("a")
	r.enqueue("last", asynq.MaxRetry(0))
	eventually(t, "both went away", func() bool { return r.queue().Retry == 1 && r.queue().Scheduled == 1 && remembered() == 2 })
	for n := 1; n <= 2; n++ {
		if err := l.Reset(ctx); err != nil {
			t.Fatal(err)
		}
		r.allRan(n)
	}
	eventually(t, "nothing is remembered", func() bool { return remembered() == 0 })
}
