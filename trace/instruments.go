package trace

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
)

// instruments are those of the table.
type instruments struct {
	requests        metric.Int64Counter
	permits         metric.Int64Counter
	requestDuration metric.Float64Histogram
	waitDuration    metric.Float64Histogram
	waitActive      metric.Int64UpDownCounter
	cancellations   metric.Int64Counter
	returned        metric.Int64Counter
	wasted          metric.Int64Counter
	limit           metric.Float64Gauge
	degraded        metric.Int64Counter
	outages         metric.Int64Counter
	storeDuration   metric.Float64Histogram
}

func newInstruments(meter metric.Meter) instruments {
	return instruments{
		requests:        count(meter, rowRequests),
		permits:         count(meter, rowPermits),
		requestDuration: durations(meter, rowRequestDuration),
		waitDuration:    durations(meter, rowWaitDuration),
		waitActive: made[metric.Int64UpDownCounter](noop.Int64UpDownCounter{}, func() (metric.Int64UpDownCounter, error) {
			return meter.Int64UpDownCounter(rowWaitActive.name, metric.WithUnit(rowWaitActive.unit), metric.WithDescription(rowWaitActive.meaning))
		}),
		cancellations: count(meter, rowCancellations),
		returned:      count(meter, rowReturned),
		wasted:        count(meter, rowWasted),
		limit: made[metric.Float64Gauge](noop.Float64Gauge{}, func() (metric.Float64Gauge, error) {
			return meter.Float64Gauge(rowLimit.name, metric.WithUnit(rowLimit.unit), metric.WithDescription(rowLimit.meaning))
		}),
		degraded:      count(meter, rowDegraded),
		outages:       count(meter, rowOutages),
		storeDuration: durations(meter, rowStoreDuration),
	}
}

func count(meter metric.Meter, row metricRow) metric.Int64Counter {
	return made[metric.Int64Counter](noop.Int64Counter{}, func() (metric.Int64Counter, error) {
		return meter.Int64Counter(row.name, metric.WithUnit(row.unit), metric.WithDescription(row.meaning))
	})
}

func durations(meter metric.Meter, row metricRow) metric.Float64Histogram {
	return made[metric.Float64Histogram](noop.Float64Histogram{}, func() (metric.Float64Histogram, error) {
		return meter.Float64Histogram(row.name, metric.WithUnit(row.unit), metric.WithDescription(row.meaning),
			metric.WithExplicitBucketBoundaries(row.bounds...))
	})
}

// made is the instrument, or, if none can be had, one that does nothing.
func made[T any](nothing T, instrument func() (T, error)) (got T) {
	got = nothing
	defer rescue()
	in, err := instrument()
	if err != nil {
		otel.Handle(err)
	}
	if any(in) != nil {
		got = in
	}
	return got
}
