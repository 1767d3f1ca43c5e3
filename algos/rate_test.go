package algos

import (
	"testing"
	"time"
)

func TestRatesAreThoseOfTheLongRun(t *testing.T) {
	const day = 24 * time.Hour
	year := 365*day + 5*time.Hour + 49*time.Minute + 12*time.Second // of 400 years, 97 have a day more
	for _, test := range []struct {
		algorithm Algorithm
		permits   int
		per       time.Duration
	}{
		{TokenBucket{Rate: 500, Per: time.Minute, Burst: 50}, 1, 120 * time.Millisecond}, // in lowest terms
		{Funnel{Capacity: 15, Rate: 30, Per: time.Minute}, 1, 2 * time.Second},
		{LeakyBucket{Rate: 7, Per: time.Second, Capacity: 3}, 7, time.Second},
		{WarmUp{Rate: 10, Per: time.Second, Period: time.Minute}, 1, 100 * time.Millisecond},
		{FixedWindow{Limit: 9, Window: 3 * time.Second}, 9, 3 * time.Second},
		{FixedWindow{Limit: 9, Window: time.Hour, Location: time.UTC}, 9, time.Hour},
		{SlidingLog{Limit: 9, Window: time.Second}, 9, time.Second},
		{SlidingWindow{Limit: 9, Window: time.Second, Cells: 7}, 9, time.Second}, // not of 7 cells, each rounded up
		{CalendarWindow{Limit: 5, Every: Day}, 5, day},
		{CalendarWindow{Limit: 5, Every: Week(time.Sunday)}, 5, 7 * day},
		{CalendarWindow{Limit: 5, Every: Month}, 5, year / 12},
		{CalendarWindow{Limit: 5, Every: Year}, 5, year},
	} {
		rule, err := test.algorithm.Rule()
		if err != nil {
			t.Fatal(err)
		}
		if permits, per := rule.Rate(); permits != test.permits || per != test.per {
			t.Errorf("%T%+v: %d per %v, want %d per %v", test.algorithm, test.algorithm, permits, per, test.permits, test.per)
		}
	}
}
