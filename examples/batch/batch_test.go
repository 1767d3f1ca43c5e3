package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/headgate-go/headgate/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// numbered makes n lines that differ.
func numbered(n int) []string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf("line %d", i+1)
	}
	return lines
}

func input(n int) io.Reader { return strings.NewReader(strings.Join(numbered(n), "\n")) }

// figure finds the first number after a label of the report.
func figure(t *testing.T, out, label string) int {
	t.Helper()
	found := regexp.MustCompile(`(?m)^` + label + ` +(\d+)`).FindStringSubmatch(out)
	if found == nil {
		t.Fatalf("the report has no %q:\n%s", label, out)
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The whole program, in real time. How many 429s there are depends here on how busy the machine is, so that they are
// none is tested in virtual time: see send_test.go. What holds on any machine is that each costs one more permit.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lines")
	if err := os.WriteFile(file, []byte(strings.Join(numbered(60), "\r\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"standard input": {"-in", "-"},
		"file":           {"-in", file},
		"one worker":     {"-in", "-", "-workers", "1"},
		"naive":          {"-in", "-", "-naive"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := run(t.Context(), append(args, "-rate", "200"), input(60), &out); err != nil {
				t.Fatalf("%v\n%s", err, &out)
			}
			sent, refused := figure(t, out.String(), "sent"), figure(t, out.String(), "429s")
			decisions := figure(t, out.String(), "decisions")
			if sent != 60 || figure(t, out.String(), "failed") != 0 {
				t.Errorf("not all 60 lines were sent:\n%s", &out)
			}
			if name == "naive" {
				if decisions < sent+refused {
					t.Errorf("%d requests on %d decisions", sent+refused, decisions)
				}
			} else if decisions != sent+refused {
				t.Errorf("%d requests took %d decisions; want one each", sent+refused, decisions)
			}
		})
	}
}

// Copies of the program that share a Redis and an API, as in the package's comment.
func TestRunTogether(t *testing.T) {
	server := redistest.Start(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	read, write := io.Pipe()
	var serving sync.WaitGroup
	serving.Go(func() {
		err := run(ctx, []string{"-serve", "-rate", "200"}, nil, write)
		_ = write.CloseWithError(err)
	})
	var api string
	if _, err := fmt.Fscanf(read, "POST to %s", &api); err != nil {
		t.Fatal(err)
	}
	api = strings.TrimSuffix(api, "/messages:")
	var rest bytes.Buffer
	serving.Go(func() { _, _ = rest.ReadFrom(read) })

	var sent, decisions atomic.Int64
	var copies sync.WaitGroup
	for range 2 {
		copies.Go(func() {
			var out bytes.Buffer
			args := []string{"-in", "-", "-rate", "200", "-redis", server.Addr, "-api", api}
			if err := run(ctx, args, input(30), &out); err != nil {
				t.Errorf("%v\n%s", err, &out)
				return
			}
			sent.Add(int64(figure(t, out.String(), "sent") + figure(t, out.String(), "429s")))
			decisions.Add(int64(figure(t, out.String(), "decisions")))
		})
	}
	copies.Wait()
	stop()
	serving.Wait()
	if got := figure(t, rest.String(), "the API admitted"); got != 60 {
		t.Errorf("the API admitted %d requests; want 60", got)
	}
	if sent.Load() != decisions.Load() {
		t.Errorf("%d requests took %d decisions; want one each", sent.Load(), decisions.Load())
	}
	if got := int64(server.Calls("evalsha")); got == 0 || got > decisions.Load() { // those that come together share one
		t.Errorf("%d decisions, and Redis knows of %d calls", decisions.Load(), got)
	}
}

// Ctrl-C, once five lines are out and the sixth has a second to wait.
func TestRunInterrupted(t *testing.T) {
	ctx, interrupt := context.WithCancelCause(t.Context())
	ctrlC := errors.New("interrupt signal received")
	var requests atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 5 {
			interrupt(ctrlC)
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	defer server.Close()
	var out bytes.Buffer
	args := []string{"-in", "-", "-rate", "1", "-burst", "5", "-api", server.URL}
	err := run(ctx, args, input(60), &out)
	if !errors.Is(err, ctrlC) || !strings.Contains(err.Error(), fmt.Sprintf("%d of 60 lines were not sent", 60-requests.Load())) {
		t.Errorf("the error is %q", err)
	}
	if got := figure(t, out.String(), "sent"); got != int(requests.Load()) {
		t.Errorf("%d lines reported as sent; the API had %d", got, requests.Load())
	}
	if !strings.Contains(out.String(), "stopped: interrupt signal received\n") {
		t.Errorf("the report does not say why it is short:\n%s", &out)
	}
}

func TestRunWithoutAPI(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	var out bytes.Buffer
	err := run(t.Context(), []string{"-in", "-", "-api", server.URL}, input(3), &out)
	if err == nil || err.Error() != "3 of 3 lines were not sent: the API answered 404 Not Found" {
		t.Errorf("the error is %v", err)
	}
	if got := figure(t, out.String(), "failed"); got != 3 {
		t.Errorf("%d lines reported as failed; want 3", got)
	}
}

func TestRunWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	server.Kill()
	var out bytes.Buffer
	err := run(t.Context(), []string{"-in", "-", "-redis", server.Addr}, input(3), &out)
	if err == nil || !strings.Contains(err.Error(), "3 of 3 lines were not sent: headgate: store: ") {
		t.Errorf("the error is %v", err)
	}
}

func TestOptions(t *testing.T) {
	for _, args := range [][]string{
		{"-workers", "0"}, {"-rate", "0"}, {"-burst", "-1"}, {"-tolerance", "-1s"}, {"-no-such-flag"}, {"lines.txt"},
		{"-serve", "-api", "http://127.0.0.1"}, {"-in", filepath.Join(t.TempDir(), "missing")}, {"-api", ":"},
		{"-listen", "127.0.0.1:none"}, {"-serve", "-listen", "127.0.0.1:none"},
	} {
		var out bytes.Buffer
		if err := run(t.Context(), args, strings.NewReader(""), &out); err == nil || out.Len() > 0 {
			t.Errorf("%v: the error is %v, and the output %q", args, err, &out)
		}
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-h"}, nil, &out); err != nil || !strings.Contains(out.String(), "-naive") {
		t.Errorf("-h: the error is %v, and the output %q", err, &out)
	}
}

func TestLines(t *testing.T) {
	for text, want := range map[string][]string{
		"":                 nil,
		"\n \n\t\r\n":      nil,
		"a":                {"a"},
		"a\nb\n":           {"a", "b"},
		"a\r\n\r\n b \r\n": {"a", " b "},
	} {
		got, err := readLines(t.Context(), "-", strings.NewReader(text))
		if err != nil || strings.Join(got, "|") != strings.Join(want, "|") {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
	long := strings.Repeat("x", 1<<20)
	if got, err := readLines(t.Context(), "-", strings.NewReader(long+"\nb")); err != nil || len(got) != 2 || got[0] != long {
		t.Errorf("a line of a megabyte does not get through: %v", err)
	}
	own, err := readLines(t.Context(), "", nil)
	if err != nil || len(own) != 400 {
		t.Errorf("the program's own lines are %d, %v; want 400", len(own), err)
	}
}

func TestLinesInterrupted(t *testing.T) {
	terminal, keyboard := io.Pipe()
	defer func() { _ = keyboard.Close() }() // lets the read that was left behind go
	ctx, interrupt := context.WithTimeout(t.Context(), time.Millisecond)
	defer interrupt()
	if _, err := readLines(ctx, "-", terminal); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
}
