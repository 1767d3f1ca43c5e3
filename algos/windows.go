package algos

import (
	_ "embed"
	"fmt"
	"slices"
	"time"
)

//go:embed windows.lua
var windowsLua string

const (
	maxLimit   = 1 << 40 // permits in a window, so that the sums of all windows stay exact
	maxWindows = 500     // how many windows ahead a slot may lie, and so what a call may have to look through
)

// A window is a run of time, and what was charged to it.
type window struct {
	last int64 // the last slot in it
	used int64 // permits
	open int64 // permits that were given up in it, and may be taken again though the queue has gone on
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
	at     int64 // the last save
	name   int64 // how receipts call it
	named  int64 // how time was cut for those that they were given to
	until  int64 // when the last window stops counting
	anchor int64 // when some window begins
	// windows that still count, in order. Requests queue up at the last one: room that one of them found too small
	// is closed to those behind it, while room that was given up stands open. They hold instants, and each caller cuts
	// time anew, so that nothing moves where callers have different parameters.
	windows []window
}

// A windowRule is the checked rule of the algorithms that count permits in windows.
type windowRule struct {
	name, suffix string
	limit        int64 // permits whose windows count at any one instant
	window       int64 // how long the limit is for, on average; in µs, as what follows
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

func (r *windowRule) Rate() (permits int, per time.Duration) {
	return int(r.limit), time.Duration(r.window) * time.Microsecond
}

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
	if back := w.at - now; back > 0 { // the clock went back: so do all slots
		w.anchor, w.until, w.name = w.anchor-back, w.until-back, max(now, w.name+1)
		w.windows = slices.Clone(w.windows)
		for i := range w.windows {
			w.windows[i].last -= back
		}
		changed = true
	}
	w.grid = w.rule.cut(w.anchor, now)
	if w.expires(len(w.windows)-1) > w.until {
		changed = true // for a longer TTL
	}
	switch {
	case w.expires(len(w.windows)-1) <= now:
		w.clear()
	case w.named == w.rule.grid: // trim; those that cut time otherwise may need what has expired here
		for w.expires(0) <= now {
			w.windows = w.windows[1:]
		}
	}
	return changed
}

// clear makes the limiter as new: the next permit begins a window.
func (w *windows) clear() {
	w.book = book{name: w.now, named: w.rule.grid, anchor: w.now}
	w.grid = w.rule.cut(w.now, w.now)
}

func (w *windows) begins(i int) int64  { return w.grid.begin(w.windows[i].last) }
func (w *windows) expires(i int) int64 { return w.grid.lasts(w.begins(i)) }

// room is how many of the permits that were given up in a window can be taken again. By another grid it may have been
// several windows, which stand side by side.
func (w *windows) room(i int) int64 {
	start, left := w.begins(i), w.rule.limit-w.windows[i].used
	for j := i - 1; j >= 0 && w.begins(j) == start; j-- {
		left -= w.windows[j].used
	}
	for j := i + 1; j < len(w.windows) && w.begins(j) == start; j++ {
		left -= w.windows[j].used
	}
	return min(w.windows[i].open, left)
}

// rename is for receipts by another grid, which would find the wrong window.
func (w *windows) rename() {
	if w.named != w.rule.grid {
		w.name, w.named = max(w.now, w.name+1), w.rule.grid
	}
}

// Earliest implements State.
func (w *windows) Earliest(cost int64) (wait int64) {
	n := len(w.windows)
	w.slot, w.fit = w.now, -1
	if n > 0 && w.windows[n-1].last > w.now {
		w.slot = w.windows[n-1].last
		for i, x := range w.windows[:n-1] {
			if x.open >= cost && w.expires(i) > w.now && w.room(i) >= cost {
				w.slot, w.fit = max(x.last, w.now), i
				return w.slot - w.now
			}
		}
	}
	sum := cost
	for i := n - 1; i >= 0; i-- {
		gone := w.expires(i)
		if gone <= w.slot {
			break
		}
		if sum += w.windows[i].used; sum > w.rule.limit {
			w.slot = gone
			break
		}
	}
	return w.slot - w.now
}

// Take implements State.
func (w *windows) Take(cost int64) Receipt {
	w.rename()
	if w.fit >= 0 {
		x := &w.windows[w.fit]
		x.used, x.open = x.used+cost, x.open-cost
		for i := w.fit; i < len(w.windows) && w.windows[i].last < w.slot; i++ {
			w.windows[i].last = w.slot
		}
		return Receipt{Period: w.name, Number: w.slot}
	}
	if n := len(w.windows); n == 0 || w.begins(n-1) != w.grid.begin(w.slot) {
		w.windows = append(w.windows, window{})
	}
	last := &w.windows[len(w.windows)-1]
	last.last, last.used = w.slot, last.used+cost
	last.open = min(last.open, max(w.rule.limit-last.used, 0))
	return Receipt{Period: w.name, Number: w.slot}
}

// GiveBack implements State.
func (w *windows) GiveBack(receipt Receipt, cost int64) (returned int64) {
	if receipt.Period != w.name || w.named != w.rule.grid {
		return 0
	}
	for i := range slices.Backward(w.windows) {
		if x := &w.windows[i]; w.begins(i) == w.grid.begin(receipt.Number) && x.used >= cost {
			x.used, returned = x.used-cost, cost
			if w.rule.handsOn() {
				x.open += cost
			}
			break
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
	s := Status{ResetAfter: w.expires(n-1) - w.now}
	if w.windows[n-1].last <= w.now {
		s.Remaining = w.rule.limit
		for i := n - 1; i >= 0 && w.expires(i) > w.now; i-- {
			s.Remaining -= w.windows[i].used
		}
		s.Remaining = max(s.Remaining, 0)
		return s
	}
	for i, x := range w.windows {
		if x.last > w.now {
			break
		}
		if x.open > 0 && w.expires(i) > w.now {
			s.Remaining = max(s.Remaining, w.room(i))
		}
	}
	return s
}

// Save implements State.
func (w *windows) Save() {
	w.at = w.now
	if n := len(w.windows); n > 0 {
		w.until = w.expires(n - 1)
	}
	w.saved = w.book
}
