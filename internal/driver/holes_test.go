package driver_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// lineTail is what a line's state may have after its numbers: see algos/line.lua.
var lineTail = regexp.MustCompile(`(?s)^@[- \d]{17}\+[ \d]{15}, *(\d+): *(\d+)< *(\d+),(.*)$`)

// checkHoles checks what a stored line says of its holes.
func checkHoles(t interface{ Fatalf(string, ...any) }, r algos.Rule, s server) {
	if !strings.HasPrefix(r.Lua(), "-- A line of places") {
		return
	}
	state := s.rdb.Get(context.Background(), s.key).Val()
	if len(state) <= 28 {
		return
	}
	tail := lineTail.FindStringSubmatch(state[28:])
	if tail == nil {
		t.Fatalf("%q is stored", state[28:])
	}
	count, _ := strconv.Atoi(tail[1])
	first, _ := strconv.Atoi(tail[2])
	longest, _ := strconv.ParseInt(tail[3], 10, 64)
	six := func(bytes string) int64 { return int64(binary.LittleEndian.Uint64([]byte(bytes + "\x00\x00"))) }
	number := func(at int) int64 { return six(tail[4][at : at+6]) }
	taken := six(state[22:28])
	before := int64(-1)
	for i := first; i < first+count; i++ {
		from, to, bound := number(192+12*i), number(198+12*i), number(6*(i/32))
		if from <= before || to <= from || to >= taken {
			t.Fatalf("hole %d is %d-%d, behind one that ends at %d, on a line of %d", i, from, to, before, taken)
		}
		if i > first && to-from > min(longest, bound) { // the first may have begun
			t.Fatalf("hole %d is %d-%d, and none is longer than %d, none of its block than %d", i, from, to, longest, bound)
		}
		before = to
	}
}

// looks counts how often a script calls what its Lua looks at a hole with.
func looks(t *testing.T, s server, r algos.Rule, what string, requests ...driver.Request) int {
	t.Helper()
	script, err := driver.NewScript(r)
	if err != nil {
		t.Fatal(err)
	}
	in := what
	if what == "byte(" {
		in = "string.byte(" // the driver has a name of its own for it
	}
	counting := "local looks = 0\nlocal function look(...)\n  looks = looks + 1\n  return " + in + "...)\nend\n"
	counted := redis.NewScript(counting + strings.NewReplacer(what, "look(", "return replies", "return looks").Replace(script.Source))
	args := []any{epoch}
	params, _ := r.Params(epoch)
	for _, n := range params {
		args = append(args, n)
	}
	n, err := counted.Run(t.Context(), s.rdb, []string{s.key}, driver.AppendArgs(args, requests)...).Int()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// To look at a thousand holes takes a third of a millisecond. A batch does so once, and where the holes of a line are longer is
// stored: there, few are looked at (each by two numbers).
func TestABatchLooksAtAHoleOnce(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, test := range []struct {
		algorithm algos.Algorithm
		looks     string // what its Lua calls to look at a hole
		all       int    // looks for a request by itself
		one       int    // for one after others
	}{
		{algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 5}, "byte(", 200, 75},
		{algos.LeakyBucket{Rate: 1, Per: time.Second, Capacity: 10_000}, "byte(", 200, 75},
		{algos.SlidingLog{Limit: 5, Window: time.Second}, "string.sub(", 1100, 12},
	} {
		r := rule(t, test.algorithm)
		t.Run(r.Name(), func(t *testing.T) {
			s := server{rdb: rdb, key: r.Name()}
			asking := func(n int, costs ...int64) (requests []driver.Request) {
				for range n {
					for _, cost := range costs {
						requests = append(requests, driver.Request{Cost: cost, Bound: r.Horizon(cost)})
					}
				}
				return requests
			}
			peeking := func(n int, cost int64) []driver.Request {
				return slices.Repeat([]driver.Request{{Cost: cost, Bound: driver.Ask}}, n)
			}
			all := slices.Concat(slices.Repeat(slices.Concat(asking(50, 2, 1), asking(3, 3, 1)), 18), asking(1, 5, 1))
			var back []driver.Request
			for i, reply := range s.run(t, r, epoch, all...) {
				if reply.Wait < 0 {
					t.Fatalf("number %d: %+v", i, reply)
				}
				if i%2 == 0 {
					back = append(back, driver.Request{Cost: -all[i].Cost, Receipt: reply.Receipt})
				}
			}
			for i, reply := range s.run(t, r, epoch, back[5:]...) { // the first may have begun
				if reply.Wait != -back[5+i].Cost {
					t.Fatalf("number %d: %+v", i, reply)
				}
			}

			total := 0
			for _, of := range []struct {
				what     string
				requests []driver.Request
				most     int
			}{
				{"54 that one of 18 fits", asking(54, 3), test.all + 54*test.one},
				{"256 that only the last one fits, and do not take it", peeking(256, 3), test.all + 256*test.one},
				{"what only the last one fits", asking(1, 5), test.all},
				{"256 that none fits", asking(256, 4), test.all + 1000},
				{"256 that none fits, now more and now fewer", asking(128, 5, 4), test.all + 1000},
				{"another", asking(1, 4), 10},
				{"one that the first fits", asking(1, 2), 100},
			} {
				n := looks(t, s, r, test.looks, of.requests...)
				if n > of.most {
					t.Errorf("it looked %d times for %s", n, of.what)
				}
				total += n
			}
			if total == 0 {
				t.Error("the looks are not counted")
			}
		})
	}
}

