package driver_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

const millisecond = 1000

// A both is a limiter in process and one on a server, asked the same: it fails where their answers differ.
type both struct {
	t *testing.T
	p process
	s server
}

func newBoth(t *testing.T, s server) *both { return &both{t: t, s: s} }

func (b *both) run(r algos.Rule, now int64, request driver.Request) driver.Reply {
	b.t.Helper()
	return b.batch(r, now, request)[0]
}

func (b *both) batch(r algos.Rule, now int64, requests ...driver.Request) []driver.Reply {
	b.t.Helper()
	if b.p.state == nil {
		b.p.state = r.NewState()
	}
	inGo, inLua := b.p.run(r, now, requests...), b.s.run(b.t, r, now, requests...)
	for i, request := range requests {
		if inGo[i] != inLua[i] {
			b.t.Fatalf("at %d, number %d, %+v: Go %v, Lua %v", now-epoch, i, request, inGo[i], inLua[i])
		}
	}
	checkHoles(b.t, r, b.s)
	return inLua
}

func (b *both) ask(r algos.Rule, now, cost, bound int64) driver.Reply {
	b.t.Helper()
	return b.run(r, now, driver.Request{Cost: cost, Bound: bound})
}

func (b *both) cancel(r algos.Rule, now, cost int64, receipt algos.Receipt) int64 {
	b.t.Helper()
	return b.run(r, now, driver.Request{Cost: -cost, Receipt: receipt}).Wait
}

// A row asks for cost permits within bound, and wants the slot after wait, or a refusal with a retry-after of -wait; and
// what remains then.
type row struct {
	at, cost, bound int64 // at: after the first
	wait, remaining int64
}

func (b *both) rows(r algos.Rule, rows []row) (replies []driver.Reply) {
	b.t.Helper()
	for i, row := range rows {
		reply := b.ask(r, epoch+row.at*second, row.cost, row.bound*second)
		if reply.Wait != row.wait*second || reply.Remaining != row.remaining {
			b.t.Fatalf("row %d: waits %v, %d remain; want %v and %d", i, time.Duration(reply.Wait)*time.Microsecond, reply.Remaining,
				time.Duration(row.wait*second)*time.Microsecond, row.remaining)
		}
		replies = append(replies, reply)
	}
	return replies
}

func TestFixedWindows(t *testing.T) {
	rdb := redistest.Start(t).Client()
	ten := rule(t, algos.FixedWindow{Limit: 10, Window: 10 * time.Second})
	for name, rows := range map[string][]row{
		"a hit does not extend the window": {
			{0, 9, 0, 0, 1}, {5, 1, 0, 0, 0}, {9, 1, 0, -1, 0}, {10, 1, 0, 0, 9},
		},
		"a window begins with a request, not with the end of the last": {
			{0, 1, 0, 0, 9}, {13, 10, 0, 0, 0}, {20, 1, 0, -3, 0}, {23, 1, 0, 0, 9},
		},
		"a refusal takes nothing (envoyproxy/ratelimit #185, upstash/ratelimit-js #156)": {
			{0, 8, 0, 0, 2}, {0, 5, 0, -10, 2}, {0, 1, 0, 0, 1},
		},
		"twice the limit at the edge is what a fixed window is": {
			{0, 1, 0, 0, 9}, {9, 9, 0, 0, 0}, {10, 10, 0, 0, 0},
		},
		"a reservation goes to a later window whole": {
			{0, 8, 0, 0, 2}, {1, 5, 99, 9, 0}, {1, 5, 99, 9, 0}, {1, 6, 99, 19, 0}, {1, 5, 99, 29, 0},
		},
		"room that a larger request skipped is closed to those behind it": {
			{0, 8, 0, 0, 2}, {1, 5, 99, 9, 0}, {2, 1, 0, -8, 0}, {2, 1, 99, 8, 0},
		},
		"a bound is kept, and the retry-after counts it": {
			{0, 10, 0, 0, 0}, {0, 10, 10, 10, 0}, {0, 1, 15, -5, 0}, {5, 1, 15, 15, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			newBoth(t, server{rdb: rdb, key: name}).rows(ten, rows)
		})
	}

	t.Run("room that was given up stands open where it was", func(t *testing.T) {
		b := newBoth(t, server{rdb: rdb, key: "open"})
		replies := b.rows(ten, []row{{0, 6, 0, 0, 4}, {1, 5, 99, 9, 0}, {1, 9, 99, 19, 0}})
		if back := b.cancel(ten, epoch+second, 5, replies[1].Receipt); back != 5 {
			t.Errorf("%d came back", back)
		}
		b.rows(ten, []row{
			{2, 6, 99, 28, 0}, // does not fit what was given up; and closes what was left in the last window
			{2, 4, 99, 8, 0},  // fits
			{2, 2, 99, 28, 0}, // does not any more
			{2, 1, 99, 8, 0},
		})
	})
	t.Run("room that was given up and taken again is not open, however the limit is raised", func(t *testing.T) {
		b := newBoth(t, server{rdb: rdb, key: "taken again"})
		replies := b.rows(ten, []row{{0, 6, 0, 0, 4}, {0, 4, 0, 0, 0}})
		b.cancel(ten, epoch, 4, replies[1].Receipt)
		b.rows(ten, []row{{0, 4, 0, 0, 0}, {0, 5, 99, 10, 0}})
		b.rows(rule(t, algos.FixedWindow{Limit: 14, Window: 10 * time.Second}), []row{{0, 4, 99, 10, 0}})
	})
	t.Run("cancelling the end of the queue opens what it had closed", func(t *testing.T) {
		b := newBoth(t, server{rdb: rdb, key: "tail"})
		replies := b.rows(ten, []row{{0, 6, 0, 0, 4}, {1, 5, 99, 9, 0}, {1, 9, 99, 19, 0}})
		b.cancel(ten, epoch+second, 5, replies[1].Receipt)
		b.cancel(ten, epoch+second, 9, replies[2].Receipt)
		b.rows(ten, []row{{1, 4, 0, 0, 0}})
	})
	t.Run("after all was cancelled the next request begins a window", func(t *testing.T) {
		b := newBoth(t, server{rdb: rdb, key: "all"})
		first := b.ask(ten, epoch, 6, 0)
		b.cancel(ten, epoch, 6, first.Receipt)
		b.rows(ten, []row{{5, 10, 0, 0, 0}, {14, 1, 0, -1, 0}, {15, 1, 0, 0, 9}})
		if back := b.cancel(ten, epoch+15*second, 6, first.Receipt); back != 0 {
			t.Errorf("%d came back to a limiter that was as new in between", back)
		}
	})
}

