package trace

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/internal/redistest"
)

// The runs of the script are spans on request, with the command that did the work.
func TestScriptCallsAreSpansOnRequest(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	l := r.limiter(headgate.Redis(redistest.Start(t).Client()), twice, WithScriptCalls())
	if _, err := l.AllowN(ctx, 2); err != nil {
		t.Fatal(err)
	}
	reservation, err := l.Reserve(ctx)
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]trace.SpanKind{}
	for _, s := range r.exporter.GetSpans() {
		kinds[s.Name] = s.SpanKind
	}
	if kinds["EVALSHA token_bucket"] != trace.SpanKindClient || kinds["allow vendor"] != trace.SpanKindInternal {
		t.Errorf("kinds %v", kinds)
	}
	got := r.lines()
	if err := reservation.Cancel(ctx); err != nil {
		t.Fatal(err)
	}
	got = append(got, r.lines()...)
	if slices.ContainsFunc(got, func(line string) bool {
		return strings.Contains(line, "error.type") || strings.HasSuffix(line, "[Error]")
	}) {
		t.Errorf("something is red:\n%s", strings.Join(got, "\n"))
	}
	const call = "db.operation.name=%s db.stored_procedure.name=token_bucket db.system.name=redis"
	for i, want := range []string{
		// That Redis does not have the script is an answer, and no failure.
		"EVALSHA token_bucket < allow vendor: db.operation.name=EVALSHA db.response.status_code=NOSCRIPT db.stored_procedure.name=token_bucket db.system.name=redis",
		"EVAL token_bucket < allow vendor: " + strings.Replace(call, "%s", "EVAL", 1),
		"allow vendor: algorithm=token_bucket cost=2 remaining=0 result=acquired source=redis",
		"EVALSHA token_bucket < reserve vendor: " + strings.Replace(call, "%s", "EVALSHA", 1),
		"reserve vendor: ",
		"EVALSHA token_bucket < cancel vendor: " + strings.Replace(call, "%s", "EVALSHA", 1),
		"cancel vendor ~ ",
	} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Fatalf("span %d of\n%s\nis not\n%s", i, strings.Join(got, "\n"), want)
		}
	}
}

// A call that several share is under the first of them that is sampled, and linked to the others that are; it is sampled if
// one of them is.
func TestASharedCallIsUnderOneOfThoseWhoShareIt(t *testing.T) {
	for name, test := range map[string]struct {
		sampled []bool // the callers
		want    string // the caller that the call is under, and those that it is linked to
	}{
		"all are sampled":  {[]bool{true, true, true}, "0 [1 2]"},
		"some are sampled": {[]bool{false, true, false, true}, "1 [3]"},
		"none is sampled":  {[]bool{false, false}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			tell := newTelemetry([]Option{WithTracerProvider(r.tracers), WithMeterProvider(r.meters), WithScriptCalls()})
			var callers []context.Context
			which := map[trace.SpanID]int{}
			for i, sampled := range test.sampled {
				remote := trace.SpanContextConfig{TraceID: trace.TraceID{byte(i + 1)}, SpanID: trace.SpanID{byte(i + 1)}, Remote: true}
				if sampled {
					remote.TraceFlags = trace.FlagsSampled
				}
				ctx, end := tell.begin(trace.ContextWithSpanContext(context.Background(), trace.NewSpanContext(remote)),
					headgate.Operation{Verb: headgate.VerbAllow, Limiter: "vendor", Algorithm: "token_bucket"})
				defer end(headgate.Outcome{})
				callers = append(callers, ctx)
				which[trace.SpanContextFromContext(ctx).SpanID()] = i
			}
			_, end := tell.begin(context.Background(),
				headgate.Operation{Verb: headgate.VerbCall, Limiter: "vendor", Algorithm: "token_bucket", Command: "EVALSHA", Links: callers})
			end(headgate.Outcome{})
			got := ""
			for _, s := range r.exporter.GetSpans() {
				links := []int{}
				for _, link := range s.Links {
					links = append(links, which[link.SpanContext.SpanID()])
				}
				got += fmt.Sprint(which[s.Parent.SpanID()], " ", links)
			}
			if got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// What fails in the store is red on the decision and on the call, with its kind.
func TestFailuresOfTheStoreAreErrors(t *testing.T) {
	for kind, fail := range map[string]func(*redistest.Server){
		"WRONGTYPE": func(s *redistest.Server) {
			rdb := s.Client()
			rdb.LPush(context.Background(), "hg:{secret}:tb", "x")
			rdb.Expire(context.Background(), "hg:{secret}:tb", time.Minute)
		},
		"ERR":     func(*redistest.Server) {}, // Redis does not know the command, and quotes it with the key
		"OOM":     func(s *redistest.Server) { s.Client().ConfigSet(context.Background(), "maxmemory", "1") },
		"timeout": func(s *redistest.Server) { s.Pause() },
		"connect": func(s *redistest.Server) { s.Kill() },
	} {
		t.Run(kind, func(t *testing.T) {
			r := newRig(t)
			var args []string
			if kind == "ERR" {
				args = []string{"--rename-command", "evalsha", "", "--rename-command", "eval", ""}
			}
			server := redistest.Start(t, args...)
			rdb := server.Client(func(o *redis.Options) { o.DialerRetries, o.MaxRetries = 1, -1 })
			l := r.limiter(headgate.Redis(rdb), twice, WithScriptCalls())
			if err := rdb.Ping(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			fail(server)
			ctx := context.Background()
			if kind == "timeout" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				defer server.Resume()
			}
			if kind == "connect" {
				_ = rdb.Ping(t.Context()) // takes the broken connection out of the pool
			}
			_, err := l.Allow(ctx)
			if _, ok := errors.AsType[*headgate.StoreError](err); !ok {
				t.Fatal(err)
			}
			for _, span := range r.exporter.GetSpans() {
				if strings.Contains(span.Status.Description, "secret") {
					t.Errorf("the status holds the key: %s", span.Status.Description)
				}
			}
			lines := r.lines()
			if want := "allow vendor: algorithm=token_bucket cost=1 error.type=" + kind + " result=error [Error]"; !slices.Contains(lines, want) {
				t.Errorf("the spans are\n%s\nwant\n%s", strings.Join(lines, "\n"), want)
			}
			red := slices.ContainsFunc(lines, func(line string) bool {
				return strings.HasPrefix(line, "EVAL") && strings.Contains(line, "error.type="+kind) && strings.HasSuffix(line, "[Error]")
			})
			if !red && kind != "timeout" { // the call that timed out is still under way
				t.Errorf("no call is red:\n%s", strings.Join(lines, "\n"))
			}
		})
	}
}

// A caller who leaves while Redis is silent is no failure of anything.
func TestLeavingASilentStoreIsNoError(t *testing.T) {
	r := newRig(t)
	server := redistest.Start(t)
	l := r.limiter(headgate.Redis(server.Client()), twice)
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(50*time.Millisecond, cancel)
	if err := l.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	r.wantLines("wait vendor: algorithm=token_bucket cost=1 result=canceled")
}
