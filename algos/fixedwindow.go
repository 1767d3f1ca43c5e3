package algos

import (
	_ "embed"
	"fmt"
	"time"
)

//go:embed fixedwindow.lua
var fixedWindowLua string

// FixedWindow admits Limit permits in each Window. Without a Location a window begins with the first request after the
// one before has ended, as INCR with EXPIRE has it; more requests do not make it longer. With a Location, windows are
// counted from that zone's midnight, and Window must divide the day: see CalendarWindow, which it then is.
//
// A fixed window admits up to twice Limit in a stretch of time as long as a Window: all of one at its end, all of the
// next at its beginning. Where that matters take a SlidingWindow or a SlidingLog. It is good for a quota that people
// understand and that vendors count the same way, and for a job that waits for the next window when it has had the last
// permit. A Decision tells the three cases of go-zero's PeriodLimit apart: Allowed with some Remaining, Allowed with
// none (that was the last one), and refused.
//
// A request is granted in one window, never split. One that does not fit the last window in which anything is reserved
// goes to the next, and later requests cannot use the room left in the earlier window; room that is given up again
// stands open, in its window, for whoever comes next and fits. Giving back is exact until a window has ended, or the
// parameters change, or the clock goes back.
//
// Slots lie at most 500 windows and 2^45 µs (about 407 days) ahead. The parameters may change while the limiter is in
// use: what was used or is reserved keeps its time, and each caller counts it in windows of its own and by its own limit. A
// longer window counts of the time before what is still remembered; reservations from before can no longer be given
// back once something is granted by other windows.
type FixedWindow struct {
	Limit    int            // permits in a window; at least 1, at most 2^40
	Window   time.Duration  // a whole number of µs, at least 1 µs, at most 2^45 µs
	Location *time.Location // nil: a window begins with a request; otherwise not time.Local, which differs by machine
}

// Rule implements Algorithm.
func (w FixedWindow) Rule() (Rule, error) {
	if w.Location != nil {
		if w.Window <= 0 || w.Window%time.Microsecond != 0 || 24*time.Hour%w.Window != 0 {
			return nil, fmt.Errorf("%w: FixedWindow.Window is %v; with a Location it must divide the day into whole microseconds; for weeks, months and years take a CalendarWindow", ErrInvalid, w.Window)
		}
		return newCalendarRule("FixedWindow.Window", "fixed_window", "fw", w.Limit, Every(w.Window), w.Location)
	}
	length, err := windowLength("FixedWindow", w.Window)
	if err != nil {
		return nil, err
	}
	return newWindowRule("FixedWindow", w.Limit, windowRule{
		name: "fixed_window", suffix: "fw", window: length, grid: length, keep: length,
		horizon: min(maxWindows*length, maxSpan), lua: fixedWindowLua + windowsLua,
	})
}

// windowLength checks the window of an algorithm, which is named in the error, and gives it in µs.
func windowLength(algorithm string, window time.Duration) (int64, error) {
	if window < time.Microsecond || window%time.Microsecond != 0 || window.Microseconds() > maxSpan {
		return 0, fmt.Errorf("%w: %s.Window is %v; it must be a whole number of microseconds, at least 1 and at most 2^45 (about 407 days)", ErrInvalid, algorithm, window)
	}
	return window.Microseconds(), nil
}
