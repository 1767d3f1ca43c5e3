package trace

import (
	"runtime/debug"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"github.com/headgate-go/headgate"
)

// scope names this package in what is exported.
const scope = "github.com/headgate-go/headgate/trace"

// Instrument makes an option of headgate.New and NewShared that has each operation of the limiter, and of those that its
// For makes, told to OpenTelemetry. The option may be used for any number of limiters.
//
// Telemetry never fails a decision: a provider that is nil is the global one, and what panics is caught and reported to
// otel.Handle. Global providers may be set later than this is called.
func Instrument(opts ...Option) headgate.Option { return headgate.WithHook(newTelemetry(opts).begin) }

func newTelemetry(opts []Option) *telemetry {
	c := newConfig(opts)
	return &telemetry{
		key:         c.key,
		scriptCalls: c.scriptCalls,
		tracer:      c.tracer(),
		instruments: newInstruments(c.meter()),
		starts:      newCache(newStart),
		series:      newCache(newSeries),
	}
}

// An Option changes what Instrument makes.
type Option func(*config)

type config struct {
	tracers     trace.TracerProvider
	meters      metric.MeterProvider
	key         func(string) string
	scriptCalls bool
}

// newConfig fills in the global providers.
func newConfig(opts []Option) (c config) {
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.tracers == nil {
		c.tracers = otel.GetTracerProvider()
	}
	if c.meters == nil {
		c.meters = otel.GetMeterProvider()
	}
	return c
}

// WithTracerProvider has spans made by a provider other than the global one.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return func(c *config) { c.tracers = provider }
}

// WithMeterProvider has metrics made by a provider other than the global one.
func WithMeterProvider(provider metric.MeterProvider) Option {
	return func(c *config) { c.meters = provider }
}

// WithKey puts what the function makes of a limiter's key on its spans, as headgate.key; nothing, if it makes "". The key
// comes with its parts, "sms/+4470001" for instance, escaped where they must be: see Operation.Key. It is the user's data,
// so without this option it is nowhere. The function is called for spans that are recorded, on the caller's goroutine.
func WithKey(show func(key string) string) Option {
	return func(c *config) { c.key = show }
}

// WithScriptCalls makes each run of the script in Redis a span of its own, of kind client, under the one that needed it; if
// several share it, under the first of them that is sampled, with links to the others that are. (The SDK keeps 128 links
// unless its limits say otherwise.) It holds neither the script nor the key. Leave it out where go-redis has instrumentation of its own that makes one.
func WithScriptCalls() Option {
	return func(c *config) { c.scriptCalls = true }
}

// moduleVersion is this module's, as the program was built with.
func moduleVersion() string {
	const module = "github.com/headgate-go/headgate"
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, m := range append(build.Deps, &build.Main) {
			if m.Path == module {
				return m.Version
			}
		}
	}
	return ""
}

func (c config) tracer() (tracer trace.Tracer) {
	defer func() {
		if tracer == nil {
			tracer = tracenoop.Tracer{}
		}
	}()
	defer rescue()
	return c.tracers.Tracer(scope, trace.WithInstrumentationVersion(moduleVersion()), trace.WithSchemaURL(semconv.SchemaURL))
}

func (c config) meter() (meter metric.Meter) {
	defer func() {
		if meter == nil {
			meter = metricnoop.Meter{}
		}
	}()
	defer rescue()
	return c.meters.Meter(scope, metric.WithInstrumentationVersion(moduleVersion()), metric.WithSchemaURL(semconv.SchemaURL))
}
