package algos

import (
	_ "embed"
	"fmt"
	"slices"
	"sort"
	"time"
)

//go:embed slidinglog.lua
var slidingLogLua string

// SlidingLog never admits more than Limit permits in any stretch of time as long as Window: it remembers when each
// request was granted, as the classic limiter on a sorted set does. A request for n permits waits until enough of the old
// ones have left the window, not merely the first. A permit used at t counts until just before t + Window.
//
// With CountDenied a refused request is written down as if it had been granted, so that a caller who keeps asking too
// often is kept out until it holds off: retry-after counts the attempt just refused. Peek counts nothing. Of the refused
// permits the log keeps about the newest Limit.
//
// It costs memory for each request in the window, about a hundred bytes in Redis whatever its permits, and time that
// grows with the logarithm of the log. Where that is too much take a SlidingWindow. A server with logs of 100,000
// requests should have lazyfree-lazy-expire set, lest it stops for the time that freeing one takes.
//
// Slots are promised up to 2^45 µs (about 407 days) ahead, and up to 2^45 permits. Giving back is exact at the end of the
// queue: the permits are as if never taken. Permits cancelled in the middle of the queue before their slot stand open,
// at their slot, each place for itself, for whoever comes next and fits, up to a thousand places; what comes back later
// than that counts as used.
//
// The parameters may change while the limiter is in use: what was granted stays in the log, and the next caller's Limit
// and Window decide over it. A slot that was given up goes to the next that fits, whatever limit it was granted under. A
// longer Window counts of the time before the change what the log still holds.
type SlidingLog struct {
	Limit       int           // permits in any Window; at least 1, at most 2^45
	Window      time.Duration // a whole number of µs, at least 1 µs, at most 2^45 µs
	CountDenied bool          // refused requests count too, up to 2^51 permits in a window
}

// Rule implements Algorithm.
func (s SlidingLog) Rule() (Rule, error) {
	window, err := windowLength("SlidingLog", s.Window)
	if err != nil {
		return nil, err
	}
	limit := int64(s.Limit)
	if limit < 1 || limit > maxPermits {
		return nil, fmt.Errorf("%w: SlidingLog.Limit is %d; it must be at least 1 and at most 2^45", ErrInvalid, limit)
	}
	r := &slidingLog{limit: limit, window: window, horizon: maxSpan}
	if windows := maxPermits / limit; windows < maxSpan/window {
		r.horizon = windows * window
	}
	if s.CountDenied {
		r.countDenied = 1
	}
	return r, nil
}

// slidingLog is the checked SlidingLog.
type slidingLog struct {
	limit, window, countDenied int64
	horizon                    int64
}

func (r *slidingLog) Name() string        { return "sliding_log" }
func (r *slidingLog) Suffix() string      { return "sl" }
func (r *slidingLog) Limit() int          { return int(r.limit) }
func (r *slidingLog) Max() int            { return int(r.limit) }
func (r *slidingLog) Horizon(int64) int64 { return r.horizon }
func (r *slidingLog) Lua() string         { return slidingLogLua }
func (r *slidingLog) NewState() State     { return new(journal) }

func (r *slidingLog) Rate() (permits int, per time.Duration) {
	return int(r.limit), time.Duration(r.window) * time.Microsecond
}

func (r *slidingLog) Params(int64) (params []int64, until int64) {
	return []int64{r.limit, r.window, r.countDenied}, forever
}

const (
	// totals begin anew after this many permits. It is more than count at any one time, so the difference of two totals
	// always tells how many permits lie between them.
	wrapTotals = 1 << 52
	// maxRefused is how many permits may count with another refusal. What is granted beside them is less.
	maxRefused = wrapTotals / 2
	// maxCleared is how many entries a call clears at most.
	maxCleared = 200
)

// A record is an entry of the log.
type record struct {
	slot  int64
	total int64 // permits in the log so far, those of this entry included
	cost  int64 // negative if it was refused
}

func (r record) permits() int64 { return max(r.cost, -r.cost) }

// records is all that a limiter by a log remembers. Entries stand in the order of their slots.
type records struct {
	at      int64 // the clock at the last save
	offset  int64 // how far it has been put back in all: slots are in a time that never goes back
	entries []record
	holes   []record // those of the entries that were given up and may be taken again
}

// journal is the State of a SlidingLog.
type journal struct {
	saved records
	records

	rule  *slidingLog
	now   int64 // in the time of slots
	first int   // the first entry that counts

	// What Earliest found, for Take.
	slot int64
	fit  int // index of the hole, or -1
}

// Load implements State.
func (j *journal) Load(rule Rule, now int64) (changed bool) {
	j.rule, j.records = rule.(*slidingLog), j.saved
	if len(j.entries) > 0 && now < j.at { // the clock went back: the log goes on
		j.offset += j.at - now
		changed = true
	}
	j.now = now + j.offset
	j.first = find(j.entries, func(r record) bool { return r.slot > j.now-j.rule.window })
	if j.first == len(j.entries) {
		j.clear()
		return false
	}
	j.holes = j.holes[find(j.holes, func(r record) bool { return r.slot >= j.now }):]
	return changed
}

// in is the record's place among others.
func (r record) in(others []record) int {
	return find(others, func(o record) bool { return o.slot > r.slot || o.slot == r.slot && o.total >= r.total })
}

