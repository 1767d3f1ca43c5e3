package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"

	"github.com/headgate-go/headgate/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestItPrintsWaterfallsAndMetrics(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	for name, args := range map[string][]string{
		"embedded": nil,
		"redis":    {"-redis", redistest.Start(t).Addr, "-keys"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := run(t.Context(), args, &out); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{
				"\n  wait api ", "\n    sleep api ", "\n    EVALSHA token_bucket ", "\n    EVAL fixed_window ", "\n    cancel api ",
				"  503\n", "  429\n", "  499\n", "canceled", "overshoot", "linked to another trace",
				"limiter=users operation=allow result=denied source=redis",
				"headgate.wait.active", "5 a second",
			} {
				if !strings.Contains(out.String(), want) {
					t.Errorf("there is no %q in\n%s", want, &out)
				}
			}
			if shown := strings.Contains(out.String(), "key tracing:users/ann"); shown != (name == "redis") {
				t.Errorf("a key is shown: %v", shown)
			}
			if strings.Contains(out.String(), "ERROR") {
				t.Errorf("something is red:\n%s", &out)
			}
		})
	}
}

// A collector gets all of it, and the terminal nothing.
func TestItExportsByOTLP(t *testing.T) {
	var mu sync.Mutex
	got := map[string]string{}
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.Path] += string(body)
	}))
	defer collector.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	var out bytes.Buffer
	if err := run(t.Context(), nil, &out); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"/v1/traces": "sleep api", "/v1/metrics": "headgate.wait.duration"} {
		if !strings.Contains(got[path], want) {
			t.Errorf("%s got no %q", path, want)
		}
	}
	if lines := strings.Count(out.String(), "\n"); lines != 1 {
		t.Errorf("printed:\n%s", &out)
	}
	http.DefaultClient.CloseIdleConnections()
}

func TestBadFlagsAndNoRedisAreTold(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	for _, args := range [][]string{{"-nothing"}, {"more"}, {"-redis", "127.0.0.1:1"}} {
		if err := run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-h"}, &out); err != nil || !strings.Contains(out.String(), "-redis") {
		t.Errorf("%v: %s", err, &out)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := run(ended, nil, io.Discard); err == nil {
		t.Error("a program that was interrupted says nothing")
	}
}

// stub is a span of trace 1, from and to so many milliseconds after its beginning.
func stub(id, parent byte, name string, kind trace.SpanKind, from, to int, attributes ...attribute.KeyValue) tracetest.SpanStub {
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000).Add(time.Duration(ms) * time.Millisecond) }
	context := func(id byte) trace.SpanContext {
		return trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{id}})
	}
	return tracetest.SpanStub{
		Name: name, SpanKind: kind, SpanContext: context(id), Parent: context(parent),
		StartTime: at(from), EndTime: at(to), Attributes: attributes,
	}
}

func TestBarsStandWhereTheirSpansWere(t *testing.T) {
	var out bytes.Buffer
	err := printWaterfalls(&out, tracetest.SpanStubs{ // as they ended, or had not when their parent did
		stub(4, 2, "sleep api", trace.SpanKindInternal, 20, 60, attribute.Float64("headgate.overshoot", 0.001)),
		stub(2, 1, "wait api", trace.SpanKindInternal, 0, 60, attribute.String("headgate.result", "acquired")),
		stub(5, 9, "of nobody", trace.SpanKindInternal, 99, 100),
		stub(1, 0, "request", trace.SpanKindServer, 0, 90),
		stub(3, 2, "EVALSHA", trace.SpanKindClient, 0, 0),
	})
	want := `░ asleep   ▒ in another system   █ all else

request       │█████████████████████████████████████████████     │    90.0 ms
  wait api    │██████████████████████████████                    │    60.0 ms  acquired
    EVALSHA   │▒                                                 │     0.0 ms
    sleep api │          ░░░░░░░░░░░░░░░░░░░░                    │    40.0 ms  overshoot 0.001 s
of nobody     │                                                 █│     1.0 ms

`
	if err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, &out, want)
	}
}
