package driver_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// work runs one request and counts how often the script called Redis, and how much it was told or had removed.
func (b *both) work(r algos.Rule, now int64, request driver.Request) (reply driver.Reply, calls, elements int64) {
	b.t.Helper()
	script, err := driver.NewScript(r)
	if err != nil {
		b.t.Fatal(err)
	}
	source := `local calls, elements = 0, 0
local function counted(...)
  local answer = redis.call(...)
  calls = calls + 1
  if type(answer) == 'table' then elements = elements + #answer end
  if string.find(..., 'REM') then elements = elements + answer end
  return answer
end
` + strings.NewReplacer("redis.call", "counted", "ttl)", "ttl + 3600000)", "call('TIME')", "{ 0, KEYS[2] }",
		"return replies", "replies[6], replies[7] = calls, elements return replies").Replace(script.Source)
	params, _ := r.Params(now)
	args := []any{""}
	for _, n := range params {
		args = append(args, n)
	}
	requests := []driver.Request{request}
	args = driver.AppendArgs(args, requests)
	n, err := redis.NewScript(source).Run(b.t.Context(), b.s.rdb, []string{b.s.key, fmt.Sprint(now)}, args...).Int64Slice()
	if err != nil {
		b.t.Fatal(err)
	}
	reply = readReplies(b.t, n[:5], r, requests)[0]
	if inGo := b.p.run(r, now, request)[0]; inGo != reply {
		b.t.Fatalf("Go %v, Lua %v", inGo, reply)
	}
	return reply, n[5], n[6]
}

// fill logs 100,000 requests of 1 to 3 permits, within 500 µs.
func (b *both) fill(r algos.Rule) (permits int64) {
	b.p.state = r.NewState()
	for i := range int64(500) {
		var batch []driver.Request
		for j := range int64(200) {
			batch = append(batch, driver.Request{Cost: 1 + j%3})
			permits += 1 + j%3
		}
		b.p.run(r, epoch+i, batch...)
		b.s.run(b.t, r, epoch+i, batch...)
	}
	return permits
}

// A walk over the 100,000 would block the server for tens of milliseconds.
func TestNoCallWalksTheLog(t *testing.T) {
	b, _ := newLog(t, redistest.Start(t).Client())
	r := rule(t, algos.SlidingLog{Limit: 300_000, Window: time.Second})
	permits := b.fill(r)
	var waiting driver.Reply
	for i, request := range []driver.Request{
		{Cost: 300_000},                           // refused until all have expired
		{Cost: 300_000 - permits/2},               // until half of them have
		{Cost: 300_001 - permits, Bound: 1 << 40}, // waits for the first
		{Cost: 150_000, Bound: 1 << 40},           // for many more
		{Cost: 1, Bound: 1 << 40},
		{Cost: -150_000}, // the one before
		{Cost: 70_000, Bound: 1 << 40},
		{Cost: 1, Bound: driver.Ask},
	} {
		if request.Cost < 0 {
			request.Receipt = waiting.Receipt
		}
		reply, calls, elements := b.work(r, epoch+600, request)
		if calls > 60 || elements > 100 {
			t.Errorf("request %d: %d calls, %d elements", i, calls, elements)
		}
		if request.Cost == 150_000 {
			waiting = reply
		}
	}
	counted := rule(t, algos.SlidingLog{Limit: 150_000, Window: time.Second, CountDenied: true})
	for range 3 { // three searches: before it counts, for what it makes irrelevant, and for the wait
		if _, calls, elements := b.work(counted, epoch+600, driver.Request{Cost: 100_000}); calls > 70 || elements > 300 {
			t.Errorf("a refusal that counts: %d calls, %d elements", calls, elements)
		}
	}
}

func TestWhatHasExpiredIsClearedOverManyCalls(t *testing.T) {
	b, _ := newLog(t, redistest.Start(t).Client())
	r := rule(t, algos.SlidingLog{Limit: 300_000, Window: time.Second})
	b.fill(r)
	b.ask(r, epoch+second/2, 1, 0)
	now := int64(epoch + second + 1000) // all but the last have expired
	before := b.entries()
	for i := range 520 {
		now += 1000
		_, calls, elements := b.work(r, now-now%1000, driver.Request{Cost: 1})
		after := b.entries()
		if calls > 15 || elements > 250 || i < 490 && before-after < 100 {
			t.Fatalf("call %d: %d calls, %d elements, %d entries, then %d", i, calls, elements, before, after)
		}
		before = after
	}
	if before > 522 {
		t.Errorf("%d entries are left", before)
	}
}

// A log of which nothing counts any more is dropped in one piece, and by UNLINK: DEL would block the server.
func TestALogOfWhichNothingCountsIsUnlinked(t *testing.T) {
	server := redistest.Start(t)
	b, _ := newLog(t, server.Client())
	r := rule(t, algos.SlidingLog{Limit: 300_000, Window: time.Second})
	b.fill(r)
	if _, calls, elements := b.work(r, epoch+2*second, driver.Request{Cost: 1}); calls > 15 || elements > 20 {
		t.Errorf("%d calls, %d elements", calls, elements)
	}
	if n := b.entries(); n != 1 || server.Calls("unlink") != 1 || server.Calls("del") != 0 {
		t.Errorf("%d entries, %d × UNLINK", n, server.Calls("unlink"))
	}
}

