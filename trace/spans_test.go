package trace

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// Each verb with each outcome that needs no failure, on both stores.
func TestEachOperationIsASpan(t *testing.T) {
	use := func(t *testing.T, l *headgate.Limiter, n int) {
		if d, err := l.AllowN(context.Background(), n); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	reserve := func(t *testing.T, ctx context.Context, l *headgate.Limiter, n int) *headgate.Reservation {
		r, err := l.ReserveN(ctx, n)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, test := range map[string]struct {
		used int // before
		do   func(t *testing.T, ctx context.Context, l *headgate.Limiter) error
		err  error
		want []string
	}{
		"allowed": {
			do:   func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error { _, err := l.Allow(ctx); return err },
			want: []string{"allow vendor < caller: algorithm=token_bucket cost=1 remaining=1 result=acquired source=SOURCE"},
		},
		"not allowed": {
			used: 1,
			do: func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error {
				_, err := l.AllowN(ctx, 2)
				return err
			},
			want: []string{"allow vendor < caller: algorithm=token_bucket cost=2 remaining=1 result=denied retry_after=100 source=SOURCE"},
		},
		"never allowed": {
			do: func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error {
				_, err := l.AllowN(ctx, 3)
				return err
			},
			err:  headgate.ErrNeverAllowed,
			want: []string{"allow vendor < caller: algorithm=token_bucket cost=3 error.type=never_allowed result=error [Error]"},
		},
		"invalid": {
			do:   func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error { return l.WaitN(ctx, 0) },
			err:  headgate.ErrInvalid,
			want: []string{"wait vendor < caller: algorithm=token_bucket cost=0 error.type=invalid result=error [Error]"},
		},
		"peek": {
			do:   func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error { _, err := l.Peek(ctx); return err },
			want: []string{"peek vendor < caller: algorithm=token_bucket cost=1 remaining=2 result=acquired source=SOURCE"},
		},
		"peek at nothing": {
			used: 2,
			do:   func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error { _, err := l.Peek(ctx); return err },
			want: []string{"peek vendor < caller: algorithm=token_bucket cost=1 remaining=0 result=denied retry_after=100 source=SOURCE"},
		},
		"reset": {
			do:   func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error { return l.Reset(ctx) },
			want: []string{"reset vendor < caller: algorithm=token_bucket"},
		},
		"wait that need not": {
			do:   func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error { return l.Wait(ctx) },
			want: []string{"wait vendor < caller: algorithm=token_bucket cost=1 delay=0 remaining=1 result=acquired source=SOURCE"},
		},
		"wait": {
			used: 2,
			do:   func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error { return l.Wait(ctx) },
			want: []string{
				"sleep vendor < wait vendor: algorithm=token_bucket cost=1 delay=100 overshoot=0 result=acquired",
				"wait vendor < caller: algorithm=token_bucket cost=1 delay=100 remaining=0 result=acquired source=SOURCE",
			},
		},
		"wait refused by the deadline": {
			used: 2,
			do: func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error {
				ctx, cancel := context.WithTimeout(ctx, tick/2)
				defer cancel()
				return l.Wait(ctx)
			},
			err:  headgate.ErrDenied,
			want: []string{"wait vendor < caller: algorithm=token_bucket cost=1 remaining=0 result=denied retry_after=50 source=SOURCE"},
		},
		"wait whose caller leaves": {
			used: 2,
			do: func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(tick/4, cancel)
				return l.Wait(ctx)
			},
			err: context.Canceled,
			want: []string{
				"sleep vendor < wait vendor: algorithm=token_bucket cost=1 delay=100 result=canceled",
				"cancel vendor < wait vendor: algorithm=token_bucket cost=1 returned=1",
				"wait vendor < caller: algorithm=token_bucket cost=1 delay=100 remaining=0 result=canceled source=SOURCE",
			},
		},
		"context that has ended": {
			do: func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return l.Wait(ctx)
			},
			err:  context.Canceled,
			want: []string{"wait vendor < caller: algorithm=token_bucket cost=1 result=canceled"},
		},
		"deadline that has passed": {
			do: func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error {
				ctx, cancel := context.WithTimeout(ctx, 0)
				defer cancel()
				_, err := l.Allow(ctx)
				return err
			},
			err:  context.DeadlineExceeded,
			want: []string{"allow vendor < caller: algorithm=token_bucket cost=1 result=canceled"},
		},
		"reserve": {
			used: 1,
			do: func(t *testing.T, ctx context.Context, l *headgate.Limiter) error {
				reserve(t, ctx, l, 2)
				return nil
			},
			want: []string{"reserve vendor < caller: algorithm=token_bucket cost=2 delay=100 remaining=0 result=acquired source=SOURCE"},
		},
		"reserve beyond the bound": {
			used: 2,
			do: func(_ *testing.T, ctx context.Context, l *headgate.Limiter) error {
				_, err := l.Reserve(ctx, headgate.Within(time.Second))
				return err
			},
			err:  headgate.ErrDenied,
			want: []string{"reserve vendor < caller: algorithm=token_bucket cost=1 remaining=0 result=denied retry_after=99 source=SOURCE"},
		},
		"reservation waited for elsewhere": {
			used: 2,
			do: func(t *testing.T, ctx context.Context, l *headgate.Limiter) error {
				return reserve(t, ctx, l, 1).Wait(context.Background())
			},
			want: []string{
				"reserve vendor < caller: algorithm=token_bucket cost=1 delay=100 remaining=0 result=acquired source=SOURCE",
				"sleep vendor ~ reserve vendor: algorithm=token_bucket cost=1 delay=100 overshoot=0 result=acquired",
			},
		},
		"reservation cancelled elsewhere": {
			used: 2,
			do: func(t *testing.T, ctx context.Context, l *headgate.Limiter) error {
				return reserve(t, ctx, l, 2).Cancel(context.Background())
			},
			want: []string{
				"reserve vendor < caller: algorithm=token_bucket cost=2 delay=200 remaining=0 result=acquired source=SOURCE",
				"cancel vendor ~ reserve vendor: algorithm=token_bucket cost=2 returned=2",
			},
		},
		"reservation cancelled while it is waited for": {
			used: 2,
			do: func(t *testing.T, ctx context.Context, l *headgate.Limiter) error {
				r := reserve(t, ctx, l, 1)
				time.AfterFunc(tick/2, func() { _ = r.Cancel(ctx) })
				err := r.Wait(ctx)
				time.Sleep(tick) // the other goroutine may end later
				return err
			},
			err: headgate.ErrCancelled,
		},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, store headgate.Store, source string) {
				r := newRig(t)
				l := r.limiter(store, twice)
				if test.used > 0 {
					use(t, l, test.used)
				}
				r.lines()
				ctx, caller := r.tracers.Tracer("test").Start(context.Background(), "caller")
				if err := test.do(t, ctx, l); !errors.Is(err, test.err) {
					t.Fatal(err)
				}
				caller.End()
				if test.want == nil {
					for _, line := range r.lines() {
						if strings.HasSuffix(line, "[Error]") {
							t.Error(line)
						}
					}
					return
				}
				want := slices.Concat(test.want, []string{"caller: "})
				for i := range want {
					want[i] = strings.ReplaceAll(want[i], "SOURCE", source)
				}
				r.wantLines(want...)
			})
		})
	}
}

