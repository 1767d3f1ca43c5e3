package trace

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/codes"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

func TestMain(m *testing.M) {
	// go-redis looks once more, a second later, whether a server that refused it is there, before it sees that it was closed.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

// A rig keeps what is exported, and looks at it.
type rig struct {
	t        *testing.T
	exporter *tracetest.InMemoryExporter
	reader   *sdkmetric.ManualReader
	tracers  *sdktrace.TracerProvider
	meters   *sdkmetric.MeterProvider
}

func newRig(t *testing.T, opts ...sdktrace.TracerProviderOption) *rig {
	r := &rig{t: t, exporter: tracetest.NewInMemoryExporter(), reader: sdkmetric.NewManualReader()}
	r.tracers = sdktrace.NewTracerProvider(append(opts, sdktrace.WithSyncer(r.exporter))...)
	r.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(r.reader))
	return r
}

func (r *rig) instrument(opts ...Option) headgate.Option {
	return Instrument(append([]Option{WithTracerProvider(r.tracers), WithMeterProvider(r.meters)}, opts...)...)
}

// limiter is one named vendor.
func (r *rig) limiter(store headgate.Store, algorithm algos.Algorithm, opts ...Option) *headgate.Limiter {
	r.t.Helper()
	l, err := headgate.New(store, "secret", algorithm, headgate.WithName("vendor"), r.instrument(opts...))
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

// lines are the spans in the order of their ends, as one line each: the name, what it is under and linked to, the
// attributes but for the limiter's name, and the status. They are forgotten then.
func (r *rig) lines() []string {
	ended := r.exporter.GetSpans()
	r.exporter.Reset()
	names := map[trace.SpanID]string{}
	for _, s := range ended {
		names[s.SpanContext.SpanID()] = s.Name
	}
	lines := make([]string, 0, len(ended))
	for _, s := range ended {
		line := s.Name
		if s.Parent.IsValid() {
			line += " < " + names[s.Parent.SpanID()]
		}
		for _, link := range s.Links {
			line += " ~ " + names[link.SpanContext.SpanID()]
		}
		var attributes []string
		named := false
		for _, a := range s.Attributes {
			if a.Key == "headgate.limiter" {
				named = a.Value.AsString() == "vendor"
				continue
			}
			attributes = append(attributes, strings.TrimPrefix(string(a.Key), "headgate.")+"="+a.Value.String())
		}
		if !named && strings.Contains(s.Name, "vendor") {
			r.t.Errorf("%s does not have its limiter's name", s.Name)
		}
		slices.Sort(attributes)
		line += ": " + strings.Join(attributes, " ")
		if s.Status.Code != codes.Unset {
			line += fmt.Sprintf(" [%s]", s.Status.Code)
		}
		lines = append(lines, line)
	}
	return lines
}

func (r *rig) wantLines(want ...string) {
	r.t.Helper()
	if got := r.lines(); !slices.Equal(got, want) {
		r.t.Errorf("the spans are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// collect is the metrics by name.
func (r *rig) collect() map[string]metricdata.Metrics {
	r.t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.reader.Collect(context.Background(), &all); err != nil {
		r.t.Fatal(err)
	}
	found := map[string]metricdata.Metrics{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			found[m.Name] = m
		}
	}
	return found
}

// inVirtualTime runs f over each store in the virtual time of a bubble, a real Redis that decides by the bubble's clock
// among them.
func inVirtualTime(t *testing.T, f func(t *testing.T, store headgate.Store, source string)) {
	t.Helper()
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, headgate.Memory(), "memory") })
	})
	t.Run("redis", func(t *testing.T) {
		addr := redistest.Start(t).Addr
		synctest.Test(t, func(t *testing.T) {
			// No timeouts: the bubble's clock leaps while a reply is on its way.
			rdb := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: -1, WriteTimeout: -1, PoolTimeout: time.Hour, MinIdleConns: 0})
			defer rdb.Close()
			f(t, headgate.Redis(rdb, headgate.ClientClock()), "redis")
		})
	})
}

// tick is long, so that no key expires in real time while virtual time passes.
const tick = 100 * time.Second

// twice is one permit a tick, two at once.
var twice = algos.TokenBucket{Rate: 1, Per: tick, Burst: 2}
