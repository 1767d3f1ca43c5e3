package driver_test

import (
	"time"
	_ "time/tzdata" // wherever the tests run

	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
)

// subjects are all algorithms. Each is held, in Go and in Lua on a real server, to everything that is promised of all of
// them: here, in history_test.go, in twin_test.go and in fuzz_test.go.
var subjects = []subject{
	kind[algos.TokenBucket]{
		name: "TokenBucket", checks: 1500, gives: exactly, law: bucketLaw,
		draw:  func(t *rapid.T) algos.TokenBucket { return buckets().Draw(t, "bucket") },
		times: func(b algos.TokenBucket) (one, all float64) { return paced(b.Rate, b.Per, b.Burst) },
		raise: func(t *rapid.T, b algos.TokenBucket) algos.TokenBucket {
			b.Rate, b.Burst = faster(t, b.Rate), b.Burst+more(t)
			return b
		},
		brief: algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 10},
	}.subject(),
	kind[algos.Funnel]{
		name: "Funnel", checks: 100, gives: exactly, law: funnelLaw,
		draw: func(t *rapid.T) algos.Funnel {
			b := buckets().Draw(t, "bucket")
			return algos.Funnel{Capacity: b.Burst, Rate: b.Rate, Per: b.Per}
		},
		times: func(f algos.Funnel) (one, all float64) { return paced(f.Rate, f.Per, f.Capacity) },
		raise: func(t *rapid.T, f algos.Funnel) algos.Funnel {
			f.Rate, f.Capacity = faster(t, f.Rate), f.Capacity+more(t)
			return f
		},
		brief: algos.Funnel{Capacity: 10, Rate: 100, Per: time.Second},
	}.subject(),
	kind[algos.LeakyBucket]{
		name: "LeakyBucket", checks: 300, gives: exactly, law: queueLaw,
		draw: func(t *rapid.T) algos.LeakyBucket {
			b := buckets().Draw(t, "bucket")
			return algos.LeakyBucket{Rate: b.Rate, Per: b.Per, Capacity: b.Burst - 1}
		},
		times: func(b algos.LeakyBucket) (one, all float64) { return paced(b.Rate, b.Per, b.Capacity+1) },
		raise: func(t *rapid.T, b algos.LeakyBucket) algos.LeakyBucket {
			b.Rate, b.Capacity = faster(t, b.Rate), b.Capacity+more(t)
			return b
		},
		brief: algos.LeakyBucket{Rate: 100, Per: time.Second, Capacity: 9},
	}.subject(),
	kind[algos.FixedWindow]{
		name: "FixedWindow", checks: 300, gives: exactly, countsUp: true,
		draw: func(t *rapid.T) algos.FixedWindow {
			return algos.FixedWindow{Limit: limits().Draw(t, "limit"), Window: windowSpans().Draw(t, "window")}
		},
		law:   func(w algos.FixedWindow, uses []use) error { return windowLaw(w.Limit, w.Window, uses) },
		times: func(w algos.FixedWindow) (one, all float64) { return windowed(w.Limit, w.Window) },
		raise: func(t *rapid.T, w algos.FixedWindow) algos.FixedWindow {
			w.Limit += more(t)
			return w
		},
		brief: algos.FixedWindow{Limit: 10, Window: 200 * time.Millisecond},
	}.subject(),
	kind[algos.FixedWindow]{
		name: "FixedWindow of a zone", checks: 100, gives: exactly, countsUp: true, wall: true,
		draw: func(t *rapid.T) algos.FixedWindow {
			return algos.FixedWindow{Limit: limits().Draw(t, "limit"), Window: time.Duration(partsOfADay().Draw(t, "window")), Location: zones().Draw(t, "zone")}
		},
		law: func(w algos.FixedWindow, uses []use) error {
			return dateLaw(w.Limit, algos.Every(w.Window), w.Location, uses)
		},
		times: func(w algos.FixedWindow) (one, all float64) { return windowed(w.Limit, w.Window) },
		raise: func(t *rapid.T, w algos.FixedWindow) algos.FixedWindow {
			w.Limit += more(t)
			return w
		},
		brief: algos.FixedWindow{Limit: 10, Window: 200 * time.Millisecond, Location: time.UTC},
	}.subject(),
	kind[algos.CalendarWindow]{
		name: "CalendarWindow", checks: 100, gives: exactly, countsUp: true, wall: true,
		draw: func(t *rapid.T) algos.CalendarWindow {
			return algos.CalendarWindow{
				Limit: limits().Draw(t, "limit"), Location: zones().Draw(t, "zone"),
				Every: rapid.OneOf(partsOfADay(), rapid.SampledFrom([]algos.Every{
					algos.Day, algos.Week(time.Monday), algos.Week(time.Sunday), algos.Month, algos.Year,
				})).Draw(t, "every"),
			}
		},
		law: func(w algos.CalendarWindow, uses []use) error { return dateLaw(w.Limit, w.Every, w.Location, uses) },
		times: func(w algos.CalendarWindow) (one, all float64) {
			every := time.Duration(w.Every)
			if every < 0 { // a week, a month or a year
				every = 10 * 24 * time.Hour
			}
			return windowed(w.Limit, every)
		},
		raise: func(t *rapid.T, w algos.CalendarWindow) algos.CalendarWindow {
			w.Limit += more(t)
			return w
		},
		brief: algos.CalendarWindow{Limit: 10, Every: algos.Every(200 * time.Millisecond)},
	}.subject(),
	slidingLog("SlidingLog", false),
	slidingLog("SlidingLog that counts refusals", true),
	kind[algos.SlidingWindow]{
		name: "SlidingWindow", checks: 300, gives: theTail, countsUp: true,
		draw: func(t *rapid.T) algos.SlidingWindow {
			return algos.SlidingWindow{Limit: limits().Draw(t, "limit"), Window: windowSpans().Draw(t, "window"), Cells: rapid.IntRange(1, 20).Draw(t, "cells")}
		},
		law:   func(w algos.SlidingWindow, uses []use) error { return anyWindow(w.Limit, w.Window, uses) },
		times: func(w algos.SlidingWindow) (one, all float64) { return windowed(w.Limit, w.Window) },
		raise: func(t *rapid.T, w algos.SlidingWindow) algos.SlidingWindow {
			w.Limit += more(t)
			return w
		},
		brief: algos.SlidingWindow{Limit: 10, Window: 200 * time.Millisecond, Cells: 4},
	}.subject(),
	kind[algos.WarmUp]{
		name: "WarmUp", checks: 300, gives: theTail, law: warmUpLaw,
		draw: func(t *rapid.T) algos.WarmUp { return warmUps().Draw(t, "limiter") },
		times: func(w algos.WarmUp) (one, all float64) {
			one, all = paced(w.Rate, w.Per, 30)
			return one, max(all, float64(w.Period.Microseconds()))
		},
		raise: func(t *rapid.T, w algos.WarmUp) algos.WarmUp {
			w.Rate = faster(t, w.Rate)
			return w
		},
		brief: algos.WarmUp{Rate: 100, Per: time.Second, Period: 100 * time.Millisecond},
	}.subject(),
}

