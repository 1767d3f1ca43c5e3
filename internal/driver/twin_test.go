package driver_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
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

// server runs the script at whatever instant the test says, as the server's clock or as a client's. The test's clock is
// not Redis's, so an hour is added to each TTL, lest keys vanish in the middle.
type server struct {
	rdb         *redis.Client
	key         string
	clientClock bool
	off         int64 // how wrong this machine's clock is, for parameters that are dates
	guarded     bool  // as a shared limiter's, whose terms are stored
}

func (s server) run(t rapid.TB, rule algos.Rule, now int64, requests ...driver.Request) []driver.Reply {
	keys, clock := []string{s.key}, any(now)
	if s.guarded {
		keys = append(keys, "terms")
		s.rdb.Set(context.Background(), "terms", "the terms", 0)
	}
	if !s.clientClock {
		keys, clock = append(keys, fmt.Sprint(now)), ""
	}
	params, _ := rule.Params(now + s.off)
	n := s.send(t, rule, keys, clock, params, requests)
	if len(n) == 1 && len(requests) > 0 { // dates that do not cover the server's: it says which do, and did nothing
		params, _ = rule.Params(n[0])
		n = s.send(t, rule, keys, clock, params, requests)
	}
	return readReplies(t, n, rule, requests)
}

func readReplies(t interface{ Fatalf(string, ...any) }, n []int64, rule algos.Rule, requests []driver.Request) (replies []driver.Reply) {
	read, ok := driver.ReadReplies(n, rule, requests)
	if !ok {
		t.Fatalf("%d integers answer %d requests", len(n), len(requests))
	}
	for i := range requests {
		replies = append(replies, read.At(i))
	}
	return replies
}

func (s server) send(t rapid.TB, rule algos.Rule, keys []string, clock any, params []int64, requests []driver.Request) []int64 {
	args := []any{clock}
	for _, n := range params {
		args = append(args, n)
	}
	args = driver.AppendArgs(args, requests)
	if s.guarded {
		args = append(args, "the terms")
	}
	n, err := s.script(t, rule).Run(context.Background(), s.rdb, keys, args...).Int64Slice()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// scripts are those that script has made so far, by the Lua of their rules.
var scripts sync.Map

// script is the rule's, with the clock and the TTLs of tests.
func (s server) script(t rapid.TB, rule algos.Rule) *redis.Script {
	type kind struct {
		lua                  string
		clientClock, guarded bool
	}
	made, ok := scripts.Load(kind{rule.Lua(), s.clientClock, s.guarded})
	if !ok {
		script, err := driver.NewScript(rule)
		if err != nil {
			t.Fatal(err)
		}
		if s.guarded {
			script = script.Guarded()
		}
		source := strings.ReplaceAll(script.Source, "ttl)", "ttl + 3600000)")
		if !s.clientClock {
			source = strings.Replace(source, "call('TIME')", "{ 0, KEYS[#KEYS] }", 1)
		}
		made, _ = scripts.LoadOrStore(kind{rule.Lua(), s.clientClock, s.guarded}, redis.NewScript(source))
	}
	return made.(*redis.Script)
}

// stored is what the server keeps under the key, and until when: a denial must not change a byte of it.
func (s server) stored() (string, time.Duration) {
	ctx := context.Background()
	var text string
	switch kind := s.rdb.Type(ctx, s.key).Val(); kind {
	case "none":
	case "string":
		text = s.rdb.Get(ctx, s.key).Val()
	case "zset":
		for _, z := range s.rdb.ZRangeWithScores(ctx, s.key, 0, -1).Val() {
			text += fmt.Sprintf("%q at %v\n", z.Member, z.Score)
		}
	default:
		text = kind + s.rdb.Dump(ctx, s.key).Val()
	}
	return text, redistest.PExpireTime(ctx, s.rdb, s.key).Val()
}

// The Lua and the Go are written from one description by one hand; each is the other's check, on every field of every
// reply, under changes of parameters, jumps of the clock and all the rest.
func TestLuaAndGoGiveTheSameAnswers(t *testing.T) {
	rdb := redistest.Start(t).Client()
	run := 0
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			checkN(t, twinChecks, func(t *rapid.T) {
				run++
				twins(t, s, server{rdb: rdb, key: fmt.Sprintf("twin:%d", run), guarded: run%2 == 0}, true)
			})
		})
	}
}

