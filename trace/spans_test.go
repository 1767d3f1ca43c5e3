package trace

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

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
		"try_set_rate vendor: ",
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
