package main

import (
	"math"
	"slices"
)

// A series is one value for each round.
type series []float64

// quantile interpolates between the two values that are nearest. The series must not be empty.
func (s series) quantile(q float64) float64 {
	sorted := slices.Sorted(slices.Values(s))
	below, part := math.Modf(q * float64(len(sorted)-1))
	i := int(below)
	if part == 0 {
		return sorted[i]
	}
	return sorted[i] + part*(sorted[i+1]-sorted[i])
}

func (s series) median() float64 { return s.quantile(0.5) }

// over divides round by round, so that what slowed down a whole round slows down both sides of the ratio.
func (s series) over(peer series) series {
	ratios := make(series, len(s))
	for i := range s {
		ratios[i] = s[i] / peer[i]
	}
	return ratios
}

// interleave lets the works take turns, many times, each a little at a time, and another one first each time: what
// the machine does meanwhile then meets all of them alike.
func interleave(turns int, works ...func() error) error { return interleaveFrom(0, turns, works...) }

// interleaveFrom does so from the turn of one of the works on.
func interleaveFrom(first, turns int, works ...func() error) error {
	for turn := range turns {
		for i := range works {
			if err := works[(first+turn+i)%len(works)](); err != nil {
				return err
			}
		}
	}
	return nil
}
