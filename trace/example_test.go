package trace_test

import (
	"context"
	"fmt"
	"time"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/trace"
)

func ExampleInstrument() {
	exporter := tracetest.NewInMemoryExporter() // yours sends them away
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	meters := sdkmetric.NewMeterProvider()

	limiter, err := headgate.New(headgate.Memory(), "openai:rpm",
		algos.TokenBucket{Rate: 500, Per: time.Minute, Burst: 1},
		headgate.WithName("openai"),
		trace.Instrument(trace.WithTracerProvider(tracers), trace.WithMeterProvider(meters)))
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		if err := limiter.Wait(context.Background()); err != nil {
			fmt.Println(err)
		}
	}
	for _, span := range exporter.GetSpans() {
		fmt.Println(span.Name)
	}
	// Output:
	// wait openai
	// sleep openai
	// wait openai
}
