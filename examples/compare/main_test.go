package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// reserve sends traffic through a Limiter, in the virtual time of the bubble that it runs in. It returns when the admitted
// requests go, and how long each waits until then.
func reserve(t *testing.T, algorithm algos.Algorithm, arrivals []time.Duration) (slots, waits []time.Duration) {
	limiter, err := headgate.New(headgate.Memory(), "compare", algorithm)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for _, at := range arrivals {
		time.Sleep(time.Until(start.Add(at)))
		r, err := limiter.Reserve(context.Background(), headgate.Within(patience))
		if errors.Is(err, headgate.ErrDenied) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		wait := r.Delay()
		slots, waits = append(slots, at+wait), append(waits, wait)
	}
	return slots, waits
}

// The most slots in a window, counted without the program's help.
func worst(slots []time.Duration) int {
	most := 0
	for _, from := range slots {
		n := 0
		for _, slot := range slots {
			if from <= slot && slot < from+window {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

// bounds are the fewest and the most that an algorithm's worst window can be by its docs, with this traffic.
var bounds = map[string][2]int{
	"TokenBucket":    {limit + 1, limit + limit/2},
	"LeakyBucket":    {limit, limit},
	"FixedWindow":    {2*limit - 1, 2 * limit}, // the lone request is in the same window as the first burst
	"CalendarWindow": {2*limit - 1, 2 * limit},
	"SlidingLog":     {limit, limit},
	"SlidingWindow":  {limit, limit},
	"WarmUp":         {limit, limit},
}

// table is the program's table for a seed, as it is printed, and its fields by algorithm.
func table(t *testing.T, seed uint64) (printed string, fields map[string][]string) {
	t.Helper()
	arrivals := traffic(seed)
	outcomes, err := replayAll(arrivals)
	var out bytes.Buffer
	if err := errors.Join(err, printTable(&out, arrivals, outcomes)); err != nil {
		t.Fatal(err)
	}
	fields = make(map[string][]string)
	for line := range strings.Lines(out.String()) {
		if row := strings.Fields(line); len(row) == 5 && row[0] != "algorithm" {
			fields[row[0]] = row[1:]
		}
	}
	return out.String(), fields
}

// What is printed is what Limiters do in a bubble, and what they promise.
func TestTheTableIsWhatLimitersDo(t *testing.T) {
	for seed := range uint64(3) {
		printed, fields := table(t, seed)
		if len(fields) != len(contenders) {
			t.Fatalf("%d algorithms, and the table is\n%s", len(contenders), printed)
		}
		arrivals := traffic(seed)
		for _, algorithm := range contenders {
			name := strings.TrimPrefix(fmt.Sprintf("%T", algorithm), "algos.")
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				var slots, waits []time.Duration
				synctest.Test(t, func(t *testing.T) { slots, waits = reserve(t, algorithm, arrivals) })

				replayed, err := replay(algorithm, arrivals)
				if err != nil || !slices.Equal(replayed.slots, slots) {
					t.Errorf("the slots are %v, %v; a Limiter's are %v", replayed.slots, err, slots)
				}
				var waited time.Duration
				for _, wait := range waits {
					waited += wait
				}
				mean := (waited / time.Duration(len(waits))).Round(time.Millisecond)
				want := []string{strconv.Itoa(len(slots)), strconv.Itoa(len(arrivals) - len(slots)), strconv.Itoa(worst(slots)), mean.String()}
				if !slices.Equal(fields[name], want) {
					t.Errorf("the table says %v; want %v", fields[name], want)
				}
				if b, ok := bounds[name]; !ok || worst(slots) < b[0] || worst(slots) > b[1] {
					t.Errorf("%d requests in a window; want %v", worst(slots), b)
				}
				if longest := slices.Max(waits); longest > patience || !slices.IsSorted(slots) {
					t.Errorf("somebody waits %v, or the slots are out of order: %v", longest, slots)
				}
			})
		}
	}
}

// The README shows the table as it is printed.
func TestTheREADMEHasTheTable(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if printed, _ := table(t, 1); !strings.Contains(string(readme), "```\n"+printed+"```\n") {
		t.Errorf("the README lacks\n%s", printed)
	}
}

// A fixed window's worst window is at the edge that the traffic has for it.
func TestAFixedWindowDoublesABurstAtItsEdge(t *testing.T) {
	o, err := replay(algos.FixedWindow{Limit: limit, Window: window}, traffic(1))
	if err != nil {
		t.Fatal(err)
	}
	if n := o.until(16100*time.Millisecond) - o.until(15899*time.Millisecond); n != 2*limit-1 {
		t.Errorf("%d requests in the fifth of a second around 16 s; want %d", n, 2*limit-1)
	}
}

// A leaky bucket's requests go one by one, and few of them wait where few may.
func TestALeakyBucketKeepsItsPaceAndItsCapacity(t *testing.T) {
	small, arrivals := algos.LeakyBucket{Rate: limit, Per: window, Capacity: 5}, traffic(1)
	o, err := replay(small, arrivals)
	if err != nil {
		t.Fatal(err)
	}
	for i := range len(o.slots) - 1 {
		if gap := o.slots[i+1] - o.slots[i]; gap < window/limit {
			t.Errorf("%v between two requests at %v", gap, o.slots[i])
		}
	}
	synctest.Test(t, func(t *testing.T) {
		slots, waits := reserve(t, small, arrivals)
		if longest := slices.Max(waits); longest != 5*window/limit || !slices.Equal(o.slots, slots) {
			t.Errorf("the longest wait is %v, and the slots are %v; a Limiter's are %v", longest, o.slots, slots)
		}
	})
}

// After a silence a limiter that warms up begins at less than half its rate, and under load it reaches it.
func TestAWarmUpBeginsSlowly(t *testing.T) {
	o, err := replay(algos.WarmUp{Rate: limit, Per: window, Period: 4 * time.Second, ColdFactor: 3}, traffic(1))
	if err != nil {
		t.Fatal(err)
	}
	if first := o.lately(54*time.Second + window - 1); first >= limit/2 {
		t.Errorf("%d requests in the first window", first)
	}
	if loaded := o.lately(silence); loaded != limit {
		t.Errorf("%d requests in a window under load; want %d", loaded, limit)
	}
}

// The whole program, twice: it prints and writes the same each time.
func TestRun(t *testing.T) {
	var outs [2]bytes.Buffer
	var pngs, svgs [2][]byte
	for i := range outs {
		directory := filepath.Join(t.TempDir(), "not", "there")
		if err := run([]string{"-seed", "5", "-out", directory}, &outs[i]); err != nil {
			t.Fatal(err)
		}
		for name, content := range map[string]*[]byte{"compare.png": &pngs[i], "compare.svg": &svgs[i]} {
			var err error
			if *content, err = os.ReadFile(filepath.Join(directory, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Equal(pngs[0], pngs[1]) || !bytes.Equal(svgs[0], svgs[1]) {
		t.Error("two runs draw two pictures")
	}
	printed, fields := table(t, 5)
	if !strings.HasPrefix(outs[0].String(), printed) || !strings.HasPrefix(outs[1].String(), printed) {
		t.Errorf("the program prints\n%s\nand then\n%s\nwant\n%s", &outs[0], &outs[1], printed)
	}
	if other, _ := table(t, 6); other == printed {
		t.Error("another seed gives the same table")
	}

	picture, err := png.Decode(bytes.NewReader(pngs[0]))
	if err != nil {
		t.Fatal(err)
	}
	if w := picture.Bounds().Dx(); w != 1200 || len(pngs[0]) > 250_000 {
		t.Errorf("the PNG is %d pixels wide, and has %d bytes", w, len(pngs[0]))
	}
	texts := texts(t, svgs[0])
	if len(svgs[0]) > 500_000 {
		t.Errorf("the SVG has %d bytes", len(svgs[0]))
	}
	for name, row := range fields {
		if title := fmt.Sprintf("%s: at most %s in 2s", name, row[2]); !strings.Contains(texts, title) {
			t.Errorf("the SVG does not say %q", title)
		}
	}
}

// texts are what a well-formed SVG says.
func texts(t *testing.T, svg []byte) string {
	t.Helper()
	var b strings.Builder
	for decoder := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := decoder.Token()
		if err == io.EOF {
			return b.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		if s, ok := token.(xml.CharData); ok {
			b.Write(s)
		}
	}
}

func TestFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"-seed", "-1"}, {"-no-such-flag"}, {"docs"}, {"-out", file}} {
		if err := run(args, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
	var out bytes.Buffer
	if err := run([]string{"-h"}, &out); err != nil || !strings.Contains(out.String(), "-seed") {
		t.Errorf("-h: the error is %v, and the output %q", err, &out)
	}
}
