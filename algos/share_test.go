package algos_test

import (
	"errors"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
)

func TestShares(t *testing.T) {
	const day = 24 * time.Hour
	for _, row := range []struct {
		whole    algos.Algorithm
		part, of int
		share    algos.Algorithm
	}{
		{algos.TokenBucket{Rate: 500, Per: time.Minute, Burst: 50}, 1, 4, algos.TokenBucket{Rate: 1, Per: 480 * time.Millisecond, Burst: 12}},
		{algos.TokenBucket{Rate: 500, Per: time.Minute, Burst: 50}, 1, 1, algos.TokenBucket{Rate: 500, Per: time.Minute, Burst: 50}},
		{algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 3}, 1, 10, algos.TokenBucket{Rate: 1, Per: 10 * time.Second, Burst: 1}},
		{algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 3}, 2, 3, algos.TokenBucket{Rate: 1, Per: 1500 * time.Millisecond, Burst: 2}},
		{algos.TokenBucket{Rate: 7919, Per: time.Second, Burst: 1}, 3333, 10000, algos.TokenBucket{Rate: 13197013, Per: 5000 * time.Second, Burst: 1}},
		// 15999999 × 3333 is more than a pace holds: the next lower rate.
		{algos.TokenBucket{Rate: 15999999, Per: time.Second, Burst: 30}, 1111, 10000, algos.TokenBucket{Rate: 16769810, Per: 9433963 * time.Microsecond, Burst: 3}},
		{algos.Funnel{Capacity: 9, Rate: 3, Per: time.Second}, 1, 3, algos.Funnel{Capacity: 3, Rate: 1, Per: time.Second}},
		{algos.LeakyBucket{Rate: 10, Per: time.Second, Capacity: 19}, 1, 4, algos.LeakyBucket{Rate: 1, Per: 400 * time.Millisecond, Capacity: 4}},
		{algos.LeakyBucket{Rate: 10, Per: time.Second, Capacity: 1}, 1, 4, algos.LeakyBucket{Rate: 1, Per: 400 * time.Millisecond, Capacity: 0}},
		{algos.WarmUp{Rate: 8, Per: time.Second, Period: time.Minute, ColdFactor: 5}, 1, 4, algos.WarmUp{Rate: 1, Per: 500 * time.Millisecond, Period: time.Minute, ColdFactor: 5}},
		{algos.FixedWindow{Limit: 10, Window: time.Minute}, 1, 4, algos.FixedWindow{Limit: 2, Window: time.Minute}},
		{algos.FixedWindow{Limit: 3, Window: time.Minute}, 1, 4, algos.FixedWindow{Limit: 1, Window: 80 * time.Second}},
		{algos.FixedWindow{Limit: 3, Window: time.Hour, Location: time.UTC}, 1, 4, algos.FixedWindow{Limit: 1, Window: time.Hour, Location: time.UTC}},
		{algos.CalendarWindow{Limit: 40, Every: algos.Day, Location: time.UTC}, 1, 4, algos.CalendarWindow{Limit: 10, Every: algos.Day, Location: time.UTC}},
		{algos.CalendarWindow{Limit: 3, Every: algos.Day}, 1, 4, algos.CalendarWindow{Limit: 1, Every: algos.Day}},
		{algos.SlidingLog{Limit: 9, Window: day, CountDenied: true}, 1, 4, algos.SlidingLog{Limit: 2, Window: day, CountDenied: true}},
		{algos.SlidingLog{Limit: 3, Window: time.Second}, 1, 7, algos.SlidingLog{Limit: 1, Window: 2333334 * time.Microsecond}},
		{algos.SlidingWindow{Limit: 9, Window: day, Cells: 10}, 1, 2, algos.SlidingWindow{Limit: 4, Window: day, Cells: 10}},
		{algos.SlidingWindow{Limit: 1, Window: day, Cells: 10}, 1, 2, algos.SlidingWindow{Limit: 1, Window: 2 * day, Cells: 10}},
	} {
		share, err := algos.Share(row.whole, row.part, row.of)
		if err != nil || share != row.share {
			t.Errorf("%d/%d of %+v is %+v, %v; want %+v", row.part, row.of, row.whole, share, err, row.share)
		}
	}
}

