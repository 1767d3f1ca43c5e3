package driver_test

import (
	"testing"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

const second = 1_000_000

// allow asks for one permit now.
func allow(s server, t *testing.T, r algos.Rule, now int64) bool {
	return s.run(t, r, now, driver.Request{Cost: 1})[0].Wait == 0
}

// Clients whose clocks disagree, by ClientClock: golang/go #56287 and #71360, spring-cloud-gateway PR #1688, and the
// row of x/time/rate's TestLimiterJumpBackwards in which it mints a permit.
func TestAClientWhoseClockIsBehindMintsNothing(t *testing.T) {
	rdb := redistest.Start(t).Client()

	t.Run("alternating between a stale and a good clock admits one", func(t *testing.T) {
		s := server{rdb: rdb, key: "a", clientClock: true}
		r := rule(t, algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 10})
		s.run(t, r, epoch+second, driver.Request{Cost: 9})
		admitted := 0
		for range 100 {
			for _, now := range []int64{epoch, epoch + second} {
				if allow(s, t, r, now) {
					admitted++
				}
			}
		}
		if admitted != 1 {
			t.Errorf("%d admitted; one permit was left", admitted)
		}
	})

	t.Run("one slow host admits nobody twice", func(t *testing.T) {
		s := server{rdb: rdb, key: "b", clientClock: true}
		r := rule(t, algos.TokenBucket{Rate: 2, Per: time.Second, Burst: 4})
		for i, want := range []bool{true, true, true, true, false, false, false, false, false, false, false} {
			now := int64(epoch)
			if i == 5 {
				now -= 10 * second
			}
			if got := allow(s, t, r, now); got != want {
				t.Errorf("call %d: %v", i, got)
			}
		}
	})

	t.Run("jumping back and forth", func(t *testing.T) {
		s := server{rdb: rdb, key: "c", clientClock: true}
		r := rule(t, algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 3})
		for i, row := range []struct {
			at   int64 // tenths of a second
			want bool
		}{
			{1, true}, {0, true}, {0, true}, {0, false}, {0, false},
			{1, false}, // x/time/rate admits here
			{1, false}, {2, true}, {2, false}, {2, false},
		} {
			if got := allow(s, t, r, epoch+row.at*second/10); got != row.want {
				t.Errorf("call %d, at %d: %v", i, row.at, got)
			}
		}
	})
}

// A failover to a server whose clock is an hour behind costs what is owed, and not an hour.
func TestAServerClockSetBackByAnHourCostsAtMostTheDebt(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 5})
	s := server{rdb: rdb, key: "back"}
	p := process{r.NewState()}
	both := func(now int64, cost, bound int64) driver.Reply {
		t.Helper()
		request := driver.Request{Cost: cost, Bound: bound}
		inGo, inLua := p.run(r, now, request)[0], s.run(t, r, now, request)[0]
		if inGo != inLua {
			t.Fatalf("Go %v, Lua %v", inGo, inLua)
		}
		return inLua
	}
	both(epoch, 5, 0)
	waiting := both(epoch, 2, second) // 200 ms of debt beyond the burst
	now := int64(epoch - 3600*second)
	if got := both(now, 5, 0); got.Wait != -700_000 {
		t.Errorf("after the step: %+v; want a retry-after of 700 ms", got)
	}
	before, _ := s.stored()
	both(now+1, 5, 0)
	if after, _ := s.stored(); before != after {
		t.Error("the denial after the one that put the clock right wrote")
	}
	// What was reserved before the step can be cancelled after it.
	back := driver.Request{Cost: -2, Receipt: waiting.Receipt}
	if got := s.run(t, r, now, back)[0]; got.Wait != 2 {
		t.Errorf("%d permits came back", got.Wait)
	}
	p.run(r, now, back)
	if got := both(now+500_000, 5, 0); got.Wait != 0 {
		t.Errorf("half a second later: %+v", got)
	}
	// Forward by an hour: one burst, and not an hour's worth.
	if got := both(now+3600*second, 1, 0); got.Remaining != 4 {
		t.Errorf("an hour later: %+v", got)
	}
}

// x/time/rate's TestReserveJumpBack and TestReserveJumpBackCancel, by clients whose clocks disagree. There a caller who
// is behind takes the limiter back with them, and each later slot is a tick sooner than what was granted allows; here a
// slot is a tick later than in those tables, and the cancelled one goes to the next that fits.
func TestReservingByAClockThatIsBehind(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 2})
	const tick = second / 10
	type row struct{ at, n, bound, wait int64 } // in ticks; the wait from the furthest clock so far, -1 if refused
	run := func(t *testing.T, s server, rows []row) (replies []driver.Reply) {
		t.Helper()
		for i, row := range rows {
			reply := s.run(t, r, epoch+row.at*tick, driver.Request{Cost: row.n, Bound: row.bound * tick})[0]
			if want := row.wait * tick; row.wait >= 0 && reply.Wait != want || row.wait < 0 && reply.Wait >= 0 {
				t.Errorf("row %d: waits %d µs", i, reply.Wait)
			}
			replies = append(replies, reply)
		}
		return replies
	}
	t.Run("reserving", func(t *testing.T) {
		run(t, server{rdb: rdb, key: "jump", clientClock: true}, []row{
			{1, 2, 99, 0}, {0, 1, 99, 1}, {2, 2, 99, 2}, {2, 1, 99, 3}, {0, 2, 1, -1}, {2, 1, 99, 4},
		})
	})
	t.Run("cancelling", func(t *testing.T) {
		s := server{rdb: rdb, key: "jump and cancel", clientClock: true}
		replies := run(t, s, []row{{1, 2, 99, 0}, {1, 2, 99, 2}, {1, 1, 99, 3}})
		s.run(t, r, epoch, driver.Request{Cost: -2, Receipt: replies[1].Receipt})
		run(t, s, []row{{1, 2, 99, 2}})
	})
}
