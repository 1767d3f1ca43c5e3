package algos

import (
	_ "embed"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
)

//go:embed calendarwindow.lua
var calendarWindowLua string

// CalendarWindow admits Limit permits in each minute, hour, day, week, month or year of a time zone, or in each part of
// its day: "five SMS a day" where the user lives. Days have 23 to 25 hours and months 28 to 31 days; an hour that the
// clock repeats is two windows of an hour; a boundary that it skips lies at the skip.
//
//	algos.CalendarWindow{Limit: 5, Every: algos.Day, Location: paris}
//	algos.CalendarWindow{Limit: 100, Every: algos.Week(time.Monday), Location: time.UTC}
//	algos.CalendarWindow{Limit: 40, Every: algos.Every(15 * time.Minute), Location: kathmandu}
//
// The client knows the calendar and the server's clock picks the day: the client sends the dates around its own now,
// and clients whose clocks or whose local zones differ agree. If a client's clock is so wrong that its dates are the
// wrong ones (more than ten minutes or a window), nothing is charged; it learns the server's time from the reply, sends
// once more, and remembers. That one call takes two round trips. (Where the shards of a Ring or a cluster show different
// days, more than one does.) A Memory store goes by the clock at its making and the time that has passed since.
//
// Windows are otherwise those of FixedWindow, their slots, horizon, giving back and changes of parameters too.
type CalendarWindow struct {
	Limit    int            // permits in a window; at least 1, at most 2^40
	Every    Every          // how often a window begins
	Location *time.Location // the zone; nil is UTC; not time.Local, which differs by machine
}

// Rule implements Algorithm.
func (w CalendarWindow) Rule() (Rule, error) {
	return newCalendarRule("CalendarWindow.Every", "calendar_window", "cw", w.Limit, w.Every, w.Location)
}

// newCalendarRule checks every, which field names in the error, and the rest.
func newCalendarRule(field, name, suffix string, limit int, every Every, location *time.Location) (Rule, error) {
	if err := every.check(field); err != nil {
		return nil, err
	}
	if location == nil {
		location = time.UTC
	}
	algorithm, _, _ := strings.Cut(field, ".")
	if location == time.Local {
		return nil, fmt.Errorf("%w: %s.Location is time.Local, which is another zone on another machine; name one by time.LoadLocation", ErrInvalid, algorithm)
	}
	c := &calendar{every: every, location: location, horizon: maxSpan}
	if every > 0 {
		c.horizon = min(maxWindows*time.Duration(every).Microseconds(), maxSpan)
	}
	return newWindowRule(algorithm, limit, windowRule{
		name: name, suffix: suffix, window: every.average(), grid: every.grid(location), horizon: c.horizon,
		calendar: c, lua: calendarWindowLua + windowsLua,
	})
}

// leeway is how far the clocks of a client and of the server may differ before dates are sent twice, in µs.
const leeway = 10 * 60 * 1_000_000

// A calendar knows the dates of windows around any instant. It is safe for concurrent use.
type calendar struct {
	every    Every
	location *time.Location
	horizon  int64
	last     atomic.Pointer[almanac]
}

// An almanac is the dates around some instant: a grid, which goes on beyond them with windows as long as the first and
// the last one.
type almanac struct {
	dates
	since, fresh int64 // it serves from since to fresh
}

// around is the dates around now: a leeway to either side, and the horizon.
func (c *calendar) around(now int64) *almanac {
	if a := c.last.Load(); a != nil && a.since <= now && now < a.fresh {
		return a
	}
	a := &almanac{
		dates: c.every.windows(c.location, now-leeway, now+c.horizon+2*leeway),
		since: now, fresh: now + leeway,
	}
	c.last.Store(a)
	return a
}

// window is when the window that t lies in begins and ends.
func (a *almanac) window(t int64) (start, end int64) {
	start = a.first
	for i, run := range a.runs {
		if end = start + run.length*run.count; t < end || i == len(a.runs)-1 {
			start = t - floorMod(t-start, run.length)
			return start, start + run.length
		}
		start = end
	}
	return start, end
}

func (a *almanac) begin(t int64) int64 {
	start, _ := a.window(t)
	return start
}

func (a *almanac) lasts(start int64) int64 {
	_, end := a.window(start)
	return end
}
