package trace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A point is one series of a metric as it stands: its value, or a histogram's sum, and how many it counted.
type point struct {
	attributes attribute.Set
	value      float64
	count      uint64
	exemplars  int // with a trace
}

// points are the series of a metric.
func points(m metricdata.Metrics) []point {
	var all []point
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		for _, p := range data.DataPoints {
			all = append(all, point{p.Attributes, float64(p.Value), 0, traced(p.Exemplars)})
		}
	case metricdata.Gauge[float64]:
		for _, p := range data.DataPoints {
			all = append(all, point{p.Attributes, p.Value, 0, traced(p.Exemplars)})
		}
	case metricdata.Histogram[float64]:
		for _, p := range data.DataPoints {
			all = append(all, point{p.Attributes, p.Sum, p.Count, traced(p.Exemplars)})
		}
	}
	return all
}

func traced[N int64 | float64](exemplars []metricdata.Exemplar[N]) int {
	n := 0
	for _, e := range exemplars {
		if len(e.TraceID) > 0 {
			n++
		}
	}
	return n
}

// figures are all series, as one line each, less what is the same in all of this file.
func (r *rig) figures() []string {
	r.t.Helper()
	var lines []string
	for name, m := range r.collect() {
		for _, p := range points(m) {
			var labels []string
			for _, a := range p.attributes.ToSlice() {
				if a.Key == keyLimiter || a.Key == keyAlgorithm {
					continue
				}
				labels = append(labels, a.Value.String())
			}
			line := strings.TrimPrefix(name, "headgate.") + " " + strings.Join(append(labels, ""), " ") + fmt.Sprint(p.value)
			if p.count > 0 {
				line += fmt.Sprintf(" in %d", p.count)
			}
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

// What the metrics say of a script of calls is what was counted by hand.
func TestMetricsAreWhatWasCountedByHand(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store, source string) {
		r := newRig(t)
		l := r.limiter(store, twice)
		ctx := context.Background()
		expect := func(got, want error) {
			t.Helper()
			if !errors.Is(got, want) {
				t.Fatalf("%v, want %v", got, want)
			}
		}
		_, err := l.AllowN(ctx, 2) // at 0: both permits
		expect(err, nil)
		for range 3 {
			_, err = l.Allow(ctx) // refused
			expect(err, nil)
		}
		expect(l.Wait(ctx), nil) // sleeps 1 tick
		leaving, leave := context.WithCancel(ctx)
		time.AfterFunc(tick/4, leave)
		expect(l.WaitN(leaving, 2), context.Canceled) // sleeps a quarter of the two, and gives 2 back
		short, cancel := context.WithTimeout(ctx, tick/4)
		expect(l.Wait(short), headgate.ErrDenied) // the slot lies beyond
		cancel()
		_, err = l.AllowN(ctx, 3)
		expect(err, headgate.ErrNeverAllowed)
		first, err := l.ReserveN(ctx, 2)
		expect(err, nil)
		expect(first.Cancel(ctx), nil) // gives 2 back
		expect(first.Cancel(ctx), nil) // nothing
		_, err = l.Reserve(ctx, headgate.Within(0))
		expect(err, headgate.ErrDenied)
		_, err = l.Peek(ctx) // asks for nothing
		expect(err, nil)
		expect(l.Reset(ctx), nil)
		expect(l.For("other").Wait(ctx), nil) // at once

		want := []string{
			"limit 0.01",
			"permits allow acquired S 2",
			"permits allow denied S 3",
			"permits reserve acquired S 2",
			"permits reserve denied S 1",
			"permits wait acquired S 2",
			"permits wait canceled S 2",
			"permits wait denied S 1",
			"permits.returned 4",
			"permits.wasted 0",
			"request.duration allow acquired S 0 in 1",
			"request.duration allow denied S 0 in 3",
			"request.duration never_allowed allow error 0 in 1",
			"request.duration reserve acquired S 0 in 1",
			"request.duration reserve denied S 0 in 1",
			"request.duration wait acquired S 0 in 2",
			"request.duration wait canceled S 0 in 1",
			"request.duration wait denied S 0 in 1",
			"requests allow acquired S 1",
			"requests allow denied S 3",
			"requests never_allowed allow error 1",
			"requests reserve acquired S 1",
			"requests reserve denied S 1",
			"requests wait acquired S 2",
			"requests wait canceled S 1",
			"requests wait denied S 1",
			"reservation.cancellations 2",
			"wait.active 0",
			"wait.duration acquired 100 in 1",
			"wait.duration canceled 25 in 1",
		}
		for i := range want {
			want[i] = strings.Replace(want[i], " S ", " "+source+" ", 1)
		}
		got := r.figures()
		if source == "redis" { // in virtual time a call takes none
			want = append(want, "store.duration EVAL 0 in 1", "store.duration EVALSHA 0 in 13")
		}
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("the metrics are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestSleepersAreCountedWhileTheySleep(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store, _ string) {
		r := newRig(t)
		l := r.limiter(store, twice)
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		ended := make(chan struct{}, 6)
		for range 6 { // two go at once
			go func() {
				_ = l.Wait(ctx)
				ended <- struct{}{}
			}()
		}
		active := func() float64 { return points(r.collect()["headgate.wait.active"])[0].value }
		time.Sleep(tick / 2)
		if n := active(); n != 4 {
			t.Errorf("%v sleep, want 4", n)
		}
		time.Sleep(tick)
		if n := active(); n != 3 {
			t.Errorf("%v sleep, want 3", n)
		}
		leave()
		for range 6 {
			<-ended
		}
		if n := active(); n != 0 {
			t.Errorf("%v sleep, want none", n)
		}
	})
}

// What a cancel does not bring back is told: here those of the middle of a warming-up queue, and those that the store
// did not take back.
func TestPermitsThatDoNotComeBackAreWasted(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	reserve := func(l *headgate.Limiter, n int) *headgate.Reservation {
		reservation, err := l.ReserveN(ctx, n)
		if err != nil {
			t.Fatal(err)
		}
		return reservation
	}
	l := r.limiter(headgate.Memory(), algos.WarmUp{Rate: 1, Per: time.Hour})
	reserve(l, 1)
	middle := reserve(l, 3)
	last := reserve(l, 5)
	for _, reservation := range []*headgate.Reservation{middle, last} {
		if err := reservation.Cancel(ctx); err != nil {
			t.Fatal(err)
		}
	}
	server := redistest.Start(t)
	l = r.limiter(headgate.Redis(server.Client()), algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 9})
	reserve(l, 9)
	lost := reserve(l, 7)
	server.Pause()
	defer server.Resume()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := lost.Cancel(short); err == nil {
		t.Fatal("it was given back")
	}
	var returned, wasted float64
	metrics := r.collect()
	for _, p := range points(metrics["headgate.permits.returned"]) {
		returned += p.value
	}
	for _, p := range points(metrics["headgate.permits.wasted"]) {
		wasted += p.value
	}
	if returned != 5 || wasted != 3+7 {
		t.Errorf("%v returned and %v wasted, want 5 and 10", returned, wasted)
	}
	var kinds []string
	for _, p := range points(metrics["headgate.reservation.cancellations"]) {
		kind, _ := p.attributes.Value("error.type")
		kinds = append(kinds, fmt.Sprintf("%s: %v", kind.AsString(), p.value))
	}
	if slices.Sort(kinds); !slices.Equal(kinds, []string{": 2", "timeout: 1"}) {
		t.Errorf("cancellations %q", kinds)
	}
}

// mcp-ts-core #114, envoyproxy/ratelimit #1132, otel-go #6788: a key, or an error's text, as a label.
func TestKeysMakeNoSeries(t *testing.T) {
	r := newRig(t)
	l, err := headgate.New(headgate.Memory(), "secret", twice, headgate.WithName("vendor"),
		Instrument(WithMeterProvider(r.meters), WithKey(func(key string) string { return key })))
	if err != nil {
		t.Fatal(err)
	}
	all := func(key string) {
		for _, n := range []int{1, 2, 3} {
			_, _ = l.For(key).AllowN(context.Background(), n)
		}
		reservation, err := l.For(key).ReserveN(context.Background(), 2)
		if err != nil {
			t.Fatal(err)
		}
		_ = reservation.Cancel(context.Background())
	}
	all("first")
	series := func() map[string]int {
		n := map[string]int{}
		for name, m := range r.collect() {
			n[name] = len(points(m))
		}
		return n
	}
	before := series()
	for i := range 100_000 {
		if key := fmt.Sprint("user", i); i%100 == 0 {
			all(key)
		} else if _, err := l.For(key).Allow(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if after := series(); !maps.Equal(before, after) {
		t.Errorf("the numbers of series were %v and are %v", before, after)
	}
	for name, m := range r.collect() {
		for _, p := range points(m) {
			if text := p.attributes.Encoded(attribute.DefaultEncoder()); strings.Contains(text, "secret") || strings.Contains(text, "user") {
				t.Errorf("%s has %s", name, text)
			}
		}
	}
}

// Each measurement is recorded within the span that it belongs to.
func TestMeasurementsLeadToTheirTraces(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store, _ string) {
		r := newRig(t)
		l := r.limiter(store, twice, WithScriptCalls())
		for range 3 {
			if err := l.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		reservation, err := l.Reserve(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := reservation.Cancel(context.Background()); err != nil {
			t.Fatal(err)
		}
		for name, m := range r.collect() {
			for _, p := range points(m) {
				if p.exemplars == 0 {
					t.Errorf("%s has no exemplar of %v", name, p.attributes.ToSlice())
				}
			}
		}
	})
}
