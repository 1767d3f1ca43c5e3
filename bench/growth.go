package main

import "math"

// How a quantity grows with a size.
const (
	constant    = "constant"
	logarithmic = "logarithmic"
	linear      = "linear"
)

// flat is by how much a quantity may grow from the least size to the largest and still be called constant.
const flat = 0.25

// growth says how times grow with sizes: with the logarithm of the size or with the size, by which line comes nearer to
// them; or not at all, if that line hardly rises.
func growth(sizes []int, times series) string {
	logs, plain := make(series, len(sizes)), make(series, len(sizes))
	for i, n := range sizes {
		logs[i], plain[i] = math.Log(float64(n)), float64(n)
	}
	byLog, bySize := fit(logs, times), fit(plain, times)
	name, x, line := logarithmic, logs, byLog
	if bySize.misfit < byLog.misfit {
		name, x, line = linear, plain, bySize
	}
	if first, last := line.at(x[0]), line.at(x[len(x)-1]); last-first <= flat*first {
		return constant
	}
	return name
}

// A line is the straight one with the least squares.
type line struct {
	start, slope float64
	misfit       float64 // the sum of the squares
}

func (l line) at(x float64) float64 { return l.start + l.slope*x }

func fit(x, y series) line {
	n := float64(len(x))
	var sx, sy, sxx, sxy float64
	for i := range x {
		sx, sy, sxx, sxy = sx+x[i], sy+y[i], sxx+x[i]*x[i], sxy+x[i]*y[i]
	}
	var l line
	l.slope = (n*sxy - sx*sy) / (n*sxx - sx*sx)
	l.start = (sy - l.slope*sx) / n
	for i := range x {
		left := y[i] - l.at(x[i])
		l.misfit += left * left
	}
	return l
}
