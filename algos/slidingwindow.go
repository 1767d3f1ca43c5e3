package algos

import (
	"fmt"
	"time"
)

// SlidingWindow never admits more than Limit permits in any stretch of time as long as Window, whatever the arrivals,
// in memory that does not grow with Limit: it counts permits in cells, Cells of them to a Window, and lets a whole cell
// go only when its last instant has left the window. (The usual sliding window counter, which weighs the last window's
// count by how much of it is left, is an estimate, and admits more when the arrivals are uneven.)
//
// That strictness costs up to one cell, which is Window/Cells rounded up to a µs: under constant pressure Limit permits
// go in each Window × (1 + 1/Cells), where a SlidingLog, which remembers each grant, lets them go in each Window. With 10
// cells that is at most a tenth less, with 60 a sixtieth. Retry-after is exact for what the cells count.
//
// A limiter keeps at most Cells + 1 counters for what has been used, and one for each cell in which something is
// reserved: about 25 bytes each. Slots lie at most 500 cells and 2^45 µs ahead, at the beginning of a cell. What is
// given back is counted no more, so the requests behind it come sooner; its own slot is not handed on. That is exact
// for the end of the queue, and safe anywhere, until the parameters change or the clock goes back.
//
// The parameters may change while the limiter is in use, as in FixedWindow.
type SlidingWindow struct {
	Limit  int           // permits in any window; at least 1, at most 2^40
	Window time.Duration // a whole number of µs, at least 1 µs, at most 2^45 µs
	Cells  int           // how finely the window is counted; 1 to 250, and no more than it has µs
}

// maxCells is, with those ahead, what a call may have to look through.
const maxCells = 250

// Rule implements Algorithm.
func (w SlidingWindow) Rule() (Rule, error) {
	window, err := windowLength("SlidingWindow", w.Window)
	if err != nil {
		return nil, err
	}
	cells := int64(w.Cells)
	if cells < 1 || cells > maxCells || cells > window {
		return nil, fmt.Errorf("%w: SlidingWindow.Cells is %d; it must be at least 1 and at most %d", ErrInvalid, cells, min(maxCells, window))
	}
	length := (window + cells - 1) / cells
	return newWindowRule("SlidingWindow", w.Limit, windowRule{
		name: "sliding_window", suffix: "sw", window: window, grid: length, keep: length * (cells + 1),
		horizon: min(maxWindows*length, maxSpan), lua: fixedWindowLua + windowsLua,
	})
}
