package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vbauerster/mpb/v8"

	"github.com/headgate-go/headgate"
)

// In virtual time, and with an API that is called instead of dialled, nothing jitters: the API needs no tolerance, and
// the time that a batch takes is exact.
var strict = options{rate: 40, burst: 10, workers: 16}

// direct is a network that takes no time.
type direct struct{ http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w.Result(), nil
}

// silent is a progress that shows nothing.
type silent struct{}

func (silent) step()  {}
func (silent) close() {}

func newSender(permit func(context.Context) error, h http.Handler) *sender {
	return &sender{
		permit: permit, client: &http.Client{Transport: direct{h}}, url: "http://api" + path,
		workers: strict.workers, progress: silent{},
	}
}

func testLimiter(t *testing.T, store headgate.Store, calls *ledger) *headgate.Limiter {
	t.Helper()
	limiter, err := newLimiter(store, strict, calls)
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

// in runs f in a bubble of virtual time.
func in(t *testing.T, name string, f func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

func TestSend(t *testing.T) {
	in(t, "wait", func(t *testing.T) {
		var calls ledger
		limiter := testLimiter(t, headgate.Memory(), &calls)
		r := newSender(limiter.Wait, messages(newMeter(strict))).send(t.Context(), numbered(400))
		if r.sent != 400 || r.refused != 0 || r.err() != nil {
			t.Errorf("%d sent and %d refused, %v; want 400 and none", r.sent, r.refused, r.err())
		}
		if r.elapsed != 9750*time.Millisecond || r.elapsed != ideal(400, strict) {
			t.Errorf("it took %v; want 390 fortieths of a second", r.elapsed)
		}
		if calls.decisions.Load() != 400 || calls.granted.Load() != 400 || calls.returned.Load() != 0 {
			t.Errorf("%d decisions; want one for each of 400 permits", calls.decisions.Load())
		}
	})
	in(t, "poll", func(t *testing.T) {
		var calls ledger
		limiter := testLimiter(t, headgate.Memory(), &calls)
		r := newSender(poll(limiter), messages(newMeter(strict))).send(t.Context(), numbered(400))
		if r.sent != 400 || r.refused != 0 || r.err() != nil {
			t.Errorf("%d sent and %d refused, %v; want 400 and none", r.sent, r.refused, r.err())
		}
		if calls.granted.Load() != 400 || calls.decisions.Load() < 2*400 {
			t.Errorf("%d permits on %d decisions; want 400, on far more", calls.granted.Load(), calls.decisions.Load())
		}
	})
	in(t, "together", func(t *testing.T) {
		store, h := headgate.Memory(), messages(newMeter(strict))
		start := time.Now()
		var copies sync.WaitGroup
		for range 4 {
			copies.Go(func() {
				limiter := testLimiter(t, store, &ledger{})
				r := newSender(limiter.Wait, h).send(t.Context(), numbered(100))
				if r.sent != 100 || r.refused != 0 {
					t.Errorf("%d sent and %d refused; want 100 and none", r.sent, r.refused)
				}
			})
		}
		copies.Wait()
		if took := time.Since(start); took != ideal(400, strict) {
			t.Errorf("it took %v; want %v", took, ideal(400, strict))
		}
	})
}

// A worker that is told to stop leaves no permit behind: whoever comes next is next.
func TestSendInterrupted(t *testing.T) {
	in(t, "wait", func(t *testing.T) {
		var calls ledger
		limiter := testLimiter(t, headgate.Memory(), &calls)
		ctx, interrupt := context.WithCancel(t.Context())
		time.AfterFunc(1010*time.Millisecond, interrupt)
		r := newSender(limiter.Wait, messages(newMeter(strict))).send(ctx, numbered(400))
		if r.sent != 50 || !errors.Is(r.err(), context.Canceled) {
			t.Errorf("%d sent, %v; want 50, and that it was cancelled", r.sent, r.err())
		}
		if granted, returned := calls.granted.Load(), calls.returned.Load(); granted != 66 || returned != 16 {
			t.Errorf("%d granted and %d given back; want 66, and one of each worker", granted, returned)
		}
		before := time.Now()
		if err := limiter.Wait(t.Context()); err != nil || time.Since(before) != 15*time.Millisecond {
			t.Errorf("the next slot was %v off, %v; want 15ms", time.Since(before), err)
		}
	})
	in(t, "poll", func(t *testing.T) {
		var calls ledger
		limiter := testLimiter(t, headgate.Memory(), &calls)
		ctx, interrupt := context.WithCancel(t.Context())
		time.AfterFunc(1010*time.Millisecond, interrupt)
		r := newSender(poll(limiter), messages(newMeter(strict))).send(ctx, numbered(400))
		if r.sent != int(calls.granted.Load()) || r.elapsed != 1010*time.Millisecond || !errors.Is(r.err(), context.Canceled) {
			t.Errorf("%d sent in %v, %v; want that it was cancelled", r.sent, r.elapsed, r.err())
		}
	})
}

// A 429 is no loss: the line goes out later.
func TestSendTooFast(t *testing.T) {
	in(t, "unlimited", func(t *testing.T) {
		var mu sync.Mutex
		had := make(map[string]int)
		m := newMeter(strict)
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var line bytes.Buffer
			_, _ = line.ReadFrom(r.Body)
			if !m.admit() {
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			had[line.String()]++
			w.WriteHeader(http.StatusAccepted)
		})
		hasty := func(context.Context) error { time.Sleep(time.Millisecond); return nil }
		r := newSender(hasty, h).send(t.Context(), numbered(100))
		if r.sent != 100 || r.refused == 0 || len(had) != 100 {
			t.Errorf("%d sent, %d lines arrived, %d were refused; want 100, 100 and some", r.sent, len(had), r.refused)
		}
		if r.elapsed < ideal(100, strict) {
			t.Errorf("the API let 100 requests through in %v", r.elapsed)
		}
	})
}

// Without the limiter nothing is sent, whatever else works.
func TestSendWithoutLimiter(t *testing.T) {
	down := errors.New("the store is down")
	r := newSender(func(context.Context) error { return down }, messages(newMeter(strict))).send(t.Context(), numbered(50))
	if r.sent != 0 || !errors.Is(r.err(), down) {
		t.Errorf("%d sent, %v; want none, and why", r.sent, r.err())
	}
}

func TestMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMeter(strict)
		admit := func(want int) {
			t.Helper()
			got := 0
			for range 100 {
				if m.admit() {
					got++
				}
			}
			if got != want {
				t.Errorf("admitted %d; want %d", got, want)
			}
		}
		admit(10) // the burst
		time.Sleep(25*time.Millisecond - time.Nanosecond)
		admit(0)
		time.Sleep(time.Nanosecond)
		admit(1)
		time.Sleep(time.Second / 8)
		admit(5)
		time.Sleep(time.Hour)
		admit(10) // what was not used is not saved up

		o := strict
		o.tolerance = 5 * time.Millisecond
		m = newMeter(o)
		admit(10) // five milliseconds are less than one request
		time.Sleep(20*time.Millisecond - time.Nanosecond)
		admit(0)
		time.Sleep(time.Nanosecond)
		admit(1)
		time.Sleep(25*time.Millisecond - time.Nanosecond)
		admit(0) // it is lent once, not for each request
		if got, want := m.summary(), "admitted 11 in 0.02s (ideal 0.03s), refused 389; jitter up to 5ms, of 5ms tolerated"; got != want {
			t.Errorf("the summary is %q; want %q", got, want)
		}
	})
}

func TestProgress(t *testing.T) {
	in(t, "lines", func(t *testing.T) {
		var out bytes.Buffer
		p := newProgress(&out, 30)
		time.Sleep(1500 * time.Millisecond)
		for range 10 {
			p.step()
		}
		time.Sleep(time.Second)
		p.close()
		if got, want := out.String(), "0/30 sent, 0.0/s, ? left\n10/30 sent, 5.0/s, 4s left\n"; got != want {
			t.Errorf("got %q; want %q", got, want)
		}
	})
	for name, steps := range map[string]int{"full bar": 3, "bar cut short": 2, "bar untouched": 0} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			p := newBar(3, mpb.WithOutput(&out), mpb.WithAutoRefresh())
			for range steps {
				p.step()
			}
			p.close()
			if want := string(rune('0'+steps)) + "/3 sent"; !strings.Contains(out.String(), want) {
				t.Errorf("got %q; want %q in it", &out, want)
			}
		})
	}
	t.Run("bar of nothing", func(*testing.T) { newBar(0, mpb.WithOutput(new(bytes.Buffer)), mpb.WithAutoRefresh()).close() })
}