func slidingLog(name string, countDenied bool) subject {
	return kind[algos.SlidingLog]{
		name: name, checks: 300, gives: exactly, countsRefusals: countDenied,
		draw: func(t *rapid.T) algos.SlidingLog {
			return algos.SlidingLog{Limit: limits().Draw(t, "limit"), Window: windowSpans().Draw(t, "window"), CountDenied: countDenied}
		},
		law:   func(l algos.SlidingLog, uses []use) error { return anyWindow(l.Limit, l.Window, uses) },
		times: func(l algos.SlidingLog) (one, all float64) { return windowed(l.Limit, l.Window) },
		raise: func(t *rapid.T, l algos.SlidingLog) algos.SlidingLog {
			l.Limit += more(t)
			return l
		},
		brief: algos.SlidingLog{Limit: 10, Window: 200 * time.Millisecond, CountDenied: countDenied},
	}.subject()
}

// A subject is an algorithm and what a test must know of it.
type subject struct {
	name   string
	checks int // histories for each promise in Go; an algorithm that shares its state with another needs fewer
	// draw draws its parameters, everyday and awkward ones.
	draw *rapid.Generator[algos.Algorithm]
	// law replays what was granted, and says what went over the limit.
	law func(a algos.Algorithm, uses []use) error
	// times are how long one permit takes, and all that the limiter holds, in microseconds: what histories are made of.
	times func(a algos.Algorithm) (one, all float64)
	// raise draws parameters that admit more.
	raise func(t *rapid.T, a algos.Algorithm) algos.Algorithm
	// brief is one that is as new again within a second of being exhausted; nil if there is none.
	brief algos.Algorithm
	gives givingBack

	countsRefusals bool // a refusal writes, and makes those behind it wait longer
	countsUp       bool // receipts are counted, not told apart, so nobody may give one back twice
	wall           bool // it goes by the dates of the clock on the wall, even when that is set back
}

// givingBack is how much of what is cancelled comes back.
type givingBack int

const (
	exactly  givingBack = iota // a slot goes to the next that fits; all that waits leaves no trace
	theTail                    // what is cancelled from the end of the queue leaves no trace
	anything                   // it counts no more, and those behind it may come sooner for it
)

// A kind is a subject, in terms of the algorithm's own type.
type kind[A algos.Algorithm] struct {
	name   string
	checks int
	draw   func(t *rapid.T) A
	law    func(a A, uses []use) error
	times  func(a A) (one, all float64)
	raise  func(t *rapid.T, a A) A
	brief  algos.Algorithm
	gives  givingBack

	countsRefusals, countsUp, wall bool
}

