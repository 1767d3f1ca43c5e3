package algos

import (
	_ "embed"
	"math"
	"slices"
)

//go:embed line.lua
var lineLua string

// The bounds of a line. Lua computes in doubles, which are exact below 2^53, and the stored state has three
// bytes for the rate and six for each span of time and count of permits.
const (
	maxRate     = 1<<24 - 1 // reduced permits a period, so that its square fits
	maxPerMicro = 1000      // permits a µs
	maxSpan     = 1 << 45   // µs: a period, a full bucket, the furthest slot
	maxPermits  = 1 << 45   // a burst, and the permits reserved ahead
	foldAbove   = 1 << 47   // permits or µs of one busy period, beyond which it is counted anew
	maxDebt     = 1 << 51   // µs: 71 years, which is all that a line owes after a change to a slower pace
	spareUnit   = 1 << 40   // parts of a µs
	maxHoles    = 1000      // 12 KB of state
)

// A busyPeriod is all that a bucket remembers: a stretch of time during which it was never full.
//
// Think of the permits taken in it as places on a line, one behind the other from its start, each as long as one
// permit takes at the rate. A grant owns the places of its permits. Its slot is never later than the first of them
// begins, rounded up to a microsecond, and the last ends at most a burst's span after the slot. Places do not
// overlap, so the grants of any stretch of time w fit in w plus a burst, and the microsecond: that is the whole proof
// that nothing is over-admitted, and it holds for places given up and taken again too.
type busyPeriod struct {
	pace               // what it was last counted by
	at           int64 // the last save
	start        int64 // where the line begins
	taken        int64 // places on the line so far
	length, part int64 // how long they are: span(taken)
	name         int64 // how receipts call it: the start that it was born with
	holes        []hole
	spare        int64 // what convert rounded start up by, in 1/spareUnit µs
}

// A hole is a run of places that were given up while others had been taken behind them: from+1 to to.
type hole struct{ from, to int64 }

// A line is the state of algorithms whose permits take places on a line: the saved busy period, and a copy of it to
// work on. It is all of a State but Load, Earliest and Status, which an algorithm adds.
type line struct {
	saved busyPeriod
	busyPeriod

	now   int64
	debt  int64 // how far the line reaches beyond now; the part is the same
	begun int64 // places on it that began before now: see passed; known only while there are holes

	// What place found, for Take.
	from     int64
	fit      int // index of the hole, or -1 for the end of the line
	end, rem int64
}

// load brings the saved line to the instant now at the pace p.
func (l *line) load(p pace, now int64) (changed bool) {
	l.now = now
	l.busyPeriod = l.saved
	exists := l.taken > 0
	if exists {
		if now < l.at { // the clock went back: so does the line, with all that is owed
			l.start -= l.at - now
			changed = true
		}
		l.debt = l.length - (now - l.start)
	}
	repaced := l.pace != p
	long := l.taken >= foldAbove || now-l.start >= foldAbove
	if !exists || l.drained() || (repaced || long) && l.debt < 0 {
		l.refill(p)
		return changed
	}
	if repaced {
		l.convert(p)
		changed = true
	}
	if l.taken >= foldAbove || now-l.start >= foldAbove {
		l.fold()
	}
	l.trim()
	return changed
}

// measure sets how long the line is, and how far it reaches beyond now.
func (l *line) measure() {
	l.length, l.part = l.span(l.taken)
	l.debt = l.length - (l.now - l.start)
}

// drained tells whether the line ended a microsecond ago or earlier. Until then it goes on: slots are rounded up, and
// a limiter whose every caller comes at its slot keeps its rate exactly only if the rounding is not lost each time.
func (l *line) drained() bool {
	return l.debt < -1 || l.debt == -1 && l.part == 0
}

// refill empties the line: the next permit taken begins a busy period at the pace p.
func (l *line) refill(p pace) {
	l.busyPeriod = busyPeriod{pace: p, start: l.now, name: l.now}
	l.debt = 0
}

// convert recounts the line at another pace: the debt stays the same number of permits, up to maxDebt. The part of a
// permit that has drained is scaled and rounded toward more debt, by a microsecond or two. The next convert takes that
// into account: processes with different parameters that take turns on one key, as during a deploy, would add it up
// otherwise. A line that would be too long to count at the new pace is counted anew, from what is owed; what was
// reserved before can no longer be given back then.
func (l *line) convert(p pace) {
	old := l.pace
	owed := old.permits(l.debt, l.part)
	us, part := old.span(owed)
	rest := float64(l.debt-us) + float64(l.part-part)/float64(old.rate) - float64(l.spare)/spareUnit
	if rest < 0 { // a permit of a fast pace may take less than what was rounded up
		each := float64(old.per) / float64(old.rate)
		permits := math.Ceil(-rest / each)
		owed -= int64(permits)
		rest = max(rest+float64(permits*each), 0)
	}
	if owed < 0 {
		owed, rest = 0, 0
	}
	l.pace = p
	// Each operation is rounded on its own, as Lua does it.
	rest = float64(rest*float64(old.rate)) / float64(old.per)
	rest = float64(rest*float64(l.per)) / float64(l.rate)
	if most := l.permits(maxDebt, 0); owed > most {
		owed, rest = most, 0
	}
	anew := l.taken > l.permits(2*maxDebt, 0)
	if anew {
		l.taken, l.holes = owed+1, nil
	}
	us, part = l.span(owed)
	length, lengthPart := l.span(l.taken)
	l.start = l.now + us + int64(ceilUp(rest)) - length
	if part > lengthPart {
		l.start++
	}
	l.start = min(l.start, l.now)
	if anew {
		l.name = l.start
	}
	l.measure()
	spare := float64(l.debt-us) + float64(l.part-part)/float64(l.rate) - rest
	l.spare = max(int64(spare*spareUnit), 0)
}

