package driver_test

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/headgate-go/headgate/algos"
)

// A use is permits at their slot, as a witness outside the limiter would see them. The laws here replay uses by brute
// force against what each algorithm promises, and share no code with any of them.
type use struct {
	at, slot  int64 // when it was granted, and for when
	cost      int64
	cancelled bool
	receipt   algos.Receipt
}

// witnessed are the uses that took place, in the order of their slots.
func witnessed(uses []use) []use {
	used := slices.DeleteFunc(slices.Clone(uses), func(u use) bool { return u.cancelled })
	slices.SortStableFunc(used, func(a, b use) int { return int(a.slot - b.slot) })
	return used
}

// each is what one permit takes, exactly, in microseconds.
func each(rate int, per time.Duration) *big.Rat { return big.NewRat(per.Microseconds(), int64(rate)) }

// permitTime is what one permit of the bucket takes.
func permitTime(b algos.TokenBucket) *big.Rat { return each(b.Rate, b.Per) }

// overfull replays uses against the definition of a token bucket: over every stretch between two uses, no more than
// the burst and what the rate brings, with one microsecond for slots that are rounded up.
func overfull(b algos.TokenBucket, uses []use) bool {
	used := witnessed(uses)
	perMicro := new(big.Rat).Inv(permitTime(b))
	for i := range used {
		var sum int64
		for j := i; j < len(used); j++ {
			sum += used[j].cost
			most := new(big.Rat).Mul(perMicro, big.NewRat(used[j].slot-used[i].slot+1, 1))
			most.Add(most, big.NewRat(int64(b.Burst), 1))
			if big.NewRat(sum, 1).Cmp(most) > 0 {
				return true
			}
		}
	}
	return false
}

func bucketLaw(b algos.TokenBucket, uses []use) error {
	if overfull(b, uses) {
		return fmt.Errorf("more than the burst and what the rate brings")
	}
	return nil
}

func funnelLaw(f algos.Funnel, uses []use) error {
	return bucketLaw(algos.TokenBucket{Rate: f.Rate, Per: f.Per, Burst: f.Capacity}, uses)
}

// queueLaw: who departs keeps those behind waiting for as long as its permits take, less the microsecond of rounding;
// and at each grant no more permits than the capacity have their turn yet to come.
func queueLaw(b algos.LeakyBucket, uses []use) error {
	one := each(b.Rate, b.Per)
	if err := apart(one, 0, uses); err != nil {
		return err
	}
	used := witnessed(uses)
	for _, moment := range used {
		var waiting int64
		for _, u := range used {
			if u.at > moment.at || u.at == moment.at && u.slot > moment.slot {
				continue // granted later
			}
			// Its permits have their turns one after the other from the slot on, and those later than this one wait: two
			// microseconds later, lest rounding up counts.
			gone := new(big.Rat).Quo(big.NewRat(max(moment.at+2-u.slot, -1), 1), one)
			if gone.Sign() < 0 {
				waiting += u.cost
			} else if passed := new(big.Int).Quo(gone.Num(), gone.Denom()).Int64() + 1; passed < u.cost {
				waiting += u.cost - passed
			}
		}
		if waiting > int64(b.Capacity) {
			return fmt.Errorf("%d permits wait at %d where %d may", waiting, moment.at, b.Capacity)
		}
	}
	return nil
}

// warmUpLaw: who was served keeps those behind waiting for at least as long as its permits take at the rate; a bursty
// one, which never grows cold, has a second's worth of them stored.
func warmUpLaw(w algos.WarmUp, uses []use) error {
	one, stored := each(w.Rate, w.Per), int64(0)
	if w.Period == 0 {
		stored = second
	}
	return apart(one, stored, uses)
}

// apart checks that the permits of any uses in a row have had their time before the next one, less what was stored and a
// microsecond. Of those with one slot the largest is last: it cannot have been another.
func apart(one *big.Rat, stored int64, uses []use) error {
	used := witnessed(uses)
	slices.SortStableFunc(used, func(a, b use) int { return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.cost, b.cost)) })
	for i := range used {
		var sum int64
		for j := i + 1; j < len(used); j++ {
			sum += used[j-1].cost
			least := new(big.Rat).Mul(one, big.NewRat(sum, 1))
			if gap := used[j].slot - used[i].slot; least.Cmp(big.NewRat(gap+stored+1, 1)) > 0 {
				return fmt.Errorf("%d µs in which %d permits departed that take %s", gap, sum, least.FloatString(3))
			}
		}
	}
	return nil
}

// anyWindow checks that no window, wherever it begins, holds more than limit.
func anyWindow(limit int, window time.Duration, uses []use) error {
	used := witnessed(uses)
	for i := range used {
		var sum int64
		for _, u := range used[i:] {
			if u.slot >= used[i].slot+window.Microseconds() {
				break
			}
			sum += u.cost
		}
		if sum > int64(limit) {
			return fmt.Errorf("%d permits within %v of %d where %d may be", sum, window, used[i].slot, limit)
		}
	}
	return nil
}

// windowLaw: windows follow each other, a first one beginning with a request, and none holds more than the limit.
// Where nothing was cancelled the uses themselves tell when windows began; otherwise a window's length holds at most
// two of them.
func windowLaw(limit int, window time.Duration, uses []use) error {
	if slices.ContainsFunc(uses, func(u use) bool { return u.cancelled }) {
		return anyWindow(2*limit, window, uses)
	}
	var begins, sum int64
	for i, u := range witnessed(uses) {
		if i == 0 || u.slot >= begins+window.Microseconds() {
			begins, sum = u.slot, 0
		}
		if sum += u.cost; sum > int64(limit) {
			return fmt.Errorf("%d permits in the window of %d where %d may be", sum, begins, limit)
		}
	}
	return nil
}

// dateLaw: no more than the limit on one date, as people in the zone call it; parts of a day that last an hour or less
// come twice where the clock is set back.
func dateLaw(limit int, every algos.Every, location *time.Location, uses []use) error {
	sums := make(map[string]int64)
	for _, u := range witnessed(uses) {
		date := dateOf(time.UnixMicro(u.slot).In(location), every)
		if sums[date] += u.cost; sums[date] > int64(limit) {
			return fmt.Errorf("%d permits on %s where %d may be", sums[date], date, limit)
		}
	}
	return nil
}

func dateOf(t time.Time, every algos.Every) string {
	switch every {
	case algos.Year:
		return t.Format("2006")
	case algos.Month:
		return t.Format("2006-01")
	case algos.Day:
		return t.Format(time.DateOnly)
	case algos.Week(time.Monday):
		year, week := t.ISOWeek()
		return fmt.Sprint(year, " week ", week)
	case algos.Week(time.Sunday):
		year, week := t.AddDate(0, 0, 1).ISOWeek()
		return fmt.Sprint(year, " American week ", week)
	}
	hour, minute, second := t.Clock()
	wall := time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute + time.Duration(second)*time.Second + time.Duration(t.Nanosecond())
	date := fmt.Sprint(t.Format(time.DateOnly), " part ", int64(wall/time.Duration(every)))
	if time.Duration(every) <= time.Hour {
		date += t.Format(" -0700")
	}
	return date
}
