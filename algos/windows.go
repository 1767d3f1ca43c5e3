package algos

import (
	_ "embed"
	"fmt"
	"slices"
)

//go:embed windows.lua
var windowsLua string

const (
	maxLimit   = 1 << 40 // permits in a window, so that the sums of all windows stay exact
	maxWindows = 1000    // how many windows ahead a slot may lie, and so what a call may have to look through
)

// A window is a run of time, and what was charged to it.
type window struct {
	start int64 // when it begins
	used  int64 // permits
	open  int64 // permits that were given up in it, and may be taken again though the queue has gone on
}

// A grid cuts time into windows.
type grid interface {
	// begin is when the window begins that t lies in.
	begin(t int64) int64
	// lasts is when the permits of the window that begins at start stop counting.
	lasts(start int64) int64
}

// A book is all that a limiter by windows remembers.
type book struct {
	at    int64 // the last save
	name  int64 // how receipts call it
	grid  int64 // names how time was cut
	until int64 // when the last window stops counting
	// windows that still count, in order. Requests queue up at the last one: room that one of them found too small
	// is closed to those behind it, while room that was given up stands open.
	windows []window
}

// A windowRule is the checked rule of the algorithms that count permits in windows.
type windowRule struct {
	name, suffix string
	limit        int64 // permits whose windows count at any one instant
	horizon      int64
	grid         int64 // names how it cuts time; for windows of one length that length
	keep         int64 // how long the permits of a window of one length count from its beginning
	calendar     *calendar
	lua          string
}

// newWindowRule checks the limit.
func newWindowRule(algorithm string, limit int, r windowRule) (Rule, error) {
	if r.limit = int64(limit); limit < 1 || r.limit > maxLimit {
		return nil, fmt.Errorf("%w: %s.Limit is %d; it must be at least 1 and at most 2^40", ErrInvalid, algorithm, limit)
	}
	return &r, nil
}

func (r *windowRule) Name() string        { return r.name }
func (r *windowRule) Suffix() string      { return r.suffix }
func (r *windowRule) Limit() int          { return int(r.limit) }
func (r *windowRule) Max() int            { return int(r.limit) }
func (r *windowRule) Horizon(int64) int64 { return r.horizon }
func (r *windowRule) Lua() string         { return r.lua }
func (r *windowRule) NewState() State     { return new(windows) }

func (r *windowRule) Params(now int64) (params []int64, until int64) {
	if r.calendar == nil {
		return []int64{r.limit, r.grid, r.keep}, forever
	}
	almanac := r.calendar.around(now)
	params = []int64{r.limit, r.grid, r.horizon, int64(len(almanac.runs)), almanac.first}
	for _, run := range almanac.runs {
		params = append(params, run.length, run.count)
	}
	return params, almanac.fresh
}

// windows is the State of the algorithms that count permits in windows.
type windows struct {
	saved book
	book

	rule *windowRule
	now  int64
	grid grid

	// What Earliest found, for Take.
	slot int64
	fit  int // the window whose room was given up, or -1
}

// even cuts time into windows of one length.
type even struct{ anchor, length, keep int64 }

func (e even) begin(t int64) int64     { return t - floorMod(t-e.anchor, e.length) }
func (e even) lasts(start int64) int64 { return start + e.keep }

func floorMod(a, b int64) int64 { return (a%b + b) % b }

// cut is the rule's grid; windows of one length have one that begins at anchor.
func (r *windowRule) cut(anchor, now int64) grid {
	if r.calendar != nil {
		return r.calendar.around(now)
	}
	return even{anchor, r.grid, r.keep}
}

// Load implements State.
func (w *windows) Load(rule Rule, now int64) (changed bool) {
	w.rule, w.now, w.book = rule.(*windowRule), now, w.saved
	if len(w.windows) == 0 || now >= w.until {
		w.clear()
		return false
	}
	back := max(w.at-now, 0)
	w.grid = w.rule.cut(w.windows[0].start-back, now)
	if back > 0 || w.book.grid != w.rule.grid || w.until != w.grid.lasts(w.windows[len(w.windows)-1].start) {
		w.remap(back)
		changed = true
	}
	for len(w.windows) > 0 && w.grid.lasts(w.windows[0].start) <= now { // trim
		w.windows = w.windows[1:]
	}
	if len(w.windows) == 0 {
		w.clear()
	}
	return changed
}

