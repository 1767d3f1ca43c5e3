package driver_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

// By the clock of a real server, with the script as users run it: a TTL for all that is owed, and not much more, however
// the limiter was reached; and one that somebody removed comes back with the next call.
func TestTheTTLIsThereAndSufficientAndBounded(t *testing.T) {
	rdb := redistest.Start(t).Client()
	key := 0
	for _, s := range subjects {
		t.Run(s.name, func(t *testing.T) {
			checkN(t, 10*luaChecks, func(t *rapid.T) {
				x := s.trial(t)
				key++
				var receipts []driver.Request
				var late time.Duration
				for range rapid.IntRange(1, 10).Draw(t, "calls") {
					requests, left := x.requests(receipts, 2)
					receipts = left
					if rapid.IntRange(0, 4).Draw(t, "persist") == 4 {
						rdb.Persist(context.Background(), fmt.Sprint(key))
					}
					for i, reply := range x.onTheRealClock(rdb, fmt.Sprint(key), requests, &late) {
						if requests[i].Cost > 0 && reply.Wait >= 0 {
							receipts = append(receipts, driver.Request{Cost: -requests[i].Cost, Receipt: reply.Receipt})
						}
					}
				}
			})
		})
	}
}

// onTheRealClock holds a call to its TTL. Redis counts a TTL from the command that sets it, a call's whole time after its
// script read the clock at worst: late is the longest call so far, since the TTL may be an earlier call's.
func (x *trial) onTheRealClock(rdb *redis.Client, key string, requests []driver.Request, late *time.Duration) (replies []driver.Reply) {
	ctx := context.Background()
	script, err := driver.NewScript(x.rule)
	if err != nil {
		x.Fatal(err)
	}
	params, _ := x.rule.Params(rdb.Time(ctx).Val().UnixMicro())
	args := []any{""}
	for _, n := range params {
		args = append(args, n)
	}
	tx := rdb.TxPipeline()
	before := tx.Time(ctx)
	answer := tx.Eval(ctx, script.Source, []string{key}, driver.AppendArgs(args, requests)...)
	expires := redistest.PExpireTime(ctx, tx, key)
	after := tx.Time(ctx)
	if _, err := tx.Exec(ctx); err != nil {
		x.Fatal(err)
	}
	n, err := answer.Int64Slice()
	if err != nil {
		x.Fatal(err)
	}
	replies = readReplies(x.T, n, x.rule, requests)
	reset := replies[len(replies)-1].Reset
	*late = max(*late, after.Val().Sub(before.Val()))
	switch until := expires.Val().Microseconds(); {
	case expires.Val() == -2 && after.Val().UnixMicro() >= before.Val().UnixMicro()+reset: // no key, as it is as new by now
	case expires.Val() < 0:
		x.Fatalf("%v: TTL %d, and as new in %d µs", requests, expires.Val(), reset)
	case reset > 0 && until < before.Val().UnixMicro()+reset:
		x.Fatalf("%v: the key expires %d µs too early", requests, before.Val().UnixMicro()+reset-until)
	case until > after.Val().UnixMicro()+reset+2000+late.Microseconds():
		x.Fatalf("%v: the key expires %d µs after it is as new", requests, until-after.Val().UnixMicro()-reset)
	}
	return replies
}

// As users see it: limiters of different algorithms for one user do not charge each other.
func TestTwoLimitersOnOneKeyDoNotMeet(t *testing.T) {
	rdb := redistest.Start(t).Client()
	ctx := t.Context()
	for _, one := range subjects {
		for _, other := range subjects {
			if one.rulesName(t) == other.rulesName(t) {
				continue
			}
			rdb.FlushDB(ctx)
			charged, spared := one.onKey(t, rdb), other.onKey(t, rdb)
			asNew, err := spared.Peek(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if d, err := charged.AllowN(ctx, min(asNew.Limit, 10)); err != nil || !d.Allowed {
				t.Fatalf("%s: %+v, %v", one.name, d, err)
			}
			if d, err := spared.Peek(ctx); err != nil || d != asNew {
				t.Errorf("%s beside %s: %+v, %v; alone %+v", other.name, one.name, d, err, asNew)
			}
		}
	}
}

func TestIdleKeysVanish(t *testing.T) {
	rdb := redistest.Start(t).Client()
	ctx := t.Context()
	for _, s := range subjects {
		if s.brief == nil {
			continue // too long to wait for; that it has a TTL is tested above
		}
		l := s.onKey(t, rdb)
		for range 3 {
			if _, err := l.Reserve(ctx, headgate.Within(time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		if d, err := l.Peek(ctx); err != nil || d.ResetAfter <= 0 || d.ResetAfter > time.Second {
			t.Errorf("%s: %+v, %v", s.name, d, err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		keys := rdb.Keys(ctx, "*").Val()
		if len(keys) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%q are still there", keys)
		}
	}
}

func (s subject) rulesName(t *testing.T) string { return rule(t, s.brief).Name() }

// onKey is a limiter for one and the same user.
func (s subject) onKey(t *testing.T, rdb *redis.Client) *headgate.Limiter {
	t.Helper()
	a := s.brief
	if a == nil {
		a = s.draw.Example(1)
	}
	l, err := headgate.New(headgate.Redis(rdb), "user", a)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