// go-zero's three codes, by what a Decision has.
func TestTheLastPermitOfAWindowIsToldApart(t *testing.T) {
	rdb := redistest.Start(t).Client()
	paris, err := time.LoadLocation("Europe/Paris")
	if err != nil {
		t.Fatal(err)
	}
	for name, w := range map[string]algos.FixedWindow{
		"from the first request": {Window: time.Second},
		"aligned":                {Window: time.Second, Location: paris},
	} {
		t.Run(name, func(t *testing.T) {
			for limit, want := range map[int][3]int{5: {4, 1, 95}, 1: {0, 1, 99}} {
				w.Limit = limit
				r := rule(t, w)
				b := newBoth(t, server{rdb: rdb, key: name + time.Duration(limit).String()})
				var got [3]int // allowed, the last, over
				for range 100 {
					switch reply := b.ask(r, epoch, 1, 0); {
					case reply.Wait < 0:
						got[2]++
					case reply.Remaining == 0:
						got[1]++
					default:
						got[0]++
					}
				}
				if got != want {
					t.Errorf("limit %d: %v, want %v", limit, got, want)
				}
			}
		})
	}
}

func TestSlidingWindowsLetACellGoWhole(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.SlidingWindow{Limit: 10, Window: 10 * time.Second, Cells: 5})
	for name, rows := range map[string][]row{
		"a cell counts until its last instant is a window away": {
			{0, 3, 0, 0, 7}, {1, 3, 0, 0, 4}, {3, 4, 0, 0, 0}, {10, 1, 0, -2, 0}, {12, 6, 0, 0, 0}, {13, 1, 0, -1, 0}, {14, 4, 0, 0, 0},
		},
		"retry-after is when enough has gone, not when the first has": {
			{0, 3, 0, 0, 7}, {2, 3, 0, 0, 4}, {4, 4, 0, 0, 0}, {5, 5, 0, -9, 0}, {5, 3, 0, -7, 0}, {14, 5, 0, 0, 1},
		},
		"reservations lie at the beginning of cells": {
			{0, 10, 0, 0, 0}, {1, 6, 99, 11, 0}, {1, 6, 99, 23, 0}, {1, 4, 99, 23, 0}, {12, 1, 0, -24, 0},
		},
		"two windows' worth at an edge are not to be had": {
			{0, 1, 0, 0, 9}, {9, 9, 0, 0, 0}, {10, 10, 0, -10, 0}, {12, 1, 0, 0, 0}, {12, 1, 0, -8, 0}, {20, 9, 0, 0, 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			newBoth(t, server{rdb: rdb, key: name}).rows(r, rows)
		})
	}
}

