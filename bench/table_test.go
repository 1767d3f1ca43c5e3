package main

import (
	"math"
	"strings"
	"testing"
)

func TestNumbersHaveAsManyDigitsAsMeanSomething(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 8: "8", 0.0123: "0.012", 0.5: "0.50", 3.14159: "3.14", 42.55: "42.5", 717.6: "718", 1500: "1,500", 8332.4: "8,332",
		123_456: "123,000", 1_234_567: "1,230,000", 10_000_000: "10,000,000", math.Inf(1): "–", math.NaN(): "–",
	} {
		if got := number(v); got != want {
			t.Errorf("%v is shown as %s; want %s", v, got, want)
		}
	}
}

func TestBarsAreJudged(t *testing.T) {
	slow, fast := series{20, 22, 24}, series{10, 11, 12}
	for _, c := range []struct {
		row            row
		limit, verdict string
	}{
		{row{peer: slow, ours: fast, bar: bar{0.5, ratio}}, "≤ 0.50 ×", met},
		{row{peer: slow, ours: fast, bar: bar{0.49, ratio}}, "≤ 0.49 ×", "NOT MET"},
		{row{peer: fast, ours: slow, bar: bar{2, atLeast}}, "≥ 2 ×", met},
		{row{peer: fast, ours: slow, bar: bar{2.1, atLeast}}, "≥ 2.1 ×", "NOT MET"},
		{row{peer: slow, ours: fast, unit: "B", bar: bar{11, value}}, "≤ 11 B", met},
		{row{peer: slow, ours: fast, unit: "B", bar: bar{10, value}}, "≤ 10 B", "NOT MET"},
		{row{peer: series{0}, ours: series{0}, bar: bar{0, value}}, "≤ 0", met},
		{row{peer: slow, ours: fast}, "", ""},
	} {
		if limit, verdict := c.row.judge(); limit != c.limit || verdict != c.verdict {
			t.Errorf("%+v is judged %q, %q; want %q, %q", c.row, limit, verdict, c.limit, c.verdict)
		}
	}
}

func TestARowOfWhatWasNotMeasuredIsLeftOut(t *testing.T) {
	r := make(results)
	r.add(wait, redisRateName, 100)
	if rows := r.bars(); len(rows) != 0 {
		t.Errorf("%d rows without Headgate", len(rows))
	}
	r.add(wait, headgateName, 80)
	if rows := r.bars(); len(rows) != 1 {
		t.Errorf("%d rows; one was measured", len(rows))
	}
	table := r.table([]string{redisRateName, headgateName, "nobody"}, column{"p50", wait}, column{"p99", callerP99})
	if strings.Contains(table, "nobody") || !strings.Contains(table, "| Headgate | 80 | – |") {
		t.Error(table)
	}
}

func TestMeasureDropsTheFirstRoundAndTakesTheMedianOfTurns(t *testing.T) {
	taken := 0.0
	r := make(results)
	err := r.measure(2, 3, []probe{{"a", func() (reading, error) {
		taken++
		return reading{wait: taken}, nil
	}}})
	if err != nil || taken != 9 {
		t.Fatalf("taken %v times; %v", taken, err)
	}
	if got := r[wait]["a"]; len(got) != 2 || got[0] != 5 || got[1] != 8 {
		t.Errorf("rounds %v; want the medians 5 and 8 of the second and third", got)
	}
}
