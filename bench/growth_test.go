package main

import (
	"math"
	"testing"
)

func TestGrowthIsTold(t *testing.T) {
	sizes := []int{1, 10, 100, 1000, 10_000}
	for _, c := range []struct {
		want string
		of   func(n float64) float64
	}{
		{constant, func(float64) float64 { return 30 }},
		{constant, func(n float64) float64 { return 30 + math.Mod(n, 7) }}, // noise
		{logarithmic, func(n float64) float64 { return 30 + 5*math.Log(n) }},
		{linear, func(n float64) float64 { return 30 + n/10 }},
		{constant, func(n float64) float64 { return 30 + n/10_000 }}, // grows, by a thirtieth
	} {
		times := make(series, len(sizes))
		for i, n := range sizes {
			times[i] = c.of(float64(n))
		}
		if got := growth(sizes, times); got != c.want {
			t.Errorf("%v grow %s; want %s", times, got, c.want)
		}
	}
}
