package driver_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check runs a property as often as it takes to find what breaks it once in a thousand histories; -rapid.checks may
// ask for more.
func check(t *testing.T, property func(t *rapid.T)) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	if asked := checks.Value.String(); asked == checks.DefValue {
		_ = flag.Set("rapid.checks", "3000")
		defer func() { _ = flag.Set("rapid.checks", asked) }()
	}
	rapid.Check(t, property)
}

// server runs the script at whatever instant the test says, as the server's clock or as a client's. The test's clock is
// not Redis's, so an hour is added to each TTL, lest keys vanish in the middle.
type server struct {
	rdb         *redis.Client
	key         string
	clientClock bool
}

func (s server) run(t rapid.TB, rule algos.Rule, now int64, requests ...driver.Request) []driver.Reply {
	script, err := driver.NewScript(rule)
	if err != nil {
		t.Fatal(err)
	}
	source := strings.Replace(script.Source, "'PX', ttl)", "'PX', ttl + 3600000)", 1)
	keys, args := []string{s.key}, []any{now}
	if !s.clientClock {
		source = strings.Replace(source, "call('TIME')", "{ 0, KEYS[2] }", 1)
		keys, args = append(keys, fmt.Sprint(now)), []any{""}
	}
	params, _ := rule.Params(now)
	for _, n := range params {
		args = append(args, n)
	}
	for _, r := range requests {
		if r.Cost > 0 {
			args = append(args, r.Cost, r.Bound)
		} else {
			args = append(args, r.Cost, r.Receipt.Period, r.Receipt.Number)
		}
	}
	n, err := redis.NewScript(source).Run(context.Background(), s.rdb, keys, args...).Int64Slice()
	if err != nil {
		t.Fatal(err)
	}
	var replies []driver.Reply
	for chunk := range slices.Chunk(n, driver.Integers) {
		replies = append(replies, driver.ParseReply(chunk))
	}
	return replies
}

// stored is what the server keeps under the key, and until when: a denial must not change a byte of it.
func (s server) stored() (string, time.Duration) {
	ctx := context.Background()
	return s.rdb.Get(ctx, s.key).Val(), s.rdb.PExpireTime(ctx, s.key).Val()
}

// The Lua and the Go are written from one description by one hand; each is the other's check, on every field of every
// reply, under changes of parameters, jumps of the clock and all the rest.
func TestLuaAndGoGiveTheSameAnswers(t *testing.T) {
	rdb := redistest.Start(t).Client()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		twins(t, server{rdb: rdb, key: fmt.Sprintf("twin:%d", run)}, true)
	})
}

// miniredis runs another Lua. Its TTLs are relative, so what concerns them is for the real server.
func TestLuaAndGoGiveTheSameAnswersOnMiniredis(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		twins(t, server{rdb: rdb, key: fmt.Sprintf("twin:%d", run)}, false)
	})
}

func twins(t *rapid.T, s server, expires bool) {
	buckets := rapid.SliceOfN(buckets(), 1, 3).Draw(t, "buckets")
	p := process{}
	now := rapid.SampledFrom([]int64{epoch, 1, 1 << 40, 1<<53 - 1<<46}).Draw(t, "epoch")
	var receipts []driver.Request
	var pace []int64 // that the state is counted by
	for range rapid.IntRange(1, 25).Draw(t, "calls") {
		b := rapid.SampledFrom(buckets).Draw(t, "bucket")
		r := rule(t, b)
		if p.state == nil {
			p.state = r.NewState()
		}
		back := rapid.IntRange(0, 11).Draw(t, "clock") == 0 && now > epoch
		if back {
			now -= steps(b).Draw(t, "back")
		} else {
			now += steps(b).Draw(t, "pause")
		}
		var requests []driver.Request
		for range rapid.SampledFrom([]int{1, 1, 1, 4}).Draw(t, "size") {
			if len(receipts) > 0 && rapid.IntRange(0, 2).Draw(t, "give back") == 0 {
				i := rapid.IntRange(0, len(receipts)-1).Draw(t, "which")
				requests = append(requests, receipts[i])
				if rapid.IntRange(0, 9).Draw(t, "again later") > 0 {
					receipts = slices.Delete(receipts, i, i+1)
				}
				continue
			}
			requests = append(requests, driver.Request{
				Cost:  int64(rapid.IntRange(1, b.Burst).Draw(t, "cost")),
				Bound: rapid.SampledFrom([]int64{0, driver.Ask, steps(b).Draw(t, "bound"), r.Horizon(1)}).Draw(t, "bound"),
			})
		}
		bytes, until := s.stored()
		params, _ := r.Params(now)
		repaced := !slices.Equal(pace, params[:2])
		pace = params[:2]
		inGo := p.run(r, now, requests...)
		inLua := s.run(t, r, now, requests...)
		if !slices.Equal(inGo, inLua) {
			t.Fatalf("%+v asked %v at %d:\nGo  %v\nLua %v", b, requests, now, inGo, inLua)
		}
		charged := false
		for i, request := range requests {
			if request.Cost < 0 || inLua[i].Wait >= 0 {
				charged = true
			}
			if request.Cost > 0 && inLua[i].Wait >= 0 {
				receipts = append(receipts, driver.Request{Cost: -request.Cost, Receipt: inLua[i].Receipt})
			}
		}
		bytesAfter, untilAfter := s.stored()
		if !charged && !back && !repaced && (bytes != bytesAfter || expires && until != untilAfter) {
			t.Fatalf("a denial wrote: %x until %v, then %x until %v", bytes, until, bytesAfter, untilAfter)
		}
		if expires && bytesAfter != "" {
			ttl := untilAfter - time.Duration(time.Now().UnixMilli())*time.Millisecond - time.Hour
			reset := time.Duration(inLua[len(inLua)-1].Reset) * time.Microsecond
			// A second either way for a slow machine; the rounding is tested where the clock is Redis's own.
			if charged && (ttl < reset-time.Second || ttl > reset+time.Second) {
				t.Fatalf("TTL %v for a limiter that is as new after %v", ttl, reset)
			}
		}
	}
}
