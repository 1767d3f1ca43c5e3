package main

import (
	"context"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/trace"
)

// tracing measures what an Allow in process costs when it is told to OpenTelemetry, beside one that is told to nobody.
// What exporting costs comes on top, on another goroutine.
func tracing(rounds int) ([]row, error) {
	const turns, callsATurn = 20, 2000
	l := allowed
	l.burst = 1_000_000_000 // there are more calls here
	off, err := headgateIn(headgate.Memory(), userKey, l)
	if err != nil {
		return nil, err
	}
	var rows []row
	for _, on := range []struct {
		name    string
		sampler sdktrace.Sampler
	}{{"not sampled", sdktrace.NeverSample()}, {"sampled", sdktrace.AlwaysSample()}} {
		tracers := sdktrace.NewTracerProvider(sdktrace.WithSampler(on.sampler), sdktrace.WithBatcher(tracetest.NewNoopExporter()))
		meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(sdkmetric.NewManualReader()))
		limiter, err := headgate.New(headgate.Memory(), userKey, algos.TokenBucket{Rate: l.rate, Per: l.per, Burst: l.burst},
			trace.Instrument(trace.WithTracerProvider(tracers), trace.WithMeterProvider(meters)))
		if err != nil {
			return nil, err
		}
		traced := func(ctx context.Context) (bool, error) {
			decision, err := limiter.Allow(ctx)
			return decision.Allowed, err
		}
		times := row{name: "in process: Allow, " + on.name, unit: "ns"}
		number := row{name: "allocations an Allow, " + on.name}
		for round := range rounds + 1 {
			var ofOff, ofTraced series
			timing := func(c call, into *series) func() error {
				return func() error {
					began := time.Now()
					err := repeat(context.Background(), c, callsATurn, true)
					*into = append(*into, float64(time.Since(began))/callsATurn)
					return err
				}
			}
			if err := interleave(turns, timing(off, &ofOff), timing(traced, &ofTraced)); err != nil {
				return nil, err
			}
			if round == 0 { // it warms up
				continue
			}
			times.peer = append(times.peer, ofOff.median())
			times.ours = append(times.ours, ofTraced.median())
			for _, of := range []struct {
				call call
				into *series
			}{{off, &number.peer}, {traced, &number.ours}} {
				n, _, err := allocated(of.call, callsATurn)
				if err != nil {
					return nil, err
				}
				*of.into = append(*of.into, n)
			}
		}
		if err := tracers.Shutdown(context.Background()); err != nil {
			return nil, err
		}
		rows = append(rows, times, number)
	}
	return rows, nil
}
