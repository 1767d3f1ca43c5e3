package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// A telemetry is where spans and metrics go.
type telemetry struct {
	tracers *sdktrace.TracerProvider
	meters  *sdkmetric.MeterProvider

	// For the terminal; nil where a collector gets it all.
	spans   *tracetest.InMemoryExporter
	metrics *sdkmetric.ManualReader
}

// newTelemetry exports by OTLP if the environment names a collector, as the exporters read it themselves.
func newTelemetry(ctx context.Context) (*telemetry, error) {
	service := resource.NewSchemaless(semconv.ServiceName("headgate-tracing"))
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" {
		t := &telemetry{spans: tracetest.NewInMemoryExporter(), metrics: sdkmetric.NewManualReader()}
		t.tracers = sdktrace.NewTracerProvider(sdktrace.WithSyncer(t.spans), sdktrace.WithResource(service))
		t.meters = sdkmetric.NewMeterProvider(sdkmetric.WithReader(t.metrics), sdkmetric.WithResource(service))
		return t, nil
	}
	spans, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, err
	}
	metrics, err := otlpmetrichttp.New(ctx)
	if err != nil {
		return nil, err
	}
	return &telemetry{
		tracers: sdktrace.NewTracerProvider(sdktrace.WithBatcher(spans), sdktrace.WithResource(service)),
		meters: sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metrics)),
			sdkmetric.WithResource(service)),
	}, nil
}

// close prints or sends what was kept.
func (t *telemetry) close(ctx context.Context, w io.Writer) error {
	var err error
	if t.spans == nil {
		_, err = fmt.Fprintf(w, "traces and metrics went to %s\n", os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT"))
	} else {
		err = printWaterfalls(w, t.spans.GetSpans())
		err = errors.Join(err, printMetrics(ctx, w, t.metrics))
	}
	return errors.Join(err, t.tracers.Shutdown(ctx), t.meters.Shutdown(ctx))
}
