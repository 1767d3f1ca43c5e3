package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// A picture is a row of panels with one legend, as SVG. It has the colours of the page that shows it, light or dark.
type picture struct {
	title  string
	panels []panel
}

// A panel has its curves over logarithmic axes.
type panel struct {
	title, x string
	ticks    []int // of the x axis
	curves   []curve
}

// A curve goes through the medians of what was measured; bars show the quartiles.
type curve struct {
	name   string
	xs     []int
	rounds []series
}

// The geometry, in pixels.
const (
	panelWidth  = 430
	panelHeight = 300
	marginLeft  = 70
	marginRight = 34
	marginTop   = 44
	marginFoot  = 48
	legendLine  = 20
)

// style has a colour for each curve, and another one on a dark page. Headgate's is the first.
const style = `<style>
.page{fill:#fff}.text{fill:#24292f;font:12px system-ui,sans-serif}.title{font-weight:600}.grid{stroke:#d8dee4}
.curve{fill:none;stroke-width:1.6}.first{stroke-width:3}.dot{stroke:none}
.c0{stroke:#0969da;fill:#0969da}.c1{stroke:#bc4c00;fill:#bc4c00}.c2{stroke:#1a7f37;fill:#1a7f37}.c3{stroke:#8250df;fill:#8250df}
.c4{stroke:#bf3989;fill:#bf3989}.c5{stroke:#9a6700;fill:#9a6700}.c6{stroke:#57606a;fill:#57606a}.c7{stroke:#1b7c83;fill:#1b7c83}
@media (prefers-color-scheme:dark){
.page{fill:#0d1117}.text{fill:#e6edf3}.grid{stroke:#30363d}
.c0{stroke:#58a6ff;fill:#58a6ff}.c1{stroke:#ff9b57;fill:#ff9b57}.c2{stroke:#56d364;fill:#56d364}.c3{stroke:#bc8cff;fill:#bc8cff}
.c4{stroke:#f778ba;fill:#f778ba}.c5{stroke:#e3b341;fill:#e3b341}.c6{stroke:#a0a8b0;fill:#a0a8b0}.c7{stroke:#39c5cf;fill:#39c5cf}
}
.curve{fill:none}.dot{stroke:none}
</style>
`

// colours is how many there are. Curves beyond that start over, dashed.
const colours = 8

// svg draws the picture.
func (p picture) svg() []byte {
	names := p.names()
	columns := len(p.panels)
	lines := (len(names) + columns - 1) / columns
	width, height := columns*panelWidth, marginTop+panelHeight+lines*legendLine+24
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" role="img">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&b, "<title>%s</title>\n%s", html.EscapeString(p.title), style)
	fmt.Fprintf(&b, `<rect class="page" width="%d" height="%d"/>`+"\n", width, height)
	for i, panel := range p.panels {
		fmt.Fprintf(&b, `<g transform="translate(%d,0)">`+"\n", i*panelWidth)
		panel.draw(&b, names)
		b.WriteString("</g>\n")
	}
	for i, name := range names {
		x, y := marginLeft+(i/lines)*panelWidth, marginTop+panelHeight+(i%lines)*legendLine+18
		fmt.Fprintf(&b, `<path class="%s" d="M%d,%dh28"%s/>`+"\n", curveClass(i), x, y-4, dashes(i))
		fmt.Fprintf(&b, `<text class="text" x="%d" y="%d">%s</text>`+"\n", x+36, y, html.EscapeString(name))
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// names are those of all curves, in their order.
func (p picture) names() (names []string) {
	seen := make(map[string]bool)
	for _, panel := range p.panels {
		for _, c := range panel.curves {
			if !seen[c.name] {
				seen[c.name] = true
				names = append(names, c.name)
			}
		}
	}
	return names
}

func curveClass(i int) string {
	class := fmt.Sprintf("curve c%d", i%colours)
	if i == 0 {
		class += " first"
	}
	return class
}

func dashes(i int) string {
	if i < colours {
		return ""
	}
	return ` stroke-dasharray="6 4"`
}

func (p panel) draw(b *strings.Builder, names []string) {
	low, high := p.decades()
	left, right := float64(marginLeft), float64(panelWidth-marginRight)
	top, foot := float64(marginTop), float64(marginTop+panelHeight-marginFoot)
	first, last := math.Log10(float64(p.ticks[0])), math.Log10(float64(p.ticks[len(p.ticks)-1]))
	x := func(n int) float64 { return left + (right-left)*(math.Log10(float64(n))-first)/(last-first) }
	y := func(v float64) float64 {
		return foot - (foot-top)*(math.Log10(v)-float64(low))/float64(high-low)
	}
	fmt.Fprintf(b, `<text class="text title" x="%.0f" y="24">%s</text>`+"\n", left, html.EscapeString(p.title))
	for e := low; e <= high; e++ {
		at := y(math.Pow10(e))
		fmt.Fprintf(b, `<path class="grid" d="M%.1f,%.1fH%.1f"/>`+"\n", left, at, right)
		fmt.Fprintf(b, `<text class="text" text-anchor="end" x="%.1f" y="%.1f">%s</text>`+"\n", left-8, at+4, number(math.Pow10(e)))
	}
	for _, n := range p.ticks {
		fmt.Fprintf(b, `<path class="grid" d="M%.1f,%.1fV%.1f"/>`+"\n", x(n), top, foot)
		fmt.Fprintf(b, `<text class="text" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`+"\n", x(n), foot+18, grouped(int64(n)))
	}
	fmt.Fprintf(b, `<text class="text" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`+"\n", (left+right)/2, foot+36, html.EscapeString(p.x))
	for _, c := range p.curves {
		i := 0
		for names[i] != c.name {
			i++
		}
		var line, quartiles strings.Builder
		for j, n := range c.xs {
			values := c.rounds[j]
			step := byte('L')
			if j == 0 {
				step = 'M'
			}
			fmt.Fprintf(&line, "%c%.1f,%.1f", step, x(n), y(values.median()))
			fmt.Fprintf(&quartiles, "M%.1f,%.1fV%.1f", x(n), y(values.quantile(0.25)), y(values.quantile(0.75)))
		}
		fmt.Fprintf(b, `<path class="%s" d="%s"%s/>`+"\n", curveClass(i), line.String(), dashes(i))
		fmt.Fprintf(b, `<path class="%s" d="%s"/>`+"\n", curveClass(i), quartiles.String())
		for j, n := range c.xs {
			fmt.Fprintf(b, `<circle class="c%d dot" cx="%.1f" cy="%.1f" r="3"/>`+"\n", i%colours, x(n), y(c.rounds[j].median()))
		}
	}
}

// decades are the powers of ten between which everything lies.
func (p panel) decades() (low, high int) {
	least, most := math.Inf(1), math.Inf(-1)
	for _, c := range p.curves {
		for _, values := range c.rounds {
			least, most = min(least, values.quantile(0.25)), max(most, values.quantile(0.75))
		}
	}
	if math.IsInf(least, 0) || least <= 0 { // nothing was measured, or took no time
		return 0, 1
	}
	low, high = int(math.Floor(math.Log10(least))), int(math.Ceil(math.Log10(most)))
	return low, max(high, low+1)
}
