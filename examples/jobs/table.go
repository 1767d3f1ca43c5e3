package main

import (
	"bytes"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/vbauerster/cupwriter"
)

// A table shows what each tenant's tasks do: drawn over again on a terminal, and otherwise once in five seconds.
type table struct {
	out     *cupwriter.Writer
	book    *book
	drawn   int // lines, to be drawn over
	printed time.Time
}

func newTable(w io.Writer, b *book) *table { return &table{out: cupwriter.New(w, false), book: b} }

func (t *table) print() {
	if !t.out.IsTerminal() {
		if time.Since(t.printed) < 5*time.Second && !t.book.finished() {
			return
		}
		t.drawn = 0
		_, _ = fmt.Fprintln(t.out)
	}
	t.printed = time.Now()
	text := t.book.table()
	_, _ = t.out.Write(text)
	_ = t.out.Flush(t.drawn)
	t.drawn = bytes.Count(text, []byte("\n"))
}

func (b *book) finished() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.left == 0
}

// table is a line for each tenant. Rates are those of the last two seconds.
func (b *book) table() []byte {
	const recent = 2 * time.Second
	type line struct{ waiting, running, done, bounces, recent int }
	lines := make(map[string]*line)
	for _, tenant := range tenants {
		lines[tenant.name] = &line{}
	}
	b.mu.Lock()
	for _, e := range b.tasks {
		l := lines[e.tenant]
		if l == nil {
			continue
		}
		l.bounces += e.bounces
		switch {
		case e.done:
			l.done++
		case len(e.starts) > 0:
			l.running++
		default:
			l.waiting++
		}
		if len(e.starts) > 0 && time.Since(e.starts[0]) < recent {
			l.recent++
		}
	}
	b.mu.Unlock()

	var text bytes.Buffer
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(w, "%.1fs\twaiting\trunning\tdone\tper second\tof\tbounces\t\n", time.Since(b.start).Seconds())
	for _, tenant := range tenants {
		l := lines[tenant.name]
		_, _ = fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.1f\t%d\t%d\t\n", tenant.name, l.waiting, l.running, l.done,
			float64(l.recent)/recent.Seconds(), b.rate, l.bounces)
	}
	_ = w.Flush()
	return text.Bytes()
}