// What is charged stays in the window where it was used, as the next caller cuts time.
func TestChangingWindowsKeepsWhatWasUsed(t *testing.T) {
	rdb := redistest.Start(t).Client()
	fixed := func(limit int, window time.Duration) algos.FixedWindow {
		return algos.FixedWindow{Limit: limit, Window: window}
	}
	sliding := func(limit int, window time.Duration, cells int) algos.SlidingWindow {
		return algos.SlidingWindow{Limit: limit, Window: window, Cells: cells}
	}
	for _, test := range []struct {
		name          string
		before, after algos.Algorithm
		take, pause   int64 // at once; ms
		remaining     int64
		reset         int64 // ms
	}{
		{"a raised limit is there at once", fixed(10, time.Second), fixed(20, time.Second), 1, 0, 19, 1000},
		{"a cut limit keeps what was used", fixed(10, time.Second), fixed(5, time.Second), 3, 0, 2, 1000},
		{"a limit cut below what was used leaves none", fixed(10, time.Second), fixed(5, time.Second), 8, 0, 0, 1000},
		{"a longer window counts what the shorter one did", fixed(10, time.Second), fixed(10, time.Minute), 4, 500, 6, 59_500},
		{"a shorter one ends sooner (Redisson: from 5 s to 1 s after 1.1 s)", fixed(10, 5*time.Second), fixed(10, time.Second), 4, 1100, 10, 0},
		{"and counts until it does", fixed(10, 5*time.Second), fixed(10, time.Second), 4, 900, 6, 100},
		{"finer cells", sliding(10, time.Second, 1), sliding(10, time.Second, 10), 4, 500, 6, 600},
		{"coarser cells", sliding(10, time.Second, 10), sliding(10, time.Second, 1), 4, 500, 6, 1500},
		{"a longer sliding window", sliding(10, time.Second, 10), sliding(10, 10*time.Second, 100), 4, 500, 6, 9600},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBoth(t, server{rdb: rdb, key: test.name})
			b.ask(rule(t, test.before), epoch, test.take, 0)
			reply := b.ask(rule(t, test.after), epoch+test.pause*millisecond, 1, driver.Ask)
			if reply.Remaining != test.remaining || reply.Reset != test.reset*millisecond {
				t.Errorf("%d remain, reset %v", reply.Remaining, time.Duration(reply.Reset)*time.Microsecond)
			}
		})
	}
	t.Run("reservations keep their instants", func(t *testing.T) {
		b := newBoth(t, server{rdb: rdb, key: "reserved"})
		before, after := rule(t, fixed(2, time.Second)), rule(t, fixed(8, 10*time.Second))
		for range 30 {
			b.ask(before, epoch, 2, before.Horizon(1))
		}
		// 0 s to 29 s with 2 each: 20 in each of three windows of 10 s.
		if reply := b.ask(after, epoch, 1, after.Horizon(1)); reply.Wait != 30*second {
			t.Errorf("%+v", reply)
		}
	})
}

func TestAWindowsReservationsAreBounded(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.FixedWindow{Limit: 1, Window: time.Second})
	b := newBoth(t, server{rdb: rdb, key: "far"})
	var last driver.Reply
	for range 501 {
		last = b.ask(r, epoch, 1, r.Horizon(1))
	}
	if last.Wait != 500*second {
		t.Errorf("the last of 501: %+v", last)
	}
	if reply := b.ask(r, epoch, 1, r.Horizon(1)); reply.Wait != -second {
		t.Errorf("one more: %+v", reply)
	}
	if text, _ := b.s.stored(); len(text) > 15_000 {
		t.Errorf("%d bytes of state", len(text))
	}
}