// However many leave at once and next to each other, each looks at few of the others.
func TestManyThatLeaveTogetherLookAtFewOfEachOther(t *testing.T) {
	r := rule(t, algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
	s := server{rdb: redistest.Start(t).Client(), key: "leave"}
	one := driver.Request{Cost: 1, Bound: r.Horizon(1)}
	var back []driver.Request
	for i, reply := range s.run(t, r, epoch, slices.Repeat([]driver.Request{one}, 600)...) {
		if i%2 == 1 && i > 80 {
			back = append(back, driver.Request{Cost: -1, Receipt: reply.Receipt})
		}
	}
	back = back[:256]
	if n := looks(t, s, r, "byte(", back...); n > 25*len(back) {
		t.Errorf("they looked %d times", n)
	}
}

// A row of holes that are taken at its front while others come at its end stays within its bounds.
func TestARowOfHolesGoesOn(t *testing.T) {
	r := rule(t, algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
	b := newBoth(t, server{rdb: redistest.Start(t).Client(), key: "row"})
	one := driver.Request{Cost: 1, Bound: r.Horizon(1)}
	var leave []driver.Request
	for i, reply := range b.batch(r, epoch, slices.Repeat([]driver.Request{one}, 2400)...) {
		if i%2 == 1 {
			leave = append(leave, driver.Request{Cost: -1, Receipt: reply.Receipt})
		}
	}
	b.batch(r, epoch, leave[:1000]...)
	for i, last := range leave[1000:1100] {
		if reply := b.run(r, epoch, one); reply.Receipt != leave[i].Receipt {
			t.Fatalf("hole %d: %+v", i, reply)
		}
		if reply := b.run(r, epoch, last); reply.Wait != 1 {
			t.Fatalf("hole %d did not come back: %+v", 1000+i, reply)
		}
	}
}

// Batches of all kinds among many holes of many lengths.
func TestBatchesAmongManyHoles(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, a := range []algos.Algorithm{
		algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 12},
		algos.TokenBucket{Rate: 7, Per: time.Second, Burst: 12},
		algos.LeakyBucket{Rate: 1, Per: time.Second, Capacity: 100_000},
		algos.SlidingLog{Limit: 12, Window: time.Second},
		algos.SlidingLog{Limit: 5000, Window: time.Second},
	} {
		r := rule(t, a)
		t.Run(fmt.Sprintf("%+v", a), func(t *testing.T) {
			random := rand.New(rand.NewPCG(5, 6))
			b := newBoth(t, server{rdb: rdb, key: fmt.Sprintf("%+v", a)})
			now := int64(epoch)
			var held []driver.Request // to be given back
			run := func(requests []driver.Request) {
				t.Helper()
				for i, reply := range b.batch(r, now, requests...) {
					if requests[i].Cost > 0 && reply.Wait >= 0 {
						held = append(held, driver.Request{Cost: -requests[i].Cost, Receipt: reply.Receipt})
					}
				}
			}
			ask := func(most int64) driver.Request {
				cost := 1 + random.Int64N(most)
				return driver.Request{Cost: cost, Bound: r.Horizon(cost)}
			}
			leave := func() driver.Request {
				i := random.IntN(len(held))
				back := held[i]
				held = slices.Delete(held, i, i+1)
				return back
			}
			for range 10 {
				var requests []driver.Request
				for range 200 {
					requests = append(requests, ask(8))
				}
				run(requests)
			}
			for round := range 24 {
				leaves := []int{0, 2, 5, 10}[round%4] // of ten
				var requests []driver.Request
				for range 1 + random.IntN(250) {
					request := ask(12)
					switch {
					case random.IntN(10) < leaves && len(held) > 0:
						request = leave()
					case random.IntN(4) == 0:
						request.Bound = driver.Ask
					}
					requests = append(requests, request)
				}
				run(requests)
				now += random.Int64N(2 * second)
			}
		})
	}
}

// Neighbours in different blocks of the row become one, and what else is in those blocks is found all the same.
func TestNeighboursInTwoBlocksBecomeOne(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 25})
	request := func(cost int64) driver.Request { return driver.Request{Cost: cost, Bound: r.Horizon(cost)} }
	for k := 1; k < 80; k++ {
		b := newBoth(t, server{rdb: rdb, key: fmt.Sprint(k)})
		ahead := []driver.Request{request(25)}
		for i := range 100 {
			length := int64(1)
			if i == k+3 {
				length = 20
			}
			ahead = append(ahead, request(length), request(1))
		}
		taken := b.batch(r, epoch, ahead...)
		back := func(i int) driver.Request { // the i-th of them
			return driver.Request{Cost: -ahead[i].Cost, Receipt: taken[i].Receipt}
		}
		var holes []driver.Request
		for i := range 100 {
			holes = append(holes, back(1+2*i))
		}
		b.batch(r, epoch, holes...)
		replies := b.batch(r, epoch, driver.Request{Cost: 15, Bound: driver.Ask}, back(2*k), request(20))
		if got, want := replies[2].Receipt, taken[1+2*(k+3)].Receipt; got != want {
			t.Errorf("hole %d: %v instead of %v", k, got, want)
		}
	}
}

