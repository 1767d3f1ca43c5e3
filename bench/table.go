package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A row compares Headgate with a peer in one quantity.
type row struct {
	name       string
	unit       string
	peer, ours series
	bar        bar
}

// A bar is what is aimed at, in the ratio to the peer or in Headgate's own value.
type bar struct {
	most float64 // of a ratio, zero: there is no bar
	kind barKind
}

type barKind int

const (
	ratio   barKind = iota // at most, to the peer
	value                  // at most, of its own
	atLeast                // to the peer; more is better
)

// pairTable is a table of rows that compare the same two.
func pairTable(peer, ours string, rows []row) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| | %s | %s | ratio (quartiles) | bar | |\n|---|--:|--:|--:|--:|---|\n", peer, ours)
	for _, r := range rows {
		limit, verdict := r.judge()
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.name,
			amount(r.peer.median(), r.unit), amount(r.ours.median(), r.unit), spread(r.ours.over(r.peer)), limit, verdict)
	}
	return b.String()
}

// met is how a verdict says so.
const met = "ok"

// judge says what the bar is and whether it is met.
func (r row) judge() (limit, verdict string) {
	got := r.ours.over(r.peer).median()
	ok := got <= r.bar.most
	switch {
	case r.bar.kind == value:
		ok = r.ours.median() <= r.bar.most
		limit = "≤ " + amount(r.bar.most, r.unit)
	case r.bar.kind == atLeast:
		ok = got >= r.bar.most
		limit = fmt.Sprintf("≥ %v ×", r.bar.most)
	case r.bar.most == 0:
		return "", ""
	default:
		limit = fmt.Sprintf("≤ %.2f ×", r.bar.most)
	}
	if ok {
		return limit, met
	}
	return limit, "NOT MET"
}

func amount(v float64, unit string) string { return strings.TrimSpace(number(v) + " " + unit) }

// number shows as many digits as mean something.
func number(v float64) string {
	switch size := math.Abs(v); {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case v == math.Trunc(v) && size < 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case size >= 10_000: // three digits
		unit := math.Pow(10, math.Floor(math.Log10(size))-2)
		return grouped(int64(math.Round(v/unit) * unit))
	case size >= 100:
		return grouped(int64(math.Round(v)))
	case size >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case size >= 0.1:
		return strconv.FormatFloat(v, 'f', 2, 64)
	default:
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
}

// grouped sets thousands apart.
func grouped(n int64) string {
	if n < 0 {
		return "-" + grouped(-n)
	}
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// count says how many of something there are.
func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return grouped(int64(n)) + " " + what
}

// spread shows the median and the quartiles. There is no ratio to a peer that has nothing.
func spread(s series) string {
	if len(s) == 0 {
		return "–"
	}
	m := s.median()
	if math.IsNaN(m) || math.IsInf(m, 0) {
		return "–"
	}
	low, high := number(s.quantile(0.25)), number(s.quantile(0.75))
	if low == high {
		return number(m)
	}
	return fmt.Sprintf("%s (%s–%s)", number(m), low, high)
}

// A column of a table of contenders.
type column struct {
	title string
	of    quantity
}

// table shows contenders, each with the medians and quartiles of its rounds. Who was not measured has no row.
func (r results) table(contenders []string, columns ...column) string {
	var b strings.Builder
	b.WriteString("| |")
	for _, c := range columns {
		b.WriteString(" " + c.title + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("--:|", len(columns)) + "\n")
	for _, who := range contenders {
		line, measured := "| "+who+" |", false
		for _, c := range columns {
			s := r[c.of][who]
			line += " " + spread(s) + " |"
			measured = measured || len(s) > 0
		}
		if measured {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}