// clear makes the limiter as new: the next permit begins a window.
func (w *windows) clear() {
	w.book = book{name: w.now}
	w.grid = w.rule.cut(w.now, w.now)
}

// remap puts what was charged into the windows of another grid, or of a clock that went back: each permit where it was
// used at the latest, so that it counts at least as long as it should. Those in windows ahead are used when these begin.
// Receipts from before find nothing any more.
func (w *windows) remap(back int64) {
	w.name = max(w.now, w.name+1)
	var mapped []window
	for _, old := range w.windows {
		if old.used == 0 {
			continue
		}
		t := old.start
		if t <= w.at {
			t = min(w.at, t+w.book.grid-1) // a calendar's name is longer than any window
		}
		t = w.grid.begin(t - back)
		if n := len(mapped); n > 0 && mapped[n-1].start >= t {
			mapped[n-1].used += old.used
		} else {
			mapped = append(mapped, window{start: t, used: old.used})
		}
	}
	w.windows = mapped
}

// Earliest implements State.
func (w *windows) Earliest(cost int64) (wait int64) {
	w.slot, w.fit = w.now, -1
	if n := len(w.windows); n > 0 && w.windows[n-1].start > w.now {
		w.slot = w.windows[n-1].start
		for i, x := range w.windows[:n-1] {
			if x.open >= cost && x.used+cost <= w.rule.limit {
				w.slot, w.fit = max(x.start, w.now), i
				return w.slot - w.now
			}
		}
	}
	sum := cost
	for _, x := range slices.Backward(w.windows) {
		gone := w.grid.lasts(x.start)
		if gone <= w.slot {
			break
		}
		if sum += x.used; sum > w.rule.limit {
			w.slot = gone
			break
		}
	}
	return w.slot - w.now
}

// Take implements State.
func (w *windows) Take(cost int64) Receipt {
	if w.fit >= 0 {
		x := &w.windows[w.fit]
		x.used, x.open = x.used+cost, x.open-cost
		return Receipt{Period: w.name, Number: x.start}
	}
	start := w.grid.begin(w.slot)
	if n := len(w.windows); n == 0 || w.windows[n-1].start != start {
		w.windows = append(w.windows, window{start: start})
	}
	last := &w.windows[len(w.windows)-1]
	last.used += cost
	last.open = min(last.open, max(w.rule.limit-last.used, 0))
	return Receipt{Period: w.name, Number: start}
}

// GiveBack implements State.
func (w *windows) GiveBack(receipt Receipt, cost int64) (returned int64) {
	if receipt.Period != w.name {
		return 0
	}
	for i := range w.windows {
		x := &w.windows[i]
		if x.start == receipt.Number && x.used >= cost {
			x.used, returned = x.used-cost, cost
			if w.rule.handsOn() {
				x.open += cost
			}
		}
	}
	for n := len(w.windows); n > 0 && w.windows[n-1].used == 0; n-- { // the tail: the queue ends earlier
		w.windows = w.windows[:n-1]
	}
	if len(w.windows) == 0 {
		w.clear()
	}
	return returned
}

// handsOn tells whether room that was given up in a window goes to the next that fits. Where a window's permits count
// beyond its end, those that came behind may have been let in for it.
func (r *windowRule) handsOn() bool { return r.calendar != nil || r.keep == r.grid }

// Status implements State.
func (w *windows) Status() Status {
	n := len(w.windows)
	if n == 0 {
		return Status{Remaining: w.rule.limit}
	}
	first, last := w.windows[0], w.windows[n-1]
	s := Status{ResetAfter: w.grid.lasts(last.start) - w.now}
	switch {
	case last.start <= w.now:
		s.Remaining = w.rule.limit
		for _, x := range w.windows {
			s.Remaining -= x.used
		}
	case first.start <= w.now:
		s.Remaining = min(first.open, w.rule.limit-first.used)
	}
	s.Remaining = max(s.Remaining, 0)
	return s
}

// Save implements State.
func (w *windows) Save() {
	w.at, w.book.grid = w.now, w.rule.grid
	if n := len(w.windows); n > 0 {
		w.until = w.grid.lasts(w.windows[n-1].start)
	}
	w.saved = w.book
}