func (k kind[A]) subject() subject {
	valid := func(a algos.Algorithm) bool { // what is refused has tests of its own
		_, err := a.Rule()
		return err == nil
	}
	return subject{
		name: k.name, checks: k.checks, brief: k.brief, gives: k.gives,
		countsRefusals: k.countsRefusals, countsUp: k.countsUp, wall: k.wall,
		draw:  rapid.Custom(func(t *rapid.T) algos.Algorithm { return k.draw(t) }).Filter(valid),
		law:   func(a algos.Algorithm, uses []use) error { return k.law(a.(A), uses) },
		times: func(a algos.Algorithm) (one, all float64) { return k.times(a.(A)) },
		raise: func(t *rapid.T, a algos.Algorithm) algos.Algorithm {
			return rapid.Custom(func(t *rapid.T) algos.Algorithm { return k.raise(t, a.(A)) }).Filter(valid).Draw(t, "raised")
		},
	}
}

// buckets draws token buckets of all kinds: everyday ones, and rates that do not divide a microsecond.
func buckets() *rapid.Generator[algos.TokenBucket] {
	return rapid.Custom(func(t *rapid.T) algos.TokenBucket {
		return algos.TokenBucket{
			Rate: rapid.OneOf(
				rapid.SampledFrom([]int{1, 5, 10, 500, 1000, 1_000_000, 10_000_000}),
				rapid.SampledFrom([]int{3, 7, 13, 17, 700, 7919, 9_999_991}),
				rapid.IntRange(1, 100_000)).Draw(t, "rate"),
			Per:   spans(time.Microsecond, time.Millisecond, time.Second, time.Minute, 30*24*time.Hour).Draw(t, "per"),
			Burst: limits().Draw(t, "burst"),
		}
	}).Filter(func(b algos.TokenBucket) bool {
		_, err := b.Rule() // refused ones have tests of their own
		return err == nil
	})
}

// spans draws a span of time: one of those, or any up to a quarter of an hour.
func spans(everyday ...time.Duration) *rapid.Generator[time.Duration] {
	return rapid.OneOf(rapid.SampledFrom(everyday),
		rapid.Map(rapid.Int64Range(1, 1e9), func(us int64) time.Duration { return time.Duration(us) * time.Microsecond }))
}

func limits() *rapid.Generator[int] {
	return rapid.OneOf(rapid.IntRange(1, 8), rapid.IntRange(1, 1000))
}

func windowSpans() *rapid.Generator[time.Duration] {
	return spans(time.Microsecond, time.Millisecond, time.Second, time.Minute, 24*time.Hour)
}

func partsOfADay() *rapid.Generator[algos.Every] {
	return rapid.SampledFrom([]algos.Every{
		algos.Every(100 * time.Millisecond), algos.Every(time.Second), algos.Minute, algos.Every(15 * time.Minute), algos.Hour,
		algos.Every(6 * time.Hour), algos.Every(12 * time.Hour), algos.Day,
	})
}

// zones draws time zones: with a summer time, with one of half an hour, with one that begins at midnight, and without.
func zones() *rapid.Generator[*time.Location] {
	return rapid.Map(rapid.SampledFrom([]string{"UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "America/Havana", "Asia/Kathmandu"}),
		func(name string) *time.Location {
			location, err := time.LoadLocation(name)
			if err != nil {
				panic(err)
			}
			return location
		})
}

// windowed is how long one permit takes where limit of them make a window.
func windowed(limit int, window time.Duration) (one, all float64) {
	all = float64(window.Microseconds())
	return all / float64(limit), all
}

func more(t *rapid.T) int { return rapid.IntRange(0, 20).Draw(t, "more") }

func faster(t *rapid.T, rate int) int {
	return rapid.SampledFrom([]int{rate, rate + 1, rate + rate/10, 2 * rate, 100 * rate}).Draw(t, "faster")
}

// paced is how long one permit takes at a rate, and n.
func paced(rate int, per time.Duration, n int) (one, all float64) {
	one, _ = each(rate, per).Float64()
	return one, one * float64(n)
}

// steps draws a span of time that matters to the bucket: from nothing to several bursts.
func steps(b algos.TokenBucket) *rapid.Generator[int64] { return spread(paced(b.Rate, b.Per, b.Burst)) }

func spread(one, all float64) *rapid.Generator[int64] {
	return rapid.Custom(func(t *rapid.T) int64 {
		scale := rapid.SampledFrom([]float64{0, 0.3 * one, one, one, 3 * one, all, 3 * all}).Draw(t, "scale")
		return min(int64(scale*rapid.Float64Range(0, 1).Draw(t, "step")), 1<<44)
	})
}
