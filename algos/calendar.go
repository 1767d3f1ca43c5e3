package algos

import (
	"fmt"
	"hash/fnv"
	"math"
	"time"
)

// Every is how often a CalendarWindow begins anew: a length of time that divides the day, such as Hour or
// Every(15 * time.Minute), or a Week, Month or Year.
//
// A window begins when the local wall clock, counted from midnight, reaches a multiple of the length, or the first
// midnight of the week, month or year. Where the clock is set forward past such a reading, the window begins at that
// instant. Where it is set back, a reading that comes again begins a window only if one of full length has passed:
// an hour that is repeated in autumn is two windows of Hour, while the day is one Day of 25 hours, and its Every(6 *
// time.Hour) is 7 hours long. So only a clock that is set forward makes a window short.
type Every int64

// Any other length that divides the day is Every of a time.Duration.
const (
	Minute = Every(time.Minute)
	Hour   = Every(time.Hour)
	Day    = Every(24 * time.Hour)

	Month Every = -1
	Year  Every = -2
	week  Every = -10 // less the first day
)

// Week begins at midnight before each day named first.
func Week(first time.Weekday) Every {
	if first < time.Sunday || first > time.Saturday {
		return 0
	}
	return week - Every(first)
}

const (
	day = int64(24 * time.Hour / time.Microsecond)

	// Further away than this no window and no change of a clock bears on which windows there are.
	slack = 400 * day
)

// isWeek tells a Week from what no calendar has.
func (e Every) isWeek() bool { return week-Every(time.Saturday) <= e && e <= week }

// check refuses what cuts no day in equal parts; field names it in the error.
func (e Every) check(field string) error {
	switch {
	case e == Month, e == Year, e.isWeek():
		return nil
	case e > 0 && e%Every(time.Microsecond) == 0 && Day%e == 0:
		return nil
	}
	return fmt.Errorf("%w: %s is %v; it must be a whole number of microseconds that divides 24 hours, or Month, Year, or the Week from a time.Weekday", ErrInvalid, field, e)
}

// String is how error texts call it: "6h0m0s", "day", "week from Monday", "month" or "year".
func (e Every) String() string {
	switch {
	case e == Day:
		return "day"
	case e == Month:
		return "month"
	case e == Year:
		return "year"
	case e.isWeek():
		return "week from " + time.Weekday(week-e).String()
	case e < 0:
		return fmt.Sprintf("Every(%d)", int64(e))
	}
	return time.Duration(e).String()
}

// grid names how it cuts the time of a zone into windows, so that a stored state knows whether it was counted like this.
// The number is larger than any length of a window, and far below 2^53.
func (e Every) grid(location *time.Location) int64 {
	hash := fnv.New64a()
	hash.Write(fmt.Appendf(nil, "%d %s", int64(e), location))
	return int64(hash.Sum64()&(1<<50-1) | 1<<50)
}

// A reading is what a wall clock shows, in µs since it would have shown the beginning of 1970. Time zones are the
// matter of windows; on readings alone every day has 24 hours.

// even is the length of windows that are all alike on readings, or 0, and a reading at which one begins.
func (e Every) even() (length, anchor int64) {
	switch {
	case e > 0:
		return time.Duration(e).Microseconds(), 0
	case e.isWeek():
		return 7 * day, (int64(week-e) - int64(time.Thursday)) * day // as 1970 began on one
	}
	return 0, 0
}

// average is how long windows are, over the 400 years in which the calendar repeats itself.
func (e Every) average() int64 {
	const years = 146_097 * day / 400
	switch e {
	case Month:
		return years / 12
	case Year:
		return years
	}
	length, _ := e.even()
	return length
}

// next is the first reading, at this one or behind it, at which a window begins.
func (e Every) next(reading int64) int64 {
	if length, anchor := e.even(); length > 0 {
		return reading + floorMod(anchor-reading, length)
	}
	year, month, _ := time.UnixMicro(reading - 1).UTC().Date()
	if e == Year {
		month = time.December
	}
	return time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
}

// A run is so many windows of one length, in µs, one after the other.
type run struct{ length, count int64 }

// dates are windows one after the other, from the instant first to the instant end, in µs since 1970.
type dates struct {
	first, end int64
	runs       []run
}

// windows are the windows in loc from the one that from lies in to the one that to lies in, in µs since 1970. They do
// not depend on how far from and to are.
func (e Every) windows(loc *time.Location, from, to int64) dates {
	at, limit := from-slack, to+slack
	d := dates{first: at, end: at} // begins with a part of a window, which is cut off
	offset, until := regime(loc, at)
	seen := at + offset // the clock has shown every reading below
	for ; at < limit; offset, until = regime(loc, at) {
		until = min(until, limit)
		shown := at + offset
		next := e.next(min(shown, seen))
		switch {
		case shown >= seen && next <= shown: // reached, or passed over by a clock that was set forward
			d.add(at-d.end, 1)
			next = e.next(shown + 1)
		case next < seen && next-offset-d.end < e.next(next+1)-next: // shown again, too soon
			next = e.next(next + 1)
		}
		for next-offset < until {
			length, more := e.next(next+1)-next, int64(0)
			if even, _ := e.even(); even > 0 {
				more = (until - 1 - (next - offset)) / length
			}
			d.add(next-offset-d.end, 1)
			d.add(length, more)
			next += length * (more + 1)
		}
		seen = max(seen, until+offset)
		at = until
	}
	return d.cut(from, to)
}

// regime is how far the clocks of loc are ahead of UTC at the instant t, and an instant until which they stay so.
func regime(loc *time.Location, t int64) (offset, until int64) {
	at := time.UnixMicro(t).In(loc)
	_, seconds := at.Zone()
	_, end := at.ZoneBounds()
	until = end.UnixMicro()
	switch {
	case end.IsZero():
		until = math.MaxInt64
	case until <= t:
		// On the last day of a leap year, in UTC, ZoneBounds takes the day before for the year's end.
		until = t - floorMod(t, day) + day
	}
	return int64(seconds) * 1_000_000, until
}

// add appends windows.
func (d *dates) add(length, count int64) {
	d.end += length * count
	if n := len(d.runs); n > 0 && d.runs[n-1].length == length {
		d.runs[n-1].count += count
	} else if length*count > 0 {
		d.runs = append(d.runs, run{length, count})
	}
}

// cut leaves the windows that end after from and begin no later than to.
func (d dates) cut(from, to int64) dates {
	var kept dates
	start := d.first
	for _, r := range d.runs {
		if start > to {
			break
		}
		skip := min(max(from-start, 0)/r.length, r.count)
		if count := min((to-start)/r.length+1, r.count) - skip; count > 0 {
			if len(kept.runs) == 0 {
				kept.first = start + skip*r.length
				kept.end = kept.first
			}
			kept.add(r.length, count)
		}
		start += r.length * r.count
	}
	return kept
}
