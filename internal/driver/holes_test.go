package driver_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// lineTail is what a line's state may have after its numbers: see algos/line.lua.
var lineTail = regexp.MustCompile(`^@-?\d+\+\d+,(\d+)<(\d+),((?:\d+-\d+,)*)$`)

// checkHoles checks what a stored line says of its holes.
func checkHoles(t interface{ Fatalf(string, ...any) }, r algos.Rule, state string) {
	if len(state) <= 28 || !strings.HasPrefix(r.Lua(), "-- A line of places") {
		return
	}
	tail := lineTail.FindStringSubmatch(state[28:])
	if tail == nil {
		t.Fatalf("%q is stored", state[28:])
	}
	holes := strings.Split(tail[3], ",")
	holes = holes[:len(holes)-1] // each ends with a comma
	if tail[1] != fmt.Sprint(len(holes)) {
		t.Fatalf("of %d holes it is stored that there are %s", len(holes), tail[1])
	}
	var longest int64
	_, _ = fmt.Sscan(tail[2], &longest)
	for i, hole := range holes {
		var from, to int64
		_, _ = fmt.Sscanf(hole, "%d-%d", &from, &to)
		if to <= from || i > 1 && to-from > longest { // the first may have begun
			t.Fatalf("hole %s, and none is longer than %d", hole, longest)
		}
	}
}

// To look at a thousand holes takes a third of a millisecond. A batch of equal requests looks at each once.
func TestABatchLooksAtAHoleOnce(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, test := range []struct {
		algorithm algos.Algorithm
		looks     string // what its Lua calls to look at a hole
		remembers bool   // the state says what no hole is long enough for
	}{
		{algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 5}, "string.find(", true},
		{algos.LeakyBucket{Rate: 1, Per: time.Second, Capacity: 10_000}, "string.find(", true},
		{algos.SlidingLog{Limit: 5, Window: time.Second}, "string.sub(", false},
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
			all := append(asking(900, 2, 1), asking(50, 3, 1)...)
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

			script, err := driver.NewScript(r)
			if err != nil {
				t.Fatal(err)
			}
			counting := "local looks = 0\nlocal function look(...)\n  looks = looks + 1\n  return " + test.looks + "...)\nend\n"
			counted := redis.NewScript(counting + strings.NewReplacer(test.looks, "look(", "return replies", "return looks").Replace(script.Source))
			looks := func(requests ...driver.Request) int {
				t.Helper()
				args := []any{epoch}
				params, _ := r.Params(epoch)
				for _, n := range params {
					args = append(args, n)
				}
				n, err := counted.Run(t.Context(), rdb, []string{s.key}, driver.AppendArgs(args, requests)...).Int()
				if err != nil {
					t.Fatal(err)
				}
				return n
			}
			if n := looks(asking(40, 3)...); n < 895 || n > 1100 {
				t.Errorf("it looked %d times for 40 that holes behind 895 fit", n)
			}
			if n := looks(asking(256, 4)...); n < 256 || n > 1500 {
				t.Errorf("it looked %d times for 256 that none fits", n)
			}
			if n := looks(asking(1, 4)...); test.remembers && n > 10 {
				t.Errorf("it looked %d times for another", n)
			}
			if n := looks(asking(1, 2)...); n > 10 {
				t.Errorf("it looked %d times for one that the first fits", n)
			}
		})
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
		s, p := server{rdb: rdb, key: r.Name()}, process{r.NewState()}
		both := func(requests ...driver.Request) []driver.Reply {
			t.Helper()
			inGo, inLua := p.run(r, epoch, requests...), s.run(t, r, epoch, requests...)
			if !slices.Equal(inGo, inLua) {
				t.Fatalf("%s: %+v: Go %v, Lua %v", r.Name(), requests, inGo, inLua)
			}
			return inLua
		}
		of := func(cost int64) driver.Request { return driver.Request{Cost: cost, Bound: r.Horizon(cost)} }
		back := func(cost int64, reply driver.Reply) driver.Request {
			return driver.Request{Cost: -cost, Receipt: reply.Receipt}
		}
		taken := both(of(5), of(4), of(5), of(3), of(5))
		both(back(3, taken[3]))
		both(of(1)) // leaves two
		replies := both(of(3), back(4, taken[1]), of(3), of(2), of(1))
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
	s, p := server{rdb: rdb, key: "again"}, process{slow.NewState()}
	both := func(r algos.Rule, now int64, request driver.Request) driver.Reply {
		t.Helper()
		inGo, inLua := p.run(r, now, request)[0], s.run(t, r, now, request)[0]
		if inGo != inLua {
			t.Fatalf("%+v: Go %v, Lua %v", request, inGo, inLua)
		}
		return inLua
	}
	three := driver.Request{Cost: 3, Bound: slow.Horizon(3)}
	both(slow, epoch, driver.Request{Cost: 10, Bound: slow.Horizon(10)})
	hole := both(slow, epoch, three).Receipt
	both(slow, epoch, driver.Request{Cost: 7, Bound: slow.Horizon(7)})
	both(slow, epoch, driver.Request{Cost: -3, Receipt: hole})
	now := int64(epoch + 10*second + 1)
	if reply := both(slow, now, three); reply.Receipt.Number != 23 {
		t.Fatalf("a hole of which a part is over was taken: %v", reply)
	}
	if reply := both(fast, now, three); reply.Receipt != hole {
		t.Errorf("the hole was not taken: %v", reply)
	}
}