func TestWithoutAParentASpanIsARoot(t *testing.T) {
	r := newRig(t)
	if _, err := r.limiter(headgate.Memory(), twice).Allow(context.Background()); err != nil {
		t.Fatal(err)
	}
	span := r.exporter.GetSpans()[0]
	if span.Parent.IsValid() || span.SpanKind != trace.SpanKindInternal {
		t.Errorf("%+v", span)
	}
	if s := span.InstrumentationScope; s.Name != scope || s.SchemaURL == "" {
		t.Errorf("scope %+v", s)
	}
}

func TestWhatIsNotSampledIsNotExportedAndStillCounted(t *testing.T) {
	for name, sampler := range map[string]sdktrace.Sampler{
		"never":  sdktrace.NeverSample(),
		"parent": sdktrace.ParentBased(sdktrace.AlwaysSample()),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, sdktrace.WithSampler(sampler))
			l := r.limiter(headgate.Memory(), twice)
			ctx := trace.ContextWithRemoteSpanContext(context.Background(), trace.NewSpanContext(trace.SpanContextConfig{
				TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, Remote: true,
			}))
			if err := l.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			r.wantLines()
			if _, ok := r.collect()["headgate.requests"]; !ok {
				t.Error("it was not counted")
			}
		})
	}
}

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

// The first decision of a shared limiter after a change is by another algorithm than the process believed.
func TestTheAlgorithmIsTheOneThatDecided(t *testing.T) {
	r := newRig(t)
	store := headgate.Memory()
	l, err := headgate.NewShared(store, "secret", headgate.WithName("vendor"), r.instrument())
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := l.Allow(ctx); !errors.Is(err, headgate.ErrNotInitialized) {
		t.Fatal(err)
	}
	if _, err := l.TrySetRate(ctx, twice); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Allow(ctx); err != nil {
		t.Fatal(err)
	}
	other, err := headgate.NewShared(store, "secret")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.SetRate(ctx, algos.FixedWindow{Limit: 5, Window: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Allow(ctx); err != nil {
		t.Fatal(err)
	}
	r.wantLines(
		"allow vendor: cost=1 error.type=not_initialized result=error [Error]",
		"allow vendor: algorithm=token_bucket cost=1 remaining=1 result=acquired source=memory",
		"allow vendor: algorithm=fixed_window cost=1 remaining=4 result=acquired source=memory",
	)
}

// Keys are private: they are nowhere, or on spans, as the user has them shown.
func TestKeysAreShownOnlyAsTheUserSays(t *testing.T) {
	for name, test := range map[string]struct {
		opts []Option
		want string
	}{
		"not at all": {nil, ""},
		"shown":      {[]Option{WithKey(func(key string) string { return "<" + key + ">" })}, "<secret/+4470001>"},
		"hidden":     {[]Option{WithKey(func(string) string { return "" })}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			l := r.limiter(headgate.Redis(redistest.Start(t).Client()), twice, append(test.opts, WithScriptCalls())...).For("+4470001")
			if _, err := l.Allow(context.Background()); err != nil {
				t.Fatal(err)
			}
			var shown string
			for _, line := range r.lines() {
				_, key, found := strings.Cut(line, " key=")
				key, _, _ = strings.Cut(key, " ")
				if found {
					shown += key
				} else if strings.Contains(line, "secret") || strings.Contains(line, "4470001") {
					t.Errorf("the key is in %s", line)
				}
			}
			if shown != test.want {
				t.Errorf("shown is %q, want %q", shown, test.want)
			}
		})
	}
}