// What was too short for a request is not, once its neighbour in the same call has been given back.
func TestWhatIsGivenBackIsThereForTheNextOfTheSameCall(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, a := range []algos.Algorithm{
		algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 5},
		algos.LeakyBucket{Rate: 1, Per: time.Second, Capacity: 100},
		algos.SlidingLog{Limit: 5, Window: time.Second},
	} {
		r := rule(t, a)
		b := newBoth(t, server{rdb: rdb, key: r.Name()})
		of := func(cost int64) driver.Request { return driver.Request{Cost: cost, Bound: r.Horizon(cost)} }
		back := func(cost int64, reply driver.Reply) driver.Request {
			return driver.Request{Cost: -cost, Receipt: reply.Receipt}
		}
		taken := b.batch(r, epoch, of(5), of(4), of(5), of(3), of(5))
		b.batch(r, epoch, back(3, taken[3]))
		b.batch(r, epoch, of(1)) // leaves two
		replies := b.batch(r, epoch, of(3), back(4, taken[1]), of(3), of(2), of(1))
		for i, want := range map[int]int64{2: taken[1].Receipt.Number - 1, 3: taken[3].Receipt.Number, 4: taken[1].Receipt.Number} {
			if got := replies[i].Receipt.Number; got != want {
				t.Errorf("%s: the request after %d others was given number %d instead of %d", r.Name(), i, got, want)
			}
		}
	}
}

