package algos

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// The arithmetic against exact fractions, over the whole range that Rule accepts.
func TestSpanAndPermitsAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := pace{
			rate: rapid.OneOf(rapid.Int64Range(1, maxRate), rapid.Int64Range(1, 100)).Draw(t, "rate"),
			per:  rapid.OneOf(rapid.Int64Range(1, maxSpan), rapid.Int64Range(1, 1_000_000)).Draw(t, "per"),
		}
		if p.rate/p.per >= maxPerMicro {
			return
		}
		most := min(int64(foldAbove), p.permits(foldAbove, 0))
		n := rapid.Int64Range(0, most).Draw(t, "n")
		us, part := p.span(n)
		exact := new(big.Rat).Mul(big.NewRat(n, 1), big.NewRat(p.per, p.rate))
		got := new(big.Rat).Add(big.NewRat(us, 1), big.NewRat(part, p.rate))
		if got.Cmp(exact) != 0 || part < 0 || part >= p.rate {
			t.Fatalf("%d permits take %v µs, got %d and %d/%d", n, exact, us, part, p.rate)
		}
		if back := p.permits(us, part); back != n {
			t.Fatalf("%d permits fit the span of %d", back, n)
		}
		us = rapid.Int64Range(0, maxSpan).Draw(t, "us")
		part = rapid.Int64Range(0, p.rate-1).Draw(t, "part")
		span := new(big.Rat).Add(big.NewRat(us, 1), big.NewRat(part, p.rate))
		fit := span.Quo(span, big.NewRat(p.per, p.rate))
		if want := new(big.Int).Quo(fit.Num(), fit.Denom()); want.Cmp(big.NewInt(p.permits(us, part))) != 0 {
			t.Fatalf("%v permits fit, got %d", want, p.permits(us, part))
		}
	})
}

// What the drivers may rely on, and the layout in Redis has room for.
func TestEveryAcceptedBucketKeepsWithinItsBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rule, err := TokenBucket{
			Rate:  rapid.IntRange(1, 1<<40).Draw(t, "rate"),
			Per:   time.Duration(rapid.Int64Range(1, 1<<50).Draw(t, "per")) * time.Microsecond,
			Burst: rapid.IntRange(1, 1<<50).Draw(t, "burst"),
		}.Rule()
		if err != nil {
			return
		}
		r := rule.(*tokenBucket)
		if r.rate > maxRate || r.per > maxSpan || r.room > maxSpan || r.horizon < 0 || r.horizon > maxSpan {
			t.Fatalf("%+v", r)
		}
		if r.permits(r.horizon, 0) > maxPermits {
			t.Fatalf("%d permits can be reserved ahead", r.permits(r.horizon, 0))
		}
	})
}
