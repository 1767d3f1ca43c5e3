package main

import (
	"bytes"
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/headgate-go/headgate/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryTaskRuns(t *testing.T) {
	for name, args := range map[string][]string{"embedded": nil, "redis": {"-redis", redistest.Start(t).Addr}} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := run(t.Context(), append(args, "-tasks", "60", "-rate", "50"), &out); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"ann 0 0 30 ", "bob 0 0 18 ", "cyd 0 0 12 ", "share of the limit used", "lost, or run twice 0, 0"} {
				if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
					t.Errorf("there is no %q in\n%s", want, &out)
				}
			}
		})
	}
}

// Figures that are known beforehand.
func TestReport(t *testing.T) {
	b := newBook(options{rate: 10, burst: 1})
	start := time.Now()
	for i, after := range []time.Duration{0, 100, 150, 300} { // ms; the third is early by 50
		id := string(rune('a' + i))
		b.enqueued(id, "ann")
		b.tasks[id].enqueued = start
		b.tasks[id].starts = []time.Time{start.Add(after * time.Millisecond)}
		b.tasks[id].bounces = i % 2
	}
	b.claims = 4
	var out bytes.Buffer
	if err := b.report(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"at least 1.000", "at most 0.5", "p99 0.50 / 1", "p99 0s / 0s", "calls a task 1.50"} {
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), want) {
			t.Errorf("there is no %q in\n%s", want, &out)
		}
	}
	b.tasks["a"].starts = nil
	b.tasks["b"].starts = append(b.tasks["b"].starts, start)
	if err := b.report(&out); err == nil || !strings.Contains(err.Error(), "1 tasks did not run, 1 more than once") {
		t.Error(err)
	}
}

func TestFlags(t *testing.T) {
	var out bytes.Buffer
	if _, err := parseOptions([]string{"-h"}, &out); !errors.Is(err, flag.ErrHelp) || !strings.Contains(out.String(), "-redis") {
		t.Errorf("%v, %q", err, &out)
	}
	for _, args := range [][]string{{"-tasks", "2"}, {"-rate", "0"}, {"-burst", "x"}, {"x"}} {
		if err := run(t.Context(), args, &out); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}