// Where the pace changes, what is owed is rounded up, so that a permit whose slot had passed by a microsecond may have it
// ahead again, and a hole may fit that did not.
func TestAHoleThatHadBegunMayFitAgain(t *testing.T) {
	rdb := redistest.Start(t).Client()
	slow := rule(t, algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
	fast := rule(t, algos.TokenBucket{Rate: 1, Per: time.Millisecond, Burst: 3})
	b := newBoth(t, server{rdb: rdb, key: "again"})
	three := driver.Request{Cost: 3, Bound: slow.Horizon(3)}
	b.ask(slow, epoch, 10, slow.Horizon(10))
	hole := b.run(slow, epoch, three).Receipt
	b.ask(slow, epoch, 7, slow.Horizon(7))
	b.cancel(slow, epoch, 3, hole)
	now := int64(epoch + 10*second + 1)
	if reply := b.run(slow, now, three); reply.Receipt.Number != 23 {
		t.Fatalf("a hole of which a part is over was taken: %v", reply)
	}
	if reply := b.run(fast, now, three); reply.Receipt != hole {
		t.Errorf("the hole was not taken: %v", reply)
	}
}

// A busy period that is counted anew has no holes, and counts those that come.
func TestACountThatStartsAnewHasNoHoles(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 999, Per: time.Microsecond, Burst: 1 << 45})
	b := newBoth(t, server{rdb: rdb, key: "anew"})
	now := int64(epoch)
	one := driver.Request{Cost: 1, Bound: r.Horizon(1)}
	other := rule(t, algos.TokenBucket{Rate: 7, Per: time.Second, Burst: 10})
	b.run(other, now, one) // after it, what the start was rounded up by is stored, and the count with it
	now += 10
	leaveAHole := func() algos.Receipt {
		t.Helper()
		left := b.batch(r, now, one, one)[0].Receipt
		if back := b.cancel(r, now, 1, left); back != 1 {
			t.Fatalf("%d came back", back)
		}
		return left
	}
	for range 4 { // then it has had so many that the next call begins to count anew
		now += b.ask(r, now, 1<<45-1, r.Horizon(1)).Reset
	}
	now -= 1 << 30
	first := leaveAHole()
	b.ask(r, now, 10, r.Horizon(10))
	if second := leaveAHole(); second.Period == first.Period {
		t.Fatal("the count went on")
	}
}

// What was given back twice, the second time after a new count had begun within the same microsecond, leaves no hole behind
// the line's end, which would be granted, and once more when the line comes there.
func TestNoHoleLiesBehindTheEndOfTheLine(t *testing.T) {
	r := rule(t, algos.LeakyBucket{Rate: 1, Per: time.Second, Capacity: 100})
	b := newBoth(t, server{rdb: redistest.Start(t).Client(), key: "behind"})
	take := func(cost int64) driver.Request {
		reply := b.ask(r, epoch, cost, r.Horizon(cost))
		return driver.Request{Cost: -cost, Receipt: reply.Receipt}
	}
	all := []driver.Request{take(5), take(20), take(1)}
	for _, back := range slices.Backward(all) {
		b.run(r, epoch, back)
	}
	take(2)
	tail := take(30)
	b.run(r, epoch, all[1]) // in the middle of it now
	if reply := b.run(r, epoch, tail); reply.Wait != 0 {
		t.Errorf("%d permits came back that some of had before", reply.Wait)
	}
	if reply := b.ask(r, epoch, 20, r.Horizon(20)); reply.Receipt.Number != 25 {
		t.Errorf("%+v", reply)
	}
	if reply := b.ask(r, epoch, 20, r.Horizon(20)); reply.Receipt.Number != 52 {
		t.Errorf("%+v", reply)
	}
}
