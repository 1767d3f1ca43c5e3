package main

import (
	"fmt"
	"math"
	"strings"
)

// A row compares Headgate with a peer in one quantity, of which less is better.
type row struct {
	name       string
	unit       string
	peer, ours series
	bar        bar
}

// A bar is the most that is accepted, in the ratio to the peer or in Headgate's own value.
type bar struct {
	most float64 // zero: there is no bar
	kind barKind
}

type barKind int

const (
	ratio barKind = iota
	value
)

func printTable(peer, ours string, rows []row) {
	fmt.Printf("| | %s | %s | ratio (quartiles) | bar | |\n|---|--:|--:|--:|--:|---|\n", peer, ours)
	for _, r := range rows {
		ratios := r.ours.over(r.peer)
		limit, verdict := r.judge()
		fmt.Printf("| %s | %s | %s | %s | %s | %s |\n",
			r.name, quantity(r.peer.median(), r.unit), quantity(r.ours.median(), r.unit), spread(ratios), limit, verdict)
	}
	fmt.Println()
}

// judge says what the bar is and whether it is met.
func (r row) judge() (limit, verdict string) {
	if r.bar.most == 0 {
		return "", ""
	}
	got := r.ours.over(r.peer).median()
	limit = fmt.Sprintf("≤ %.2f", r.bar.most)
	if r.bar.kind == value {
		got = r.ours.median()
		limit = "≤ " + quantity(r.bar.most, r.unit)
	}
	if got <= r.bar.most {
		return limit, "ok"
	}
	return limit, "NOT MET"
}

func quantity(v float64, unit string) string {
	digits := 2
	if v >= 100 || v == math.Trunc(v) {
		digits = 0
	} else if v >= 10 {
		digits = 1
	}
	return strings.TrimSpace(fmt.Sprintf("%.*f %s", digits, v, unit))
}

// spread shows the median and the quartiles. There is no ratio to a peer that has nothing.
func spread(ratios series) string {
	m := ratios.median()
	if math.IsNaN(m) || math.IsInf(m, 0) {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f–%.2f)", m, ratios.quantile(0.25), ratios.quantile(0.75))
}
