package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

type ctxKey struct{}

// record notes each operation and its outcome, and which operation it stands under.
func record(log *[]string) headgate.Hook {
	return func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
		under, _ := ctx.Value(ctxKey{}).(headgate.Verb)
		if op.Verb == headgate.VerbCall { // there are none in memory
			return ctx, nil
		}
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

// seen is an operation, what it was under, and how it ended.
type seen struct {
	headgate.Operation
	under   headgate.Verb
	links   []headgate.Verb
	outcome headgate.Outcome
}

// watch keeps what a hook is told, in the order of the ends.
func watch(log *[]seen) headgate.Hook {
	var mu sync.Mutex
	return func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
		s := seen{Operation: op}
		s.under, _ = ctx.Value(ctxKey{}).(headgate.Verb)
		for _, link := range op.Links {
			verb, _ := link.Value(ctxKey{}).(headgate.Verb)
			s.links = append(s.links, verb)
		}
		return context.WithValue(ctx, ctxKey{}, op.Verb), func(o headgate.Outcome) {
			mu.Lock()
			defer mu.Unlock()
			s.outcome = o
			*log = append(*log, s)
		}
	}
}

// The parts of a wait can be told apart, and what is given back belongs to what took it.
func TestTheHookIsToldWhatCameOfIt(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		var all []seen
		l := newLimiter(t, store, perTick(1, 2), headgate.WithHook(watch(&all)))
		allowN(t, l, 2)
		if err := l.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		leaving, leave := context.WithCancel(context.Background())
		time.AfterFunc(tick/2, leave)
		if err := l.WaitN(leaving, 2); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		r := reserve(t, l, 2)
		if !r.AfterFunc(func() {})() {
			t.Fatal("it was not given back")
		}
		type line struct {
			verb, under, link headgate.Verb
			delay, slept      time.Duration
			returned          int
		}
		var got []line
		for _, s := range all {
			if s.Verb == headgate.VerbCall {
				continue
			}
			at := line{verb: s.Verb, under: s.under, slept: s.outcome.Slept, delay: s.outcome.Delay, returned: s.outcome.Returned}
			if len(s.links) == 1 {
				at.link = s.links[0]
			}
			got = append(got, at)
			decided := s.Verb == headgate.VerbAllow || s.Verb == headgate.VerbWait || s.Verb == headgate.VerbReserve
			if decided != (s.outcome.Algorithm == "token_bucket") || decided != (s.outcome.Rate == 0.01) {
				t.Errorf("%s was decided by %q, %v a second", s.Verb, s.outcome.Algorithm, s.outcome.Rate)
			}
		}
		if want := []line{
			{verb: "allow"},
			{verb: "sleep", under: "wait", link: "wait"},
			{verb: "wait", delay: tick, slept: tick},
			{verb: "sleep", under: "wait", link: "wait"},
			{verb: "cancel", under: "wait", link: "wait", returned: 2}, // not under the sleep, which has ended
			{verb: "wait", delay: 2 * tick, slept: tick / 2},
			{verb: "reserve", delay: 3 * tick / 2},
			{verb: "cancel", link: "reserve", returned: 2},
		}; !slices.Equal(got, want) {
			t.Errorf("the hook saw\n%+v\nwant\n%+v", got, want)
		}
	})
}

// replyCode is the first word of an error that Redis replied, whose others differ between servers.
func replyCode(err error) string {
	if err == nil {
		return "ok"
	}
	code, _, _ := strings.Cut(err.Error(), " ")
	return code
}

func TestTheHookSeesEachCallOfAScript(t *testing.T) {
	var all []seen
	l := newLimiter(t, headgate.Redis(redistest.Start(t).Client()), slow, headgate.WithHook(watch(&all)), headgate.WithName("vendor"))
	allowN(t, l, slow.Burst)
	cancel(t, reserve(t, l, 1))
	var got []string
	for _, s := range all {
		if s.Verb == headgate.VerbCall {
			if s.Limiter != "vendor" || s.Algorithm != "token_bucket" || s.Key != "" {
				t.Errorf("%+v", s)
			}
			got = append(got, fmt.Sprintf("%s %s: %s", s.under, s.Command, replyCode(s.outcome.Err)))
		}
	}
	if want := []string{
		"allow EVALSHA: NOSCRIPT",
		"allow EVAL: ok",
		"reserve EVALSHA: ok",
		"cancel EVALSHA: ok",
	}; !slices.Equal(got, want) {
		t.Errorf("the hook saw\n%q\nwant\n%q", got, want)
	}
}

