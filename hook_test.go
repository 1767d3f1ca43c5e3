package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/headgate-go/headgate"
)

type ctxKey struct{}

// record notes each operation and its outcome, and which operation it stands under.
func record(log *[]string) headgate.Hook {
	return func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
		under, _ := ctx.Value(ctxKey{}).(headgate.Verb)
		return context.WithValue(ctx, ctxKey{}, op.Verb), func(o headgate.Outcome) {
			what := "granted"
			switch {
			case errors.Is(o.Err, headgate.ErrDenied):
				what = "denied"
			case o.Err != nil:
				what = "failed"
			case !o.Decision.Allowed:
				what = "not allowed"
			}
			*log = append(*log, fmt.Sprintf("%s%s %s %s %s %d: %s %d/%d", under, op.Verb, op.Limiter, op.Algorithm, op.Key, op.Cost, what, op.Delay/tick, o.Delay/tick))
		}
	}
}

func TestTheHookSeesEachOperationOnce(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		var log []string
		ctx := context.Background()
		l := newLimiter(t, store, perTick(1, 2), headgate.WithHook(record(&log)), headgate.WithName("vendor")).For("a/b")
		allowN(t, l, 2)
		allowN(t, l, 2)
		if _, err := l.Peek(ctx); err != nil {
			t.Fatal(err)
		}
		if err := l.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		r := reserve(t, l, 2)
		if _, err := l.Reserve(ctx, headgate.Within(tick)); !errors.Is(err, headgate.ErrDenied) {
			t.Fatal(err)
		}
		cancel(t, r)
		cancel(t, r)
		if err := l.WaitN(ctx, 3); !errors.Is(err, headgate.ErrNeverAllowed) {
			t.Fatal(err)
		}
		if err := l.Reset(ctx); err != nil {
			t.Fatal(err)
		}
		key := "token_bucket test/a%2Fb"
		if want := []string{
			"allow vendor " + key + " 2: granted 0/0",
			"allow vendor " + key + " 2: not allowed 0/0",
			"peek vendor " + key + " 1: not allowed 0/0",
			"waitsleep vendor " + key + " 1: not allowed 1/0",
			"wait vendor " + key + " 1: granted 0/1",
			"reserve vendor " + key + " 2: granted 0/2",
			"reserve vendor " + key + " 1: denied 0/0",
			"cancel vendor " + key + " 2: not allowed 0/0",
			"wait vendor " + key + " 3: failed 0/0",
			"reset vendor " + key + " 0: not allowed 0/0",
		}; !slices.Equal(log, want) {
			t.Errorf("the hook saw\n%q\nwant\n%q", log, want)
		}
	})
}

func TestAHookMayReturnNothing(t *testing.T) {
	l := newLimiter(t, headgate.Memory(), slow, headgate.WithHook(
		func(context.Context, headgate.Operation) (context.Context, func(headgate.Outcome)) { return nil, nil })) //nolint:staticcheck // that is what is tested
	if err := l.Wait(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestDecidingInMemoryAllocatesNothing(t *testing.T) {
	l := newLimiter(t, headgate.Memory(), slow)
	ctx := context.Background()
	allowN(t, l, 1)
	for name, call := range map[string]func(){
		"Allow": func() { _, _ = l.Allow(ctx) },
		"Peek":  func() { _, _ = l.Peek(ctx) },
	} {
		if got := testing.AllocsPerRun(500, call); got != 0 {
			t.Errorf("%s: %v allocations", name, got)
		}
	}
	if got := testing.AllocsPerRun(500, func() { l.For("user") }); got > 3 {
		t.Errorf("For: %v allocations", got)
	}
}
