package algos

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Terms writes an algorithm with its parameters as one line of text, which ParseTerms reads: what a store keeps where
// the parameters are shared. The text of one algorithm is always the same: durations are in nanoseconds, a zone is the
// last word.
//
// The error matches ErrInvalid if the parameters are bad, if the zone has no name that every machine knows, or if the
// algorithm is not one of this package.
func Terms(algorithm Algorithm) (string, error) {
	if algorithm == nil {
		return "", fmt.Errorf("%w: the algorithm is nil", ErrInvalid)
	}
	rule, err := algorithm.Rule()
	if err != nil {
		return "", err
	}
	var numbers []int64
	var zone *time.Location
	switch a := algorithm.(type) {
	case TokenBucket:
		numbers = []int64{int64(a.Rate), int64(a.Per), int64(a.Burst)}
	case Funnel:
		numbers = []int64{int64(a.Capacity), int64(a.Rate), int64(a.Per)}
	case LeakyBucket:
		numbers = []int64{int64(a.Rate), int64(a.Per), int64(a.Capacity)}
	case FixedWindow:
		numbers, zone = []int64{int64(a.Limit), int64(a.Window)}, a.Location
	case CalendarWindow:
		numbers, zone = []int64{int64(a.Limit), int64(a.Every)}, a.Location
		if zone == nil {
			zone = time.UTC
		}
	case SlidingLog:
		numbers = []int64{int64(a.Limit), int64(a.Window), 0}
		if a.CountDenied {
			numbers[2] = 1
		}
	case SlidingWindow:
		numbers = []int64{int64(a.Limit), int64(a.Window), int64(a.Cells)}
	case WarmUp:
		numbers = []int64{int64(a.Rate), int64(a.Per), int64(a.Period), int64(a.ColdFactor)}
		if a.ColdFactor == 0 {
			numbers[3] = defaultCold
		}
	default:
		return "", fmt.Errorf("%w: a %T cannot be shared: only the algorithms of package algos can, by value", ErrInvalid, algorithm)
	}
	words := []string{rule.Name()}
	for _, n := range numbers {
		words = append(words, strconv.FormatInt(n, 10))
	}
	if zone != nil {
		if !known(zone) {
			return "", fmt.Errorf("%w: the zone %q is not one that other machines know by its name; take one by time.LoadLocation", ErrInvalid, zone)
		}
		words = append(words, zone.String())
	}
	return strings.Join(words, " "), nil
}

// known tells whether a zone is what other machines know by its name: a FixedZone may be called anything.
func known(zone *time.Location) bool {
	name := zone.String()
	other, err := time.LoadLocation(name)
	if err != nil || name == "" || name == "Local" {
		return false
	}
	for day := time.Unix(0, 0); day.Year() < 2040; day = day.AddDate(0, 0, 7) {
		_, offset := day.In(zone).Zone()
		if _, theirs := day.In(other).Zone(); theirs != offset {
			return false
		}
	}
	return true
}

// ParseTerms reads what Terms wrote. The error matches ErrInvalid.
func ParseTerms(text string) (Algorithm, error) {
	words := strings.Split(text, " ")
	name, words := words[0], words[1:]
	zone, err := popZone(&words)
	if err != nil {
		return nil, err
	}
	n := make([]int64, len(words))
	for i, word := range words {
		if n[i], err = strconv.ParseInt(word, 10, 64); err != nil {
			return nil, badTerms()
		}
	}
	algorithm := algorithmOf(name, n, zone)
	if algorithm == nil {
		return nil, badTerms()
	}
	if again, err := Terms(algorithm); err != nil || again != text {
		return nil, badTerms()
	}
	return algorithm, nil
}

// popZone takes the zone off the end, if the last word is one.
func popZone(words *[]string) (*time.Location, error) {
	n := len(*words)
	if n == 0 {
		return nil, badTerms()
	}
	last := (*words)[n-1]
	if _, err := strconv.ParseInt(last, 10, 64); err == nil {
		return nil, nil
	}
	*words = (*words)[:n-1]
	zone, err := time.LoadLocation(last)
	if err != nil {
		return nil, fmt.Errorf("%w: the stored zone is not known on this machine: %w", ErrInvalid, err)
	}
	return zone, nil
}

// algorithmOf is nil where name and numbers do not go together.
func algorithmOf(name string, n []int64, zone *time.Location) Algorithm {
	type shape struct {
		name    string
		numbers int
	}
	switch (shape{name, len(n)}) {
	case shape{"token_bucket", 3}:
		return TokenBucket{Rate: int(n[0]), Per: time.Duration(n[1]), Burst: int(n[2])}
	case shape{"funnel", 3}:
		return Funnel{Capacity: int(n[0]), Rate: int(n[1]), Per: time.Duration(n[2])}
	case shape{"leaky_bucket", 3}:
		return LeakyBucket{Rate: int(n[0]), Per: time.Duration(n[1]), Capacity: int(n[2])}
	case shape{"fixed_window", 2}:
		return FixedWindow{Limit: int(n[0]), Window: time.Duration(n[1]), Location: zone}
	case shape{"calendar_window", 2}:
		return CalendarWindow{Limit: int(n[0]), Every: Every(n[1]), Location: zone}
	case shape{"sliding_log", 3}:
		return SlidingLog{Limit: int(n[0]), Window: time.Duration(n[1]), CountDenied: n[2] == 1}
	case shape{"sliding_window", 3}:
		return SlidingWindow{Limit: int(n[0]), Window: time.Duration(n[1]), Cells: int(n[2])}
	case shape{"warm_up", 4}:
		return WarmUp{Rate: int(n[0]), Per: time.Duration(n[1]), Period: time.Duration(n[2]), ColdFactor: int(n[3])}
	}
	return nil
}

func badTerms() error {
	return fmt.Errorf("%w: what is stored are not the terms of an algorithm, or those of a newer version", ErrInvalid)
}