func TestSharesThatNothingCanHold(t *testing.T) {
	bucket := algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1}
	for name, share := range map[string]func() (algos.Algorithm, error){
		"nothing":       func() (algos.Algorithm, error) { return algos.Share(nil, 1, 2) },
		"a part of 0":   func() (algos.Algorithm, error) { return algos.Share(bucket, 0, 2) },
		"negative":      func() (algos.Algorithm, error) { return algos.Share(bucket, -1, -2) },
		"more than all": func() (algos.Algorithm, error) { return algos.Share(bucket, 3, 2) },
		"too fine":      func() (algos.Algorithm, error) { return algos.Share(bucket, 1, 10_001) },
		"of bad":        func() (algos.Algorithm, error) { return algos.Share(algos.TokenBucket{}, 1, 2) },
		"all of bad":    func() (algos.Algorithm, error) { return algos.Share(algos.TokenBucket{}, 1, 1) },
		"a user's":      func() (algos.Algorithm, error) { return algos.Share(custom{bucket}, 1, 2) },
		"too slow a rate": func() (algos.Algorithm, error) {
			return algos.Share(algos.TokenBucket{Rate: 1, Per: 400 * 24 * time.Hour, Burst: 1}, 1, 2)
		},
		"far too slow": func() (algos.Algorithm, error) {
			return algos.Share(algos.TokenBucket{Rate: 1, Per: 400 * 24 * time.Hour, Burst: 1}, 1, 10_000)
		},
		"too long a cycle": func() (algos.Algorithm, error) {
			return algos.Share(algos.SlidingLog{Limit: 1, Window: 400 * 24 * time.Hour}, 1, 10_000)
		},
	} {
		if got, err := share(); !errors.Is(err, algos.ErrInvalid) || got != nil {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := algos.Share(custom{bucket}, 1, 1); got != (custom{bucket}) || err != nil {
		t.Errorf("all of a user's algorithm: %v, %v", got, err)
	}
}

// custom is an algorithm of a user's.
type custom struct{ algos.Algorithm }

// All shares together are never more than the whole, in the long run and in permits at once, and hardly less.
func TestSharesAddUpToTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		per := time.Duration(rapid.Int64Range(1, 86_400_000_000).Draw(t, "per")) * time.Microsecond
		n := rapid.IntRange(1, 5_000_000).Draw(t, "n")
		burst := rapid.IntRange(1, 1_000_000).Draw(t, "burst")
		of := rapid.IntRange(1, 10_000).Draw(t, "of")
		part := rapid.IntRange(1, of).Draw(t, "part")
		whole := rapid.SampledFrom([]algos.Algorithm{
			algos.TokenBucket{Rate: n, Per: per, Burst: burst},
			algos.Funnel{Rate: n, Per: per, Capacity: burst},
			algos.LeakyBucket{Rate: n, Per: per, Capacity: burst},
			algos.WarmUp{Rate: n, Per: per},
			algos.FixedWindow{Limit: n, Window: per},
			algos.SlidingLog{Limit: n, Window: per},
			algos.SlidingWindow{Limit: n, Window: per, Cells: 1},
		}).Draw(t, "whole")
		rule, err := whole.Rule()
		if err != nil {
			t.Skip(err)
		}
		share, err := algos.Share(whole, part, of)
		if err != nil {
			t.Skip(err)
		}
		its, err := share.Rule()
		if err != nil {
			t.Fatal(err)
		}
		exact := new(big.Rat).Mul(rate(rule), big.NewRat(int64(part), int64(of)))
		got := rate(its)
		if got.Cmp(exact) > 0 {
			t.Fatalf("a share of %d/%d of %+v is more: %+v", part, of, whole, share)
		}
		least := new(big.Rat).Mul(exact, big.NewRat(999_999, 1_000_000))
		if rate(rule).Cmp(big.NewRat(1_000_000, int64(time.Second))) > 0 {
			least.Mul(exact, big.NewRat(7_999, 8_000))
		}
		switch whole.(type) {
		case algos.FixedWindow, algos.SlidingLog, algos.SlidingWindow: // whose limits are whole numbers
			least.Quo(exact, big.NewRat(2, 1))
		}
		if got.Cmp(least) < 0 {
			t.Fatalf("a share of %d/%d of %+v is much less: %+v", part, of, whole, share)
		}
		if _, storing := whole.(algos.WarmUp); !storing && its.Limit() > 1 && its.Limit()*of > rule.Limit()*part {
			t.Fatalf("a share of %d/%d of %+v grants more at once: %+v", part, of, whole, share)
		}
	})
}

func rate(rule algos.Rule) *big.Rat {
	permits, per := rule.Rate()
	return big.NewRat(int64(permits), int64(per))
}
