package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
)

// barWidth is how many characters wide the longest bar is.
const barWidth = 50

// The bars: a sleep is waiting, a client's span is another system at work.
const (
	barOfSleep  = '░'
	barOfClient = '▒'
	barOfOther  = '█'
)

// printWaterfalls draws the spans trace by trace, in the order in which the traces began.
func printWaterfalls(w io.Writer, spans tracetest.SpanStubs) error {
	traces := map[trace.TraceID]tracetest.SpanStubs{}
	var order []trace.TraceID
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int { return a.StartTime.Compare(b.StartTime) })
	for _, s := range spans {
		id := s.SpanContext.TraceID()
		if traces[id] == nil {
			order = append(order, id)
		}
		traces[id] = append(traces[id], s)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%c asleep   %c in another system   %c all else\n\n", barOfSleep, barOfClient, barOfOther)
	for _, id := range order {
		newWaterfall(traces[id]).draw(&b)
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// A waterfall is one trace.
type waterfall struct {
	begin    time.Time
	lasts    time.Duration
	children map[trace.SpanID]tracetest.SpanStubs // by the parent; none for roots
	lines    []line
	name     int // the width of the longest name
}

// A line is one span, as deep as it is indented.
type line struct {
	name string
	span tracetest.SpanStub
}

func newWaterfall(spans tracetest.SpanStubs) *waterfall {
	f := &waterfall{begin: spans[0].StartTime, children: map[trace.SpanID]tracetest.SpanStubs{}}
	known := map[trace.SpanID]bool{}
	for _, s := range spans {
		known[s.SpanContext.SpanID()] = true
		f.lasts = max(f.lasts, s.EndTime.Sub(f.begin))
	}
	for _, s := range spans {
		parent := s.Parent.SpanID()
		if !known[parent] {
			parent = trace.SpanID{}
		}
		f.children[parent] = append(f.children[parent], s)
	}
	f.descend(trace.SpanID{}, 0)
	return f
}

func (f *waterfall) descend(parent trace.SpanID, depth int) {
	for _, s := range f.children[parent] {
		name := strings.Repeat("  ", depth) + s.Name
		f.name = max(f.name, utf8.RuneCountInString(name))
		f.lines = append(f.lines, line{name, s})
		f.descend(s.SpanContext.SpanID(), depth+1)
	}
}

func (f *waterfall) draw(b *strings.Builder) {
	for _, l := range f.lines {
		took := l.span.EndTime.Sub(l.span.StartTime)
		padding := strings.Repeat(" ", f.name-utf8.RuneCountInString(l.name))
		fmt.Fprintf(b, "%s%s │%s│ %7.1f ms%s\n", l.name, padding, f.bar(l.span), float64(took)/float64(time.Millisecond), notes(l.span))
	}
}

// bar shows when the span was, at least one character of it.
func (f *waterfall) bar(s tracetest.SpanStub) string {
	column := func(t time.Time) int {
		return int(int64(t.Sub(f.begin)) * barWidth / max(int64(f.lasts), 1))
	}
	from := min(column(s.StartTime), barWidth-1)
	to := max(column(s.EndTime), from+1)
	fill := barOfOther
	switch {
	case strings.HasPrefix(s.Name, "sleep "):
		fill = barOfSleep
	case s.SpanKind == trace.SpanKindClient:
		fill = barOfClient
	}
	return strings.Repeat(" ", from) + strings.Repeat(string(fill), to-from) + strings.Repeat(" ", barWidth-to)
}

// notes are what a reader of the trace wants to know first.
func notes(s tracetest.SpanStub) string {
	var b strings.Builder
	for _, shown := range []struct {
		key         attribute.Key
		text, after string
	}{
		{"http.response.status_code", "", ""},
		{"headgate.result", "", ""},
		{"db.response.status_code", "", ""},
		{"headgate.retry_after", "retry after ", " s"},
		{"headgate.overshoot", "overshoot ", " s"},
		{"headgate.returned", "returned ", ""},
		{"headgate.key", "key ", ""},
	} {
		for _, a := range s.Attributes {
			if a.Key == shown.key {
				value := a.Value.String()
				if a.Value.Type() == attribute.FLOAT64 {
					value = fmt.Sprintf("%.4g", a.Value.AsFloat64())
				}
				fmt.Fprintf(&b, "  %s%s%s", shown.text, value, shown.after)
			}
		}
	}
	if len(s.Links) > 0 {
		b.WriteString("  linked to another trace")
	}
	if s.Status.Code == codes.Error {
		b.WriteString("  ERROR " + s.Status.Description)
	}
	return b.String()
}