// Callers with different parameters take turns, as during a deploy: what some of them ask, and are refused, changes nothing
// for the others. What is reserved stays where it is, however each cuts time.
func TestAnotherCallersQuestionsMoveNothing(t *testing.T) {
	rdb := redistest.Start(t).Client()
	cells := func(limit int, window time.Duration, n int) algos.Algorithm {
		return algos.SlidingWindow{Limit: limit, Window: window, Cells: n}
	}
	fixed := func(window time.Duration) algos.Algorithm { return algos.FixedWindow{Limit: 10, Window: window} }
	calendar := func(every algos.Every, where string) algos.Algorithm {
		return algos.CalendarWindow{Limit: 10, Every: every, Location: zone(t, where)}
	}
	for name, test := range map[string]struct{ mine, other algos.Algorithm }{
		"windows of twice the length":      {fixed(time.Second), fixed(2 * time.Second)},
		"windows of one and a half":        {fixed(10 * time.Second), fixed(15 * time.Second)},
		"windows of a tenth":               {fixed(10 * time.Second), fixed(time.Second)},
		"hours and days":                   {calendar(algos.Hour, "UTC"), calendar(algos.Day, "UTC")},
		"weeks and months":                 {calendar(algos.Week(time.Monday), "UTC"), calendar(algos.Month, "UTC")},
		"days in another zone":             {calendar(algos.Day, "UTC"), calendar(algos.Day, "Europe/Paris")},
		"days and two hours, across April": {calendar(algos.Day, "Europe/Paris"), calendar(algos.Every(2*time.Hour), "Europe/Paris")},
		"fewer cells":                      {cells(10, time.Second, 3), cells(10, time.Second, 1)},
		"more cells":                       {cells(10, 10*time.Second, 5), cells(10, 10*time.Second, 10)},
		"a longer sliding window":          {cells(10, 10*time.Second, 10), cells(10, 20*time.Second, 10)},
	} {
		t.Run(name, func(t *testing.T) {
			mine, other := rule(t, test.mine), rule(t, test.other)
			run := 0
			checkN(t, 60, func(rt *rapid.T) {
				run++
				alone := process{mine.NewState()}
				disturbed := newBoth(t, server{rdb: rdb, key: fmt.Sprint(name, run)})
				disturbed.p = process{mine.NewState()}
				length := mine.Horizon(1) / 500
				now := int64(epoch)
				var receipts []driver.Request
				for range rapid.IntRange(2, 25).Draw(rt, "length") {
					now += rapid.SampledFrom([]int64{0, 1, length / 3, length, 2 * length}).Draw(rt, "pause")
					request := driver.Request{Cost: int64(rapid.IntRange(1, 10).Draw(rt, "cost")), Bound: rapid.SampledFrom([]int64{0, 5 * length, mine.Horizon(1)}).Draw(rt, "bound")}
					if len(receipts) > 0 && rapid.IntRange(0, 3).Draw(rt, "give back") == 0 {
						i := rapid.IntRange(0, len(receipts)-1).Draw(rt, "which")
						request = receipts[i]
						receipts = append(receipts[:i:i], receipts[i+1:]...)
					}
					want := alone.run(mine, now, request)[0]
					if got := disturbed.run(mine, now, request); got != want {
						rt.Fatalf("%+v is answered %+v; %+v if the others had not asked", request, got, want)
					}
					if request.Cost > 0 && want.Wait >= 0 {
						receipts = append(receipts, driver.Request{Cost: -request.Cost, Receipt: want.Receipt})
					}
					for range rapid.IntRange(0, 2).Draw(rt, "questions") {
						disturbed.ask(other, now, int64(rapid.IntRange(1, 10).Draw(rt, "asked")), driver.Ask)
					}
				}
			})
		})
	}
}

// Two versions that poll in turns admit about as many as the stricter one does alone: neither shuts the other out.
func TestTwoVersionsThatPollShutNobodyOut(t *testing.T) {
	for name, test := range map[string]struct{ one, other algos.Algorithm }{
		"5 and 10 cells":  {algos.SlidingWindow{Limit: 10, Window: 10 * time.Second, Cells: 5}, algos.SlidingWindow{Limit: 10, Window: 10 * time.Second, Cells: 10}},
		"10 s and 20 s":   {algos.SlidingWindow{Limit: 10, Window: 10 * time.Second, Cells: 10}, algos.SlidingWindow{Limit: 10, Window: 20 * time.Second, Cells: 10}},
		"fixed windows":   {algos.FixedWindow{Limit: 10, Window: 10 * time.Second}, algos.FixedWindow{Limit: 10, Window: 15 * time.Second}},
		"10 and 11 cells": {algos.SlidingWindow{Limit: 10, Window: 10 * time.Second, Cells: 10}, algos.SlidingWindow{Limit: 10, Window: 10 * time.Second, Cells: 11}},
	} {
		one, other := rule(t, test.one), rule(t, test.other)
		p := process{one.NewState()}
		admitted := 0
		for i := range int64(120_000) { // 20 minutes
			r := one
			if i%2 == 0 {
				r = other
			}
			if p.ask(r, epoch+i*10*millisecond, 1, 0).Wait == 0 {
				admitted++
			}
		}
		if admitted < 500 {
			t.Errorf("%s: %d admitted in 20 minutes", name, admitted)
		}
	}
}
