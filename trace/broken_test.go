package trace

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/internal/redistest"
)

// Providers, and what they make, that are broken in one way each.
type (
	nilTracers struct{ tracenoop.TracerProvider }
	nilMeters  struct{ metricnoop.MeterProvider }

	panickingTracers struct{ tracenoop.TracerProvider }
	panickingTracer  struct{ tracenoop.Tracer }
	panickingMeters  struct{ metricnoop.MeterProvider }
	panickingMeter   struct{ metricnoop.Meter }
	panickingCounter struct{ metricnoop.Int64Counter }

	nilSpanTracers struct{ tracenoop.TracerProvider }
	nilSpanTracer  struct{ tracenoop.Tracer }
	failingMeters  struct{ metricnoop.MeterProvider }
	failingMeter   struct{ metricnoop.Meter }
)

func (nilTracers) Tracer(string, ...trace.TracerOption) trace.Tracer { return nil }
func (nilMeters) Meter(string, ...metric.MeterOption) metric.Meter   { return nil }

func (panickingTracers) Tracer(string, ...trace.TracerOption) trace.Tracer { return panickingTracer{} }
func (panickingTracer) Start(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span) {
	panic("a tracer")
}
func (panickingMeters) Meter(string, ...metric.MeterOption) metric.Meter { return panickingMeter{} }
func (panickingMeter) Int64Counter(string, ...metric.Int64CounterOption) (metric.Int64Counter, error) {
	return panickingCounter{}, nil
}
func (panickingCounter) Add(context.Context, int64, ...metric.AddOption) { panic("a counter") }

func (nilSpanTracers) Tracer(string, ...trace.TracerOption) trace.Tracer { return nilSpanTracer{} }
func (nilSpanTracer) Start(context.Context, string, ...trace.SpanStartOption) (context.Context, trace.Span) {
	return nil, nil
}
func (failingMeters) Meter(string, ...metric.MeterOption) metric.Meter { return failingMeter{} }
func (failingMeter) Float64Histogram(string, ...metric.Float64HistogramOption) (metric.Float64Histogram, error) {
	return nil, errors.New("no histograms today")
}

// silence keeps otel's reports of what these tests break from the log.
func silence(t *testing.T) {
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
	t.Cleanup(func() { otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.Log(err) })) })
}

type panickingExporter struct{}

func (panickingExporter) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error {
	panic("an exporter")
}
func (panickingExporter) Shutdown(context.Context) error { return nil }

// Telemetry that is broken breaks no decision.
func TestNothingThatIsBrokenReachesTheCaller(t *testing.T) {
	silence(t)
	for name, opts := range map[string][]Option{
		"no options":          nil,
		"nil option":          {nil},
		"nil providers":       {WithTracerProvider(nil), WithMeterProvider(nil), WithKey(nil)},
		"nil pointers":        {WithTracerProvider((*sdktrace.TracerProvider)(nil)), WithMeterProvider((*sdkmetric.MeterProvider)(nil))},
		"nothing made":        {WithTracerProvider(nilTracers{}), WithMeterProvider(nilMeters{})},
		"panics":              {WithTracerProvider(panickingTracers{}), WithMeterProvider(panickingMeters{})},
		"no spans, no meters": {WithTracerProvider(nilSpanTracers{}), WithMeterProvider(failingMeters{})},
		"panicking exporter":  {WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(panickingExporter{})))},
		"panicking key": {
			WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(tracetest.NewInMemoryExporter()))),
			WithKey(func(string) string { panic("a key") }),
		},
		"shut down": {
			WithTracerProvider(shutDown(t, sdktrace.NewTracerProvider())),
			WithMeterProvider(shutDown(t, sdkmetric.NewMeterProvider())),
		},
	} {
		t.Run(name, func(t *testing.T) {
			every := twice
			every.Per = 20 * time.Millisecond
			store := headgate.Redis(redistest.Start(t).Client())
			l, err := headgate.New(store, "secret", every, Instrument(append(opts, WithScriptCalls())...))
			if err != nil {
				t.Fatal(err)
			}
			do(l)
			if err := l.WaitN(context.Background(), 2); err != nil {
				t.Error(err)
			}
			if err := l.Wait(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}

func shutDown[P interface{ Shutdown(context.Context) error }](t *testing.T, provider P) P {
	if err := provider.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	return provider
}

// The span of what panicked in the metrics still ends, and a panicking exporter loses no count.
func TestOneBrokenHalfLeavesTheOther(t *testing.T) {
	silence(t)
	r := newRig(t)
	for _, opts := range [][]Option{
		{WithTracerProvider(r.tracers), WithMeterProvider(panickingMeters{})},
		{WithTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSyncer(panickingExporter{}))), WithMeterProvider(r.meters)},
	} {
		l, err := headgate.New(headgate.Memory(), "secret", twice, headgate.WithName("vendor"), Instrument(opts...))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Allow(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	r.wantLines("allow vendor: algorithm=token_bucket cost=1 remaining=1 result=acquired source=memory")
	if p := points(r.collect()["headgate.requests"]); len(p) != 1 || p[0].value != 1 {
		t.Errorf("counted %v", p)
	}
}

// Global providers may come after the limiter, and whoever sets none gets nothing.
func TestGlobalProvidersMayBeSetLater(t *testing.T) {
	l, err := headgate.New(headgate.Memory(), "secret", twice, headgate.WithName("vendor"), Instrument())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Allow(context.Background()); err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	otel.SetTracerProvider(r.tracers)
	otel.SetMeterProvider(r.meters)
	if _, err := l.Allow(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.wantLines("allow vendor: algorithm=token_bucket cost=1 remaining=0 result=acquired source=memory")
	if p := points(r.collect()["headgate.requests"]); len(p) != 1 || p[0].value != 1 {
		t.Errorf("counted %v", p)
	}
}

// Many callers, some of whom leave, and limiters whose names hold what they must not.
func TestManyCallersAtOnce(t *testing.T) {
	r := newRig(t)
	instrument := r.instrument(WithScriptCalls(), WithKey(func(key string) string { return key }))
	every := twice
	every.Per = time.Millisecond
	store := headgate.Redis(redistest.Start(t).Client())
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for j := range 40 {
				name := headgate.WithName("vendor")
				if i == 0 {
					name = headgate.WithName(time.Duration(j).String())
				}
				l, err := headgate.New(store, "secret", every, name, instrument)
				if err != nil {
					t.Error(err)
					return
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+j%20)*time.Millisecond)
				if j%2 == 0 {
					time.AfterFunc(time.Duration(j)*100*time.Microsecond, cancel)
				}
				_ = l.Wait(ctx)
				cancel()
			}
		})
	}
	callers.Wait()
	if p := points(r.collect()["headgate.wait.active"]); len(p) > 0 && p[0].value != 0 {
		t.Errorf("%v still sleep", p[0].value)
	}
}

func TestACacheIsBounded(t *testing.T) {
	built := 0
	c := newCache(func(n int) int { built++; return -n })
	for range 2 {
		for n := range mostCached + 100 {
			if c.get(n) != -n {
				t.Fatal(n)
			}
		}
	}
	if len(c.built) != mostCached || built != mostCached+200 {
		t.Errorf("%d are kept, %d were built", len(c.built), built)
	}
}