// However many cancel in the middle of a queue, what a call must look through is bounded, and what is beyond drains.
func TestHolesOfTheLogAreBounded(t *testing.T) {
	b, _ := newLog(t, redistest.Start(t).Client())
	r := rule(t, algos.SlidingLog{Limit: 1, Window: time.Second})
	b.p.state = r.NewState()
	var receipts []algos.Receipt
	for range 22 {
		batch := slices.Repeat([]driver.Request{{Cost: 1, Bound: r.Horizon(1)}}, 100)
		b.p.run(r, epoch, batch...)
		for _, reply := range b.s.run(t, r, epoch, batch...) {
			receipts = append(receipts, reply.Receipt)
		}
	}
	returned := int64(0)
	for i := 1; i < len(receipts)-1; i += 2 {
		returned += b.cancel(r, epoch, 1, receipts[i])
	}
	if returned != 1000 {
		t.Errorf("%d permits came back", returned)
	}
	for i := range int64(900) { // each of them goes to the next that asks
		if reply := b.ask(r, epoch, 1, r.Horizon(1)); reply.Wait != (2*i+1)*second {
			t.Fatalf("open place %d: %v", i, reply)
		}
	}
	if n := b.s.rdb.ZCount(t.Context(), b.s.key, "-inf", "(0").Val(); n != 100 {
		t.Errorf("%d holes are left", n)
	}
	// The others pass, and are forgotten.
	if b.ask(r, epoch+2195*second, 1, r.Horizon(1)); b.s.rdb.ZCount(t.Context(), b.s.key, "-inf", "(0").Val() != 0 {
		t.Error("holes that have passed are kept")
	}
}

// A run of cancelled places that has become the tail is cut off in one piece.
func TestTheTailIsCutOffInOnePiece(t *testing.T) {
	b, _ := newLog(t, redistest.Start(t).Client())
	r := rule(t, algos.SlidingLog{Limit: 1, Window: time.Second})
	var receipts []algos.Receipt
	for range 900 {
		receipts = append(receipts, b.ask(r, epoch, 1, r.Horizon(1)).Receipt)
	}
	for _, receipt := range receipts[1:899] {
		b.cancel(r, epoch, 1, receipt)
	}
	reply, calls, _ := b.work(r, epoch, driver.Request{Cost: -1, Receipt: receipts[899]})
	if reply.Wait != 1 || reply.Reset != second || calls > 20 || b.entries() != 1 {
		t.Errorf("%+v, %d calls, %d entries", reply, calls, b.entries())
	}
}

// The clock of a server that took over is an hour behind: what is owed stays, and not an hour.
func TestTheLogOutlivesAClockThatIsSetBack(t *testing.T) {
	b, l := newLog(t, redistest.Start(t).Client())
	r := rule(t, l)
	b.ask(r, epoch, 4, 0)
	b.ask(r, epoch+2*second, 6, 0)
	waiting := b.ask(r, epoch+2*second, 1, r.Horizon(1))
	now := int64(epoch - 3600*second)
	if reply := b.ask(r, now, 4, 0); reply.Wait != -10*second { // when the 6 have expired too: one waits for the 4
		t.Errorf("after the step: %+v", reply)
	}
	before, _ := b.s.stored()
	b.ask(r, now+1, 4, 0)
	if after, _ := b.s.stored(); before != after {
		t.Error("the denial after the one that put the clock right wrote")
	}
	if n := b.cancel(r, now+second, 1, waiting.Receipt); n != 1 {
		t.Errorf("%d permits came back", n)
	}
	if reply := b.ask(r, now+8*second, 4, 0); reply.Wait != 0 || reply.Reset != 10*second {
		t.Errorf("when the 4 have expired: %+v", reply)
	}
	if reply := b.ask(r, now+3600*second, 1, 0); reply.Wait != 0 || reply.Remaining != 9 {
		t.Errorf("an hour later: %+v", reply)
	}
}

// Totals begin anew after 2^52 permits, in the middle of a queue for instance: nobody notices.
func TestTotalsBeginAnew(t *testing.T) {
	b, _ := newLog(t, redistest.Start(t).Client())
	r := rule(t, algos.SlidingLog{Limit: 1 << 45, Window: time.Millisecond})
	now, granted := int64(epoch), int64(0)
	last := driver.Request{Cost: -1}
	for i := int64(0); granted < 1<<53+1<<51; i++ {
		cost := int64(1<<45) / (1 + i%3)
		reply := b.ask(r, now, cost, r.Horizon(cost))
		if reply.Wait < 0 {
			now -= reply.Wait
			continue
		}
		granted += cost
		if i%7 == 3 { // in the middle
			b.run(r, now, last)
		}
		last = driver.Request{Cost: -cost, Receipt: reply.Receipt}
	}
}

func TestTheLogIsExactNearTheEndOfExactNumbers(t *testing.T) {
	b, _ := newLog(t, redistest.Start(t).Client())
	r := rule(t, algos.SlidingLog{Limit: 2, Window: 10 * time.Microsecond})
	for i := range int64(1000) {
		want := int64(0)
		if i%10 > 1 {
			want = i%10 - 10
		}
		if reply := b.ask(r, 1<<53-2000+i, 1, 0); reply.Wait != want {
			t.Fatalf("microsecond %d: %+v; want %d", i, reply, want)
		}
	}
	if text, _ := b.s.stored(); strings.Contains(strings.ReplaceAll(text, "e+15\n", "\n"), "e+") {
		t.Errorf("%s was stored", text)
	}
}
