package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

const (
	bar = 250 * time.Millisecond                         // requests are counted in stretches of this
	end = trafficLasts + patience + 500*time.Millisecond // of the time axis, behind the last slot
	top = 2*limit + 4                                    // of each panel

	width  = 12.5 * vg.Inch // 1,200 pixels
	height = 1.4 * vg.Inch  // of a panel
)

var (
	grey = color.RGBA{R: 0xd4, G: 0xd4, B: 0xd4, A: 0xff}
	blue = color.RGBA{R: 0x2f, G: 0x78, B: 0xb7, A: 0xff}

	orange = draw.LineStyle{Color: color.RGBA{R: 0xe0, G: 0x74, B: 0x10, A: 0xff}, Width: 1.5}
	dashed = draw.LineStyle{Color: color.RGBA{R: 0xb0, G: 0x20, B: 0x20, A: 0xff}, Width: 1, Dashes: []vg.Length{4, 3}}
)

// writePicture writes the picture to a directory, as compare.png and compare.svg.
func writePicture(directory string, arrivals []time.Duration, outcomes []outcome) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
	}
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	column := panels(arrivals, outcomes)
	for _, format := range []string{"png", "svg"} {
		canvas, err := draw.NewFormattedCanvas(width, height*vg.Length(len(column)), format)
		if err != nil {
			return err
		}
		paint(draw.New(canvas), column)
		file, err := os.Create(filepath.Join(directory, "compare."+format))
		if err != nil {
			return err
		}
		if _, err := canvas.WriteTo(file); err != nil {
			_ = file.Close()
			return err
		}
		if err := file.Close(); err != nil {
			return err
		}
	}
	return nil
}

// paint draws the panels below each other, in white also between them.
func paint(paper draw.Canvas, column [][]*plot.Plot) {
	paper.SetColor(color.White)
	paper.Fill(paper.Path())
	tiles := draw.Tiles{Rows: len(column), Cols: 1, PadTop: 6, PadBottom: 4, PadLeft: 4, PadRight: 10, PadY: 6}
	for i, row := range plot.Align(column, tiles, paper) {
		column[i][0].Draw(row[0])
	}
}

// panels are a column: the traffic, and what each algorithm made of it.
func panels(arrivals []time.Duration, outcomes []outcome) [][]*plot.Plot {
	came := bars(arrivals, grey)
	most := &plotter.Line{XYs: plotter.XYs{{X: 0, Y: limit}, {X: end.Seconds(), Y: limit}}, LineStyle: dashed}
	column := [][]*plot.Plot{{trafficPanel(came, most)}}
	for _, o := range outcomes {
		p := panel(came, bars(o.slots, blue), lately(o), most)
		write(p, 0, fmt.Sprintf("%s: at most %d in %v", o.name, o.worstWindow(), window))
		column = append(column, []*plot.Plot{p})
	}
	last := column[len(column)-1][0]
	last.X.Tick.Marker = seconds(strconv.Itoa)
	last.X.Label.Text = "seconds"
	return column
}

// trafficPanel shows what came, names its scenes, and explains the panels below it.
func trafficPanel(came, most *plotter.Line) *plot.Plot {
	p := panel(came, most)
	for _, s := range scenes {
		write(p, s.from, s.name)
	}
	p.Legend.Add(fmt.Sprintf("came, in each %v", bar), came)
	p.Legend.Add(fmt.Sprintf("went, in each %v", bar), bars(nil, blue))
	p.Legend.Add(fmt.Sprintf("went, in the last %v", window), lately(outcome{}))
	p.Legend.Add("limit", most)
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.XOffs = width * vg.Length(silence.Seconds()/end.Seconds())
	return p
}

// panel is a plot of requests over time.
func panel(curves ...*plotter.Line) *plot.Plot {
	p := plot.New()
	p.X.Min, p.X.Max, p.X.Padding = 0, end.Seconds(), 0
	p.Y.Min, p.Y.Max, p.Y.Padding = 0, top, 0
	p.X.Tick.Marker = seconds(func(int) string { return "" })
	p.Y.Tick.Marker = plot.ConstantTicks{
		{Value: 0, Label: "0"}, {Value: limit, Label: strconv.Itoa(limit)}, {Value: 2 * limit, Label: strconv.Itoa(2 * limit)},
	}
	for _, curve := range curves {
		p.Add(curve)
	}
	return p
}

// seconds are ticks: one for each window, and each fifth of them with a label.
func seconds(label func(int) string) plot.ConstantTicks {
	var ticks plot.ConstantTicks
	for at, i := time.Duration(0), 0; at < end; at, i = at+window, i+1 {
		tick := plot.Tick{Value: at.Seconds()}
		if i%5 == 0 {
			tick.Label = label(int(at.Seconds()))
		}
		ticks = append(ticks, tick)
	}
	return ticks
}

// write puts a text at the top of a panel.
func write(p *plot.Plot, at time.Duration, label string) {
	style := p.Title.TextStyle
	style.XAlign, style.YAlign = text.XLeft, text.YTop
	p.Add(&plotter.Labels{
		XYs: plotter.XYs{{X: at.Seconds(), Y: top}}, Labels: []string{label}, TextStyle: []text.Style{style}, Offset: vg.Point{X: 4},
	})
}

// bars count instants, which are in order, in stretches of time.
func bars(instants []time.Duration, fill color.Color) *plotter.Line {
	counts := make(plotter.XYs, end/bar+1)
	for i := range counts {
		counts[i].X = (time.Duration(i) * bar).Seconds()
	}
	for _, at := range instants {
		counts[at/bar].Y++
	}
	return &plotter.Line{XYs: counts, StepStyle: plotter.PostStep, FillColor: fill}
}

// lately follows how many requests went in the last window.
func lately(o outcome) *plotter.Line {
	changes := []time.Duration{0}
	for _, slot := range o.slots {
		changes = append(changes, slot, slot+window)
	}
	slices.Sort(changes)
	curve := make(plotter.XYs, 0, len(changes))
	for _, at := range slices.Compact(changes) {
		curve = append(curve, plotter.XY{X: at.Seconds(), Y: float64(o.lately(at))})
	}
	return &plotter.Line{XYs: curve, StepStyle: plotter.PostStep, LineStyle: orange}
}
