package algos

import (
	"fmt"
	"hash/fnv"
	"time"
)

// Every is how often a CalendarWindow begins: a length of time that divides the day, Every(15*time.Minute) for instance,
// or a Week, Month or Year.
type Every int64

// The usual ones. A minute and an hour are of the zone's clock on the wall, a day is from midnight to midnight.
const (
	Minute = Every(time.Minute)
	Hour   = Every(time.Hour)
	Day    = Every(24 * time.Hour)
	Month  = Every(-1)
	Year   = Every(-2)

	week = Every(-10) // less the first weekday
)

// Week is a week that begins on that day.
func Week(first time.Weekday) Every {
	if first < time.Sunday || first > time.Saturday {
		return 0
	}
	return week - Every(first)
}

// String is how error texts call it.
func (e Every) String() string {
	switch {
	case e == Day:
		return "day"
	case e == Month:
		return "month"
	case e == Year:
		return "year"
	case e <= week && e >= week-Every(time.Saturday):
		return fmt.Sprintf("week from %v", time.Weekday(week-e))
	}
	return time.Duration(e).String()
}

// check tells what is wrong with it; field names it in the error.
func (e Every) check(field string) error {
	known := e == Month || e == Year || e <= week && e >= week-Every(time.Saturday)
	if known || e > 0 && e%Every(time.Microsecond) == 0 && Day%e == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s is %v; it must divide the day into whole microseconds, or be a Week, Month or Year", ErrInvalid, field, e)
}

// grid names how it cuts the time of a zone into windows, so that a stored state knows whether it was counted like this.
// The number is larger than any length of a window, and far below 2^53.
func (e Every) grid(location *time.Location) int64 {
	hash := fnv.New64a()
	fmt.Fprintf(hash, "%d %s", int64(e), location)
	return int64(hash.Sum64()&(1<<50-1) | 1<<50)
}

// A run is count windows, one after the other, each of that length in µs.
type run struct{ length, count int64 }

// dates are consecutive windows.
type dates struct {
	first int64 // when the first begins, µs since 1970
	end   int64 // when the last ends
	runs  []run
}

// extend adds a window that ends then, or many of one length. What ends no later than the last adds nothing.
func (d *dates) extend(end, count int64) {
	if end <= d.end {
		return
	}
	length := (end - d.end) / count
	d.end = end
	if n := len(d.runs); n > 0 && d.runs[n-1].length == length {
		d.runs[n-1].count += count
	} else {
		d.runs = append(d.runs, run{length, count})
	}
}

// windows are those that cover the time between two instants, in µs since 1970.
//
// Windows that divide the day begin whenever the clock on the wall, counted from midnight, comes to a multiple of their
// length, as often as it does. So an hour that the clock repeats is two windows of an hour, while six hours of which it
// repeats one are one window of seven. A beginning that the clock skips lies at the skip. Days and longer windows begin
// at the first instant of their date.
func (e Every) windows(location *time.Location, from, to int64) dates {
	// Two days before begins some window of any kind, whatever the clock did since.
	year, month, day := time.UnixMicro(from).In(location).AddDate(0, 0, -2).Date()
	switch {
	case e == Month:
		day = 1
	case e == Year:
		month, day = time.January, 1
	case e < 0:
		day -= (int(time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday()-time.Weekday(week-e)) + 7) % 7
	}
	first := midnight(location, year, month, day)
	d := dates{first: first, end: first}
	for n := 1; d.end < to; n++ {
		switch {
		case e == Month:
			d.extend(midnight(location, year, month+time.Month(n), 1), 1)
		case e == Year:
			d.extend(midnight(location, year+n, 1, 1), 1)
		case e < 0:
			d.extend(midnight(location, year, month, day+7*n), 1)
		case e == Day:
			d.extend(midnight(location, year, month, day+n), 1)
		default:
			d.extendWithin(location, time.Duration(e).Microseconds(), to)
		}
	}
	return d.since(from)
}

// extendWithin adds the windows up to where the zone's offset changes next, or to an instant.
func (d *dates) extendWithin(location *time.Location, length, to int64) {
	for at := d.end; d.end < to; {
		zone := offsetAt(location, at)
		if next := at - floorMod(at+zone.offset, length) + length; next < zone.end {
			d.extend(next, 1)
			if count := (min(to+length, zone.end) - 1 - d.end) / length; count > 0 {
				d.extend(d.end+count*length, count)
			}
		}
		if d.end >= to {
			return
		}
		before, after := zone.end+zone.offset, zone.end+offsetAt(location, zone.end).offset
		if floorMod(after, length) == 0 || after-floorMod(after, length) > before-1 {
			d.extend(zone.end, 1)
		}
		at = zone.end
	}
}

// since leaves out the windows that end before an instant.
func (d dates) since(from int64) dates {
	for {
		r := &d.runs[0]
		gone := min(max(from-d.first, 0)/r.length, r.count)
		d.first += gone * r.length
		if r.count -= gone; r.count > 0 || len(d.runs) == 1 {
			return d
		}
		d.runs = d.runs[1:]
	}
}

// An offset is what a zone's clock on the wall is ahead of UTC for a while, all in µs.
type offset struct{ offset, start, end int64 }

func offsetAt(location *time.Location, at int64) offset {
	t := time.UnixMicro(at).In(location)
	_, seconds := t.Zone()
	start, end := t.ZoneBounds()
	o := offset{offset: int64(seconds) * 1_000_000, start: -forever, end: forever}
	if !start.IsZero() {
		o.start = start.UnixMicro()
	}
	if !end.IsZero() {
		o.end = end.UnixMicro()
	}
	return o
}

// midnight is the first instant of a date: midnight, the first of two, or where the clock skips it that skip.
func midnight(location *time.Location, year int, month time.Month, day int) int64 {
	wall := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	zone := offsetAt(location, wall.AddDate(0, 0, -2).UnixMicro())
	for wall.UnixMicro()-zone.offset >= zone.end {
		zone = offsetAt(location, zone.end)
	}
	return max(wall.UnixMicro()-zone.offset, zone.start)
}