// find is the index of the first record from which on the condition holds.
func find(records []record, holds func(record) bool) int {
	return sort.Search(len(records), func(i int) bool { return holds(records[i]) })
}

// clear makes the limiter as new.
func (j *journal) clear() {
	j.now -= j.offset
	j.records, j.first = records{}, 0
}

// live are the entries that count.
func (j *journal) live() []record { return j.entries[j.first:] }

// count is how many permits count up to a total.
func (j *journal) count(total int64) int64 {
	first := j.entries[j.first]
	return (total - first.total + first.permits()) & (wrapTotals - 1)
}

// reach is the index of the first live entry with which n permits count.
func (j *journal) reach(n int64) int {
	return j.first + find(j.live(), func(r record) bool { return j.count(r.total) >= n })
}

// last is the end of the queue; a limiter that is as new has none.
func (j *journal) last() record { return j.entries[len(j.entries)-1] }

// Earliest implements State.
func (j *journal) Earliest(cost int64) (wait int64) {
	for i, h := range j.holes {
		if h.cost >= cost {
			j.slot, j.fit = h.slot, i
			return j.slot - j.now
		}
	}
	j.slot, j.fit = j.end(cost), -1
	if len(j.entries) == 0 {
		return 0
	}
	last := j.last()
	live := j.count(last.total)
	if need := live + cost - j.rule.limit; need > 0 { // permits that must have expired
		gone := j.entries[j.reach(min(need, live))]
		j.slot = max(j.slot, gone.slot+j.rule.window)
	}
	return j.slot - j.now
}

// end is the first instant at which cost permits may stand at the end of the log. Entries of one instant are in the
// order of their totals, so these begin anew in an instant of their own.
func (j *journal) end(cost int64) int64 {
	if len(j.entries) == 0 {
		return j.now
	}
	last := j.last()
	if last.total+cost >= wrapTotals {
		return max(j.now, last.slot+1)
	}
	return max(j.now, last.slot)
}

// Take implements State.
func (j *journal) Take(cost int64) Receipt {
	if j.fit < 0 {
		return j.append(cost, j.slot)
	}
	h := j.holes[j.fit]
	rest := record{h.slot, h.total, h.cost - cost}
	if rest.cost == 0 {
		j.holes = slices.Delete(j.holes, j.fit, j.fit+1)
		return Receipt{Period: h.slot, Number: h.total}
	}
	taken := record{h.slot, h.total - rest.cost, cost}
	i := h.in(j.entries)
	j.entries = slices.Replace(j.entries, i, i+1, taken, rest)
	j.holes[j.fit] = rest
	return Receipt{Period: taken.slot, Number: taken.total}
}

// append writes an entry at the end of the log.
func (j *journal) append(cost, slot int64) Receipt {
	r := record{slot: slot, cost: cost}
	r.total = r.permits()
	if len(j.entries) > 0 {
		r.total = (j.last().total + r.total) & (wrapTotals - 1)
	}
	j.entries = append(j.entries, r)
	return Receipt{Period: r.slot, Number: r.total}
}

// Deny implements Denier. What it makes irrelevant of other refusals is cleared; what was granted stays, for callers with
// a higher limit.
func (j *journal) Deny(cost int64) (counted bool) {
	if j.rule.countDenied == 0 || len(j.entries) > 0 && j.count(j.last().total)+cost > maxRefused {
		return false
	}
	j.append(-cost, j.end(cost))
	if n := j.count(j.last().total) - j.rule.limit; n > 0 {
		to := j.reach(n + 1)
		from := max(j.first, to-int(min(cost, maxCleared)))
		kept := slices.DeleteFunc(slices.Clone(j.entries[from:to]), func(r record) bool { return r.cost < 0 })
		j.entries = slices.Replace(j.entries, from, to, kept...)
	}
	return true
}

// GiveBack implements State.
func (j *journal) GiveBack(receipt Receipt, cost int64) (returned int64) {
	given := record{receipt.Period, receipt.Number, cost}
	i := given.in(j.entries)
	switch {
	case i < j.first || i == len(j.entries) || j.entries[i] != given:
		return 0
	case i == len(j.entries)-1: // the tail, and every hole that the log now ends with
		n := len(j.holes)
		for ; n > 0 && i > j.first && j.holes[n-1] == j.entries[i-1]; n-- {
			i--
		}
		j.entries, j.holes = j.entries[:i], j.holes[:n]
		if i == j.first {
			j.clear()
		}
		return cost
	case given.slot < j.now || given.total < cost || len(j.holes) >= maxHoles || slices.Contains(j.holes, given):
		return 0 // the permits count as used
	}
	j.holes = slices.Insert(j.holes, given.in(j.holes), given)
	return cost
}

// Status implements State.
func (j *journal) Status() Status {
	if len(j.entries) == 0 {
		return Status{Remaining: j.rule.limit}
	}
	last := j.last()
	s := Status{ResetAfter: last.slot + j.rule.window - j.now}
	if last.slot <= j.now {
		s.Remaining = max(j.rule.limit-j.count(last.total), 0)
	}
	for _, h := range j.holes {
		if h.slot > j.now {
			break
		}
		s.Remaining = max(s.Remaining, min(h.cost, j.rule.limit))
	}
	return s
}

// Save implements State.
func (j *journal) Save() {
	j.at = j.now - j.offset
	j.entries = j.entries[min(j.first, maxCleared):]
	j.saved = j.records
}