// ceilUp rounds up, and over what the operations before may have rounded off.
func ceilUp(x float64) float64 {
	x = float64(x * (1 + 0x1p-50))
	if whole := float64(int64(x)); whole < x {
		return whole + 1
	}
	return x
}

// fold restarts the count of a busy period that has lasted for years, a whole number of periods later. What was
// reserved before can no longer be given back, and what was given back before is closed.
func (l *line) fold() {
	periods := (l.now - l.start) / l.per
	l.start += periods * l.per
	l.taken -= periods * l.rate
	l.length -= periods * l.per
	l.name, l.holes = l.start, nil
}

// passed counts the places on the line that lie behind now, and those that began too long ago to be taken again. A
// slot is the beginning of a place rounded up to a microsecond, so a place may be taken until then.
func (l *line) passed() (gone, begun int64) {
	elapsed := l.now - l.start
	if elapsed > 0 {
		begun = l.permits(elapsed-1, 0) + 1
	}
	return min(l.permits(elapsed, 0), begun), begun
}

// trim forgets the holes that lie behind now.
func (l *line) trim() {
	if len(l.holes) == 0 {
		return
	}
	var gone int64
	gone, l.begun = l.passed()
	for len(l.holes) > 0 && l.holes[0].to <= gone {
		l.holes = l.holes[1:]
	}
}

// place finds the first place for cost permits, a hole or the end of the line, and how far it reaches beyond now.
func (l *line) place(cost int64) (us, part int64) {
	l.from, l.fit = l.taken, -1
	for i, h := range l.holes {
		if from := max(h.from, l.begun); h.to-from >= cost {
			l.from, l.fit = from, i
			break
		}
	}
	l.end, l.rem = l.span(l.from + cost)
	l.end -= l.now - l.start
	return l.end, l.rem
}

// Take implements State.
func (l *line) Take(cost int64) Receipt {
	number := l.from + cost
	if l.fit < 0 {
		l.taken, l.debt, l.part = number, l.end, l.rem
		l.length = l.end + (l.now - l.start)
	} else if h := l.holes[l.fit]; number < h.to {
		l.holes = replace(l.holes, l.fit, l.fit+1, hole{number, h.to})
	} else {
		l.holes = replace(l.holes, l.fit, l.fit+1)
	}
	return Receipt{Period: l.name, Number: number}
}

// replace is slices.Replace on a copy: the saved state keeps its own holes.
func replace(holes []hole, i, j int, with ...hole) []hole {
	return slices.Replace(slices.Clone(holes), i, j, with...)
}

// GiveBack implements State.
func (l *line) GiveBack(receipt Receipt, cost int64) (returned int64) {
	from, to := receipt.Number-cost, receipt.Number
	gone, begun := l.passed()
	if receipt.Period != l.name || from < 0 || to > l.taken || to <= gone {
		return 0
	}
	if to == l.taken { // the tail: the line ends earlier, and so does every hole that it now ends with
		if n := len(l.holes); n > 0 && l.holes[n-1].to > from {
			return 0 // some of it was given back before
		}
		l.taken = from
		for n := len(l.holes); n > 0 && l.holes[n-1].to == l.taken; n-- {
			l.taken = l.holes[n-1].from
			l.holes = l.holes[:n-1]
		}
		if l.measure(); l.taken == 0 || l.drained() {
			l.refill(l.pace)
		}
		return to - max(from, gone)
	}
	first := 0 // the middle
	for first < len(l.holes) && l.holes[first].to < from {
		first++
	}
	h, next := hole{from, to}, first
	for ; next < len(l.holes) && l.holes[next].from <= to; next++ {
		other := l.holes[next]
		if other.from < to && other.to > from {
			return 0 // given back before
		}
		h = hole{min(h.from, other.from), max(h.to, other.to)}
	}
	if first == next && len(l.holes) >= maxHoles {
		return 0 // the permits drain as if used
	}
	l.holes = replace(l.holes, first, next, h)
	l.begun = begun
	return to - min(max(from, begun), to) // a place that has begun is of no use to anybody
}

// firstHole is the first hole that can be taken: its length, 0 if there is none, and where it begins, from now on.
func (l *line) firstHole() (length, us, part int64) {
	for _, h := range l.holes {
		if from := max(h.from, l.begun); from < h.to {
			us, part = l.span(from)
			return h.to - from, us - (l.now - l.start), part
		}
	}
	return 0, 0, 0
}

// Save implements State.
func (l *line) Save() {
	l.at = l.now
	l.saved = l.busyPeriod
}