// A busy period that is counted anew has no holes, and counts those that come.
func TestACountThatStartsAnewHasNoHoles(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 999, Per: time.Microsecond, Burst: 1 << 45})
	s, p := server{rdb: rdb, key: "anew"}, process{r.NewState()}
	now := int64(epoch)
	both := func(requests ...driver.Request) []driver.Reply {
		t.Helper()
		inGo, inLua := p.run(r, now, requests...), s.run(t, r, now, requests...)
		if !slices.Equal(inGo, inLua) {
			t.Fatalf("%+v: Go %v, Lua %v", requests, inGo, inLua)
		}
		bytes, _ := s.stored()
		checkHoles(t, r, bytes)
		return inLua
	}
	one := driver.Request{Cost: 1, Bound: r.Horizon(1)}
	other := rule(t, algos.TokenBucket{Rate: 7, Per: time.Second, Burst: 10})
	p.run(other, now, one) // after it, what the start was rounded up by is stored, and the count with it
	s.run(t, other, now, one)
	now += 10
	leaveAHole := func() algos.Receipt {
		t.Helper()
		left := both(one, one)[0].Receipt
		if back := both(driver.Request{Cost: -1, Receipt: left})[0].Wait; back != 1 {
			t.Fatalf("%d came back", back)
		}
		return left
	}
	for range 4 { // then it has had so many that the next call begins to count anew
		now += both(driver.Request{Cost: 1<<45 - 1, Bound: r.Horizon(1)})[0].Reset
	}
	now -= 1 << 30
	first := leaveAHole()
	both(driver.Request{Cost: 10, Bound: r.Horizon(10)})
	if second := leaveAHole(); second.Period == first.Period {
		t.Fatal("the count went on")
	}
}

// However many cancel in the middle of a queue, what a call must look through is bounded, and what is beyond drains.
func TestHolesAreBounded(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
	s, p := server{rdb: rdb, key: "holes"}, process{r.NewState()}
	var receipts []driver.Request
	for range 2200 {
		take := driver.Request{Cost: 1, Bound: r.Horizon(1)}
		reply := s.run(t, r, epoch, take)[0]
		p.run(r, epoch, take)
		receipts = append(receipts, driver.Request{Cost: -1, Receipt: reply.Receipt})
	}
	returned := int64(0)
	for i := 1; i < len(receipts)-1; i += 2 {
		inGo, inLua := p.run(r, epoch, receipts[i])[0], s.run(t, r, epoch, receipts[i])[0]
		if inGo != inLua {
			t.Fatalf("cancel %d: Go %v, Lua %v", i, inGo, inLua)
		}
		returned += inLua.Wait
	}
	if returned != 1000 {
		t.Errorf("%d permits came back", returned)
	}
	bytes, _ := s.stored()
	if len(bytes) > 16_000 {
		t.Errorf("%d bytes of state", len(bytes))
	}
	checkHoles(t, r, bytes)
	for i := range int64(1000) { // each of them goes to the next that asks
		if reply := s.run(t, r, epoch, driver.Request{Cost: 1, Bound: r.Horizon(1)})[0]; reply.Wait != (2*i+1)*second {
			t.Fatalf("open place %d: %v", i, reply)
		}
	}
	if reply := s.run(t, r, epoch, driver.Request{Cost: 1, Bound: r.Horizon(1)})[0]; reply.Wait != 2200*second {
		t.Errorf("after the last: %v", reply)
	}
}

// Callers who leave a long queue in any order: Lua looks for their place among the holes by halves, Go from the first on.
func TestManyLeaveALongQueue(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1_000_000})
	for name, ahead := range map[string]int64{
		"whose places have numbers of one length":  1_000_000,
		"whose places have numbers of two lengths": 999_000,
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(3, 4))
			s, p := server{rdb: rdb, key: name}, process{r.NewState()}
			calls := 0
			both := func(request driver.Request) driver.Reply {
				t.Helper()
				inGo, inLua := p.run(r, epoch, request)[0], s.run(t, r, epoch, request)[0]
				if inGo != inLua {
					t.Fatalf("%+v: Go %v, Lua %v", request, inGo, inLua)
				}
				if calls++; calls%20 == 0 {
					bytes, _ := s.stored()
					checkHoles(t, r, bytes)
				}
				return inLua
			}
			both(driver.Request{Cost: ahead})
			var taken []driver.Request // to be given back
			take := func() {
				cost := 1 + random.Int64N(3)
				reply := both(driver.Request{Cost: cost, Bound: r.Horizon(cost)})
				taken = append(taken, driver.Request{Cost: -cost, Receipt: reply.Receipt})
			}
			for range 2200 {
				take()
			}
			for i := 2199; i > 0; i -= 2 { // more than there may be holes
				both(taken[i])
				taken = slices.Delete(taken, i, i+1)
			}
			for len(taken) > 0 {
				i := random.IntN(len(taken))
				both(taken[i])
				both(driver.Request{Cost: 1 + random.Int64N(30), Bound: driver.Ask}) // which fits where neighbours have left
				switch random.IntN(10) {
				case 0:
					continue // and once more, later on
				case 1:
					take()
				}
				taken = slices.Delete(taken, i, i+1)
			}
		})
	}
}
