package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// printMetrics prints each series in a line: its value, or for a histogram how many and how long on average.
func printMetrics(ctx context.Context, w io.Writer, reader *sdkmetric.ManualReader) error {
	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			for _, line := range series(m) {
				if _, err := fmt.Fprintf(table, "%s\t%s\n", m.Name, line); err != nil {
					return err
				}
			}
		}
	}
	return table.Flush()
}

// series are the lines of a metric, sorted.
func series(m metricdata.Metrics) []string {
	var lines []string
	add := func(attributes attribute.Set, value string) {
		lines = append(lines, labels(attributes)+"\t"+value)
	}
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, fmt.Sprint(p.Value))
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			add(p.Attributes, fmt.Sprintf("%.4g a second", p.Value))
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			mean := time.Duration(p.Sum / float64(p.Count) * float64(time.Second))
			add(p.Attributes, fmt.Sprintf("%d, %v on average", p.Count, mean.Round(10*time.Microsecond)))
		}
	}
	slices.Sort(lines)
	return lines
}

// labels leaves out the algorithm, which here goes without saying.
func labels(attributes attribute.Set) string {
	var values []string
	for _, a := range attributes.ToSlice() {
		if a.Key != "headgate.algorithm" {
			values = append(values, strings.TrimPrefix(string(a.Key), "headgate.")+"="+a.Value.String())
		}
	}
	return strings.Join(values, " ")
}
