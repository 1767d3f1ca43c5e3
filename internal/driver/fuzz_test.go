package driver_test

import (
	"fmt"
	"testing"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A tape is the fuzzer's bytes, read as a script of operations; past its end there are zeros.
type tape []byte

func (t *tape) next() int64 {
	if len(*t) == 0 {
		return 0
	}
	b := (*t)[0]
	*t = (*t)[1:]
	return int64(b)
}

// span reads a span of time: 0 to 255 eighths of one permit's time, or of the whole limit's, and some microseconds.
func (t *tape) span(one, all float64) int64 {
	unit := []float64{one, one, all, 0}[t.next()%4]
	return min(int64(unit*float64(t.next())/8), 1<<44) + t.next()%4
}

// FuzzTwins drives Go, and Lua on a real server, with one script of operations, and compares every reply and what the two
// remember at the end:
//
//	go test ./internal/driver -run '^$' -fuzz FuzzTwins -fuzztime 5m
//
// The script's first bytes choose the algorithm and the parameters between which it changes.
func FuzzTwins(f *testing.F) {
	rdb := redistest.Start(f).Client()
	for i := range subjects {
		first := []byte{byte(i), 1, 2, 3, 4}
		f.Add(append(first, // take, take beyond now, cancel the first, take again
			4, 1, 0, 0, 0, 2, 0, 4, 1, 0, 0, 0, 3, 3, 9, 0, 0, 0, 0, 0, 4, 2, 0, 8, 0, 2, 0))
		f.Add(append(first, // reserve as far as it goes, step back, cancel, change the parameters, ask
			4, 0, 0, 0, 0, 9, 3, 4, 0, 0, 0, 0, 9, 3, 4, 0, 0, 0, 0, 9, 3, 2, 0, 9, 1, 4, 1, 3, 3, 9, 0, 0, 0, 1, 1, 5, 0, 0, 0, 0, 4, 1))
		f.Add(append(first, // batches
			7, 2, 4, 1, 4, 3, 1, 3, 2, 3, 7, 1, 80, 0, 0, 0, 1, 2, 3, 7, 0, 0, 0, 0, 1, 0, 1, 1))
	}
	runs := 0
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) > 600 {
			t.Skip("long enough to say it all in fewer bytes")
		}
		runs++
		key := fmt.Sprint("fuzz:", runs)
		defer rdb.Del(t.Context(), key)
		fuzzTwins(t, server{rdb: rdb, key: key}, script)
	})
}

func fuzzTwins(t *testing.T, s server, script tape) {
	of := subjects[script.next()%int64(len(subjects))]
	var kinds [2]algos.Algorithm
	for i := range kinds {
		kinds[i] = of.draw.Example(int(script.next()<<8 | script.next()))
	}
	now, kind := int64(epoch), 0
	r := rule(t, kinds[0])
	p := process{r.NewState()}
	var receipts []driver.Request
	compare := func(requests ...driver.Request) {
		t.Helper()
		inGo, inLua := p.run(r, now, requests...), s.run(t, r, now, requests...)
		for i, request := range requests {
			if inGo[i] != inLua[i] {
				t.Fatalf("%+v, request %d of %v at %d:\nGo  %v\nLua %v", kinds[kind], i, requests, now-epoch, inGo, inLua)
			}
			if request.Cost > 0 && inGo[i].Wait >= 0 {
				receipts = append(receipts, driver.Request{Cost: -request.Cost, Receipt: inGo[i].Receipt})
			}
		}
		if bytes, until := s.stored(); bytes != "" && until <= 0 {
			t.Fatalf("%+v, %v: no TTL", kinds[kind], requests)
		}
	}
	for len(script) > 0 {
		one, all := of.times(kinds[kind])
		request := func() driver.Request {
			if n := int64(len(receipts)); n > 0 && script.next()%3 == 0 {
				return receipts[script.next()%n] // given back before, perhaps
			}
			cost := 1 + script.next()%min(int64(r.Max()), 64)
			bound := []int64{0, driver.Ask, min(script.span(one, all), r.Horizon(cost)), r.Horizon(cost)}[script.next()%4]
			return driver.Request{Cost: cost, Bound: bound}
		}
		switch script.next() % 8 {
		case 0, 1:
			now = min(now+script.span(one, all), 2_000_000_000*second)
		case 2:
			now = max(now-script.span(one, all), 1)
		case 3:
			kind = int(script.next() % 2)
			r = rule(t, kinds[kind])
		case 7:
			requests := make([]driver.Request, 1+script.next()%4)
			for i := range requests {
				requests[i] = request()
			}
			compare(requests...)
		default:
			compare(request())
		}
	}
	for _, later := range []int64{0, 1, 1000, second} { // what they remember, as far as it can be told
		now += later
		for cost := range min(int64(r.Max()), 12) {
			compare(driver.Request{Cost: cost + 1, Bound: driver.Ask})
		}
	}
}
