package algos

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // wherever the tests run

	"pgregory.net/rapid"
)

func TestTermsReadBackAreTheAlgorithm(t *testing.T) {
	zones := map[string]*time.Location{"": nil}
	for _, name := range []string{"UTC", "Europe/Paris", "America/St_Johns"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		zones[name] = zone
	}
	rapid.Check(t, func(t *rapid.T) {
		n := func(name string) int { return rapid.IntRange(1, 1000).Draw(t, name) }
		span := func(name string) time.Duration { return time.Duration(n(name)) * time.Millisecond }
		zone := zones[rapid.SampledFrom([]string{"", "UTC", "Europe/Paris", "America/St_Johns"}).Draw(t, "zone")]
		calendarZone := zone
		if zone == nil {
			calendarZone = time.UTC // which nil stands for
		}
		algorithm := rapid.SampledFrom([]Algorithm{
			TokenBucket{Rate: n("rate"), Per: span("per"), Burst: n("burst")},
			Funnel{Capacity: n("capacity"), Rate: n("rate"), Per: span("per")},
			LeakyBucket{Rate: n("rate"), Per: span("per"), Capacity: n("capacity") - 1},
			FixedWindow{Limit: n("limit"), Window: span("window")},
			FixedWindow{Limit: n("limit"), Window: time.Hour, Location: zone},
			CalendarWindow{Limit: n("limit"), Every: rapid.SampledFrom([]Every{Minute, Day, Month, Year, Week(time.Tuesday)}).Draw(t, "every"), Location: calendarZone},
			SlidingLog{Limit: n("limit"), Window: span("window"), CountDenied: rapid.Bool().Draw(t, "denied")},
			SlidingWindow{Limit: n("limit"), Window: span("window"), Cells: rapid.IntRange(1, 250).Draw(t, "cells")},
			WarmUp{Rate: n("rate"), Per: span("per"), Period: span("period"), ColdFactor: rapid.IntRange(1, 100).Draw(t, "cold")},
		}).Draw(t, "algorithm")
		text, err := Terms(algorithm)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseTerms(text)
		// A zone that is loaded twice is two, of one name.
		if err != nil || fmt.Sprintf("%T%+v", back, back) != fmt.Sprintf("%T%+v", algorithm, algorithm) {
			t.Fatalf("%q is read as %+v, %v", text, back, err)
		}
	})
}

type stranger struct{ Algorithm }

func (stranger) Rule() (Rule, error) { return TokenBucket{Rate: 1, Per: time.Second, Burst: 1}.Rule() }

func TestTermsOfWhatNoOtherMachineKnowsAreRefused(t *testing.T) {
	for name, algorithm := range map[string]Algorithm{
		"none":                             nil,
		"bad parameters":                   TokenBucket{},
		"somebody else's algorithm":        stranger{},
		"a zone of this process":           CalendarWindow{Limit: 1, Every: Day, Location: time.FixedZone("here", 3600)},
		"a zone that is called as another": CalendarWindow{Limit: 1, Every: Day, Location: time.FixedZone("Europe/Paris", -7*3600)},
		"a zone that is summer time here":  CalendarWindow{Limit: 1, Every: Day, Location: time.FixedZone("CET", 3600)},
		"another UTC":                      CalendarWindow{Limit: 1, Every: Day, Location: time.FixedZone("UTC", 3*3600)},
		"a zone called Local":              CalendarWindow{Limit: 1, Every: Day, Location: time.FixedZone("Local", 3600)},
		"an algorithm by its pointer":      &TokenBucket{Rate: 1, Per: time.Second, Burst: 1},
		"a zone with a space":              FixedWindow{Limit: 1, Window: time.Hour, Location: time.FixedZone("not here", 0)},
		"a zone that has a number's name":  FixedWindow{Limit: 1, Window: time.Hour, Location: time.FixedZone("7", 0)},
	} {
		if text, err := Terms(algorithm); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

func TestBadTermsAreAnErrorAndNoPanic(t *testing.T) {
	for _, text := range []string{
		"", " ", "token_bucket", "token_bucket ", "token_bucket 1 2", "token_bucket 1 1000000 1 1", "token_bucket 0 1000000 1",
		"token_bucket 01 1000000 1", "token_bucket 1 1000000 1 UTC", "token_bucket 1 1000000 99999999999999999999", "bucket 1 1000000 1",
		"calendar_window 1 60000000000", "calendar_window 1 60000000000 Nowhere/Land", "calendar_window 1 60000000000 ../etc",
		"sliding_log 1 1000000 2", "warm_up 1 1000000 0", strings.Repeat("1 ", 1000),
	} {
		if algorithm, err := ParseTerms(text); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %+v, %v", text, algorithm, err)
		}
	}
}

func FuzzParseTerms(f *testing.F) {
	f.Add("token_bucket 1 1000000 1")
	f.Add("calendar_window 1 60000000000 Europe/Paris")
	f.Fuzz(func(t *testing.T, text string) {
		algorithm, err := ParseTerms(text)
		if err != nil {
			return
		}
		if again, err := Terms(algorithm); err != nil || again != text {
			t.Errorf("%q is written as %q, %v", text, again, err)
		}
	})
}