// What a process believed before the first decision after a change is not what decided.
func TestTheHookIsToldWhichAlgorithmDecided(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		var all []seen
		mine, err := headgate.NewShared(store, "test", headgate.WithHook(watch(&all)))
		if err != nil {
			t.Fatal(err)
		}
		other, err := headgate.NewShared(store, "test")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, algorithm := range []algos.Algorithm{perTick(1, 2), algos.FixedWindow{Limit: 5, Window: tick}} {
			if _, err := other.SetRate(t.Context(), algorithm); err != nil {
				t.Fatal(err)
			}
			if _, err := mine.Allow(t.Context()); err != nil {
				t.Fatal(err)
			}
			last := all[len(all)-1]
			got = append(got, fmt.Sprintf("%q, %q, %v", last.Algorithm, last.outcome.Algorithm, last.outcome.Rate))
		}
		if want := []string{`"", "token_bucket", 0.01`, `"token_bucket", "fixed_window", 0.05`}; !slices.Equal(got, want) {
			t.Errorf("the hook saw %v, want %v", got, want)
		}
		var calls []string
		for _, s := range all {
			if s.Verb == headgate.VerbCall {
				calls = append(calls, fmt.Sprintf("%s %s: %s", s.Algorithm, s.Command, replyCode(s.outcome.Err)))
			}
		}
		if want := []string{
			" EVALSHA: ok", // reads the parameters
			"token_bucket EVALSHA: NOSCRIPT",
			"token_bucket EVAL: ok",
			"token_bucket EVALSHA: ok", // it answers that the terms are others, which is no error
			"fixed_window EVALSHA: NOSCRIPT",
			"fixed_window EVAL: ok",
		}; len(calls) > 0 && !slices.Equal(calls, want) {
			t.Errorf("the hook saw the calls\n%q\nwant\n%q", calls, want)
		}
		if strings.HasSuffix(t.Name(), "/redis") != (len(calls) > 0) {
			t.Errorf("the hook saw the calls %q", calls)
		}
	})
}

func TestTheHookSeesChangesOfASharedLimiter(t *testing.T) {
	ctx := context.Background()
	inRealTime(t, func(t *testing.T, store headgate.Store) {
		var all []seen
		s, err := headgate.NewShared(store, "test", headgate.WithHook(watch(&all)))
		if err != nil {
			t.Fatal(err)
		}
		_, unset := s.UpdateRate(ctx, slow)
		changed(t, true)(s.TrySetRate(ctx, slow))
		changed(t, false)(s.SetRate(ctx, slow))
		_, invalid := s.SetRate(ctx, algos.TokenBucket{})
		_, rate := s.Rate(ctx)
		if !errors.Is(unset, headgate.ErrNotInitialized) || !errors.Is(invalid, headgate.ErrInvalid) {
			t.Error(unset, invalid)
		}
		if err := errors.Join(rate, s.Expire(ctx, time.Hour), s.ClearExpire(ctx), s.Delete(ctx)); err != nil {
			t.Error(err)
		}
		var got []string
		for _, o := range all {
			if o.Verb != headgate.VerbCall {
				got = append(got, fmt.Sprintf("%s %s %q %v", o.Verb, o.Limiter, o.Algorithm, o.outcome.Err != nil))
			}
		}
		if want := []string{
			`update_rate shared "" true`, `try_set_rate shared "" false`, `set_rate shared "token_bucket" false`,
			`set_rate shared "token_bucket" true`, `rate shared "token_bucket" false`, `expire shared "token_bucket" false`,
			`clear_expire shared "token_bucket" false`, `delete shared "token_bucket" false`,
		}; !slices.Equal(got, want) {
			t.Errorf("the hook saw\n%q\nwant\n%q", got, want)
		}
	})
}

func TestOfSeveralHooksEachIsCalledWithinTheOneBefore(t *testing.T) {
	type id struct{}
	var log []string
	hook := func(name string) headgate.Option {
		return headgate.WithHook(func(ctx context.Context, _ headgate.Operation) (context.Context, func(headgate.Outcome)) {
			within, _ := ctx.Value(id{}).(string)
			log = append(log, fmt.Sprintf("%s in %q", name, within))
			return context.WithValue(ctx, id{}, name), func(headgate.Outcome) { log = append(log, name+" ends") }
		})
	}
	l := newLimiter(t, headgate.Memory(), slow, hook("a"), hook("b"), headgate.WithHook(nil))
	allowN(t, l, 1)
	if want := []string{`a in ""`, `b in "a"`, "b ends", "a ends"}; !slices.Equal(log, want) {
		t.Errorf("%q, want %q", log, want)
	}
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
