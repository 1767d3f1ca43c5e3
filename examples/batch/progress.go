package main

import (
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/cupwriter"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// A progress shows how much of a batch is done.
type progress interface {
	step()  // one more line was sent
	close() // no more will be
}

// newProgress draws a bar if it is a terminal that it writes to, and writes lines if it is a file or a pipe.
func newProgress(w io.Writer, total int) progress {
	if c := (console{cupwriter.New(w, false)}); c.IsTerminal() {
		return newBar(total, mpb.WithConsoleWriter(c))
	}
	return newTicker(w, total)
}

// A console is a terminal that always has a size. Those of containers and of script(1) may say that theirs is nothing
// by nothing, in which mpb would draw nothing.
type console struct{ *cupwriter.Writer }

func (c console) GetTermSize() (width, height int, err error) {
	width, height, err = c.Writer.GetTermSize()
	if width == 0 || height == 0 {
		width, height = 80, 24
	}
	return width, height, err
}

// A bar is a progress for somebody who watches.
type bar struct {
	container *mpb.Progress
	bar       *mpb.Bar
}

func newBar(total int, opts ...mpb.ContainerOption) *bar {
	container := mpb.New(opts...)
	return &bar{container, container.AddBar(int64(total),
		mpb.PrependDecorators(decor.CountersNoUnit("%d/%d sent")),
		mpb.AppendDecorators(
			decor.AverageSpeed(0, "%.1f/s"),
			decor.OnComplete(decor.AverageETA(decor.ET_STYLE_GO, decor.WC{W: 5}), " done"),
		))}
}

func (b *bar) step() { b.bar.Increment() }

func (b *bar) close() {
	b.bar.Abort(false) // without effect if the bar is full; Wait waits for ever for one that is not
	b.container.Wait()
}

// A ticker is a progress for a log: a line a second.
type ticker struct {
	w     io.Writer
	total int
	start time.Time
	sent  atomic.Int64
	stop  chan struct{}
	loop  sync.WaitGroup
}

func newTicker(w io.Writer, total int) *ticker {
	t := &ticker{w: w, total: total, start: time.Now(), stop: make(chan struct{})}
	t.loop.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				t.print()
			case <-t.stop:
				return
			}
		}
	})
	return t
}

func (t *ticker) step() { t.sent.Add(1) }

func (t *ticker) close() {
	close(t.stop)
	t.loop.Wait()
}

func (t *ticker) print() {
	sent := t.sent.Load()
	rate := float64(sent) / time.Since(t.start).Seconds()
	eta := "?"
	if sent > 0 {
		eta = fmt.Sprintf("%.0fs", float64(int64(t.total)-sent)/rate)
	}
	_, _ = fmt.Fprintf(t.w, "%d/%d sent, %.1f/s, %s left\n", sent, t.total, rate, eta)
}