// miniredis runs another Lua. Its TTLs are relative, so what concerns them is for the real server.
func TestLuaAndGoGiveTheSameAnswersOnMiniredis(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer rdb.Close()
	run := 0
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			checkN(t, twinChecks/3, func(t *rapid.T) {
				run++
				twins(t, s, server{rdb: rdb, key: fmt.Sprintf("twin:%d", run), guarded: run%2 == 0}, false)
			})
		})
	}
}

const twinChecks = 60

func twins(t *rapid.T, of subject, s server, expires bool) {
	var kinds []*trial
	for range rapid.IntRange(1, 3).Draw(t, "kinds") {
		kinds = append(kinds, of.trial(t))
	}
	s.clientClock = rapid.IntRange(0, 3).Draw(t, "client's clock") == 0
	s.off = rapid.SampledFrom([]int64{0, 0, -hour, 800 * hour, -20_000 * hour}).Draw(t, "off")
	p := process{state: kinds[0].rule.NewState()}
	now := rapid.SampledFrom([]int64{epoch, 1, 1 << 40, 1<<53 - 1<<46}).Draw(t, "epoch")
	saved := now
	var receipts []driver.Request
	var last *trial
	for range rapid.IntRange(1, 25).Draw(t, "calls") {
		x := kinds[rapid.IntRange(0, len(kinds)-1).Draw(t, "kind")]
		back := rapid.IntRange(0, 11).Draw(t, "clock") == 0 && now > epoch
		if back {
			now -= x.pause()
		} else {
			now += x.pause()
		}
		if expires && len(kinds) == 1 && rapid.IntRange(0, 11).Draw(t, "persist") == 11 {
			s.rdb.Persist(context.Background(), s.key)
		}
		requests, left := x.requests(receipts, rapid.SampledFrom([]int{1, 1, 4, 40}).Draw(t, "most"))
		receipts = left
		bytes, until := s.stored()
		instant := now
		if s.clientClock && bytes != "" {
			instant = max(now, saved) // a client that is behind is merely late
		}
		inGo, wrote := p.decide(x.rule, instant, requests...)
		inLua := s.run(t, x.rule, now, requests...)
		if !slices.Equal(inGo, inLua) {
			t.Fatalf("%+v asked %v at %d:\nGo  %v\nLua %v", x.algorithm, requests, now, inGo, inLua)
		}
		charged := false
		for i, request := range requests {
			if request.Cost < 0 || inLua[i].Wait >= 0 || x.countsRefusals && request.Bound != driver.Ask {
				charged = true
			}
			if request.Cost > 0 && inLua[i].Wait >= 0 {
				receipts = append(receipts, driver.Request{Cost: -request.Cost, Receipt: inLua[i].Receipt})
			}
		}
		if wrote && !charged && !back && x == last {
			t.Fatal("a denial wrote")
		}
		bytesAfter, untilAfter := s.stored()
		checkHoles(t, x.rule, s)
		healed := until == -1
		if healed && bytes != bytesAfter && !wrote { // the Lua saved, to heal the TTL
			p.state.Load(x.rule, instant)
			p.state.Save()
			wrote = true
		}
		if wrote {
			saved = instant
		}
		longer := x != last && untilAfter > until // other parameters may owe the same for longer
		if !wrote && !healed && (bytes != bytesAfter || expires && until != untilAfter && !longer) {
			t.Fatalf("only the Lua wrote: %x until %v, then %x until %v", bytes, until, bytesAfter, untilAfter)
		}
		last = x
		if expires && bytesAfter != "" {
			ttl := untilAfter - time.Duration(time.Now().UnixMilli())*time.Millisecond - time.Hour
			reset := time.Duration(inLua[len(inLua)-1].Reset) * time.Microsecond
			// A second either way for a slow machine; the rounding is tested where the clock is Redis's own.
			if (wrote || healed) && (ttl < reset-time.Second || ttl > reset+time.Second) {
				t.Fatalf("TTL %v for a limiter that is as new after %v", ttl, reset)
			}
		}
	}
}
