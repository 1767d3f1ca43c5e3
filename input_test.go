package headgate_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// go-zero #3695, redis-cell #41, golang/go #39984 and others: bad parameters panic, crash Redis, or wait 292 years.
func TestNewRefusesWhatNoBucketCanHold(t *testing.T) {
	year := 365 * 24 * time.Hour
	for name, test := range map[string]struct {
		bucket algos.TokenBucket
		ok     bool
	}{
		"no rate":                        {algos.TokenBucket{Per: time.Second, Burst: 1}, false},
		"a negative rate":                {algos.TokenBucket{Rate: -1, Per: time.Second, Burst: 1}, false},
		"the most negative rate":         {algos.TokenBucket{Rate: math.MinInt, Per: time.Second, Burst: 1}, false},
		"no period":                      {algos.TokenBucket{Rate: 1, Burst: 1}, false},
		"a negative period":              {algos.TokenBucket{Rate: 1, Per: -time.Second, Burst: 1}, false},
		"a nanosecond":                   {algos.TokenBucket{Rate: 1, Per: time.Nanosecond, Burst: 1}, false},
		"a period of one and a half µs":  {algos.TokenBucket{Rate: 1, Per: 1500 * time.Nanosecond, Burst: 1}, false},
		"no burst":                       {algos.TokenBucket{Rate: 1, Per: time.Second}, false},
		"a negative burst":               {algos.TokenBucket{Rate: 1, Per: time.Second, Burst: -1}, false},
		"a burst of 2^31 at 10 in 10 s":  {algos.TokenBucket{Rate: 10, Per: 10 * time.Second, Burst: 1 << 31}, false},
		"a burst of 2^53":                {algos.TokenBucket{Rate: 10, Per: time.Second, Burst: 1 << 53}, false},
		"the largest burst":              {algos.TokenBucket{Rate: 10, Per: time.Second, Burst: math.MaxInt}, false},
		"the largest rate":               {algos.TokenBucket{Rate: math.MaxInt, Per: time.Second, Burst: 1}, false},
		"the longest period":             {algos.TokenBucket{Rate: 1, Per: math.MaxInt64, Burst: 1}, false},
		"1e-10 a second":                 {algos.TokenBucket{Rate: 1, Per: 290 * year, Burst: 1}, false},
		"a billion and one a second":     {algos.TokenBucket{Rate: 1_000_000_001, Per: time.Second, Burst: 1}, false},
		"a burst that fills for a year+": {algos.TokenBucket{Rate: 1, Per: year, Burst: 2}, false},
		"one a year":                     {algos.TokenBucket{Rate: 1, Per: year, Burst: 1}, true},
		"ten million a second":           {algos.TokenBucket{Rate: 10_000_000, Per: time.Second, Burst: 10_000_000}, true},
		"a prime near ten million":       {algos.TokenBucket{Rate: 9_999_991, Per: time.Second, Burst: 100_000}, true},
		"7919 in 30 days":                {algos.TokenBucket{Rate: 7919, Per: 30 * 24 * time.Hour, Burst: 100_000}, true},
		"a burst of 2^31":                {algos.TokenBucket{Rate: 1_000_000, Per: time.Second, Burst: 1 << 31}, true},
		"a period of a microsecond":      {algos.TokenBucket{Rate: 1, Per: time.Microsecond, Burst: 1}, true},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := headgate.New(headgate.Memory(), "k", test.bucket)
			if !test.ok {
				if !errors.Is(err, headgate.ErrInvalid) || !strings.Contains(err.Error(), "TokenBucket") {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := allowN(t, l, 1); !d.Allowed || d.Limit != test.bucket.Burst {
				t.Errorf("%+v", d)
			}
		})
	}
}

func TestNewRefusesWhatIsNotThere(t *testing.T) {
	store := headgate.Memory()
	for name, build := range map[string]func() (*headgate.Limiter, error){
		"no store":              func() (*headgate.Limiter, error) { return headgate.New(nil, "k", slow) },
		"no key":                func() (*headgate.Limiter, error) { return headgate.New(store, "", slow) },
		"no algorithm":          func() (*headgate.Limiter, error) { return headgate.New(store, "k", nil) },
		"an empty name":         func() (*headgate.Limiter, error) { return headgate.New(store, "k", slow, headgate.WithName("")) },
		"an empty prefix":       func() (*headgate.Limiter, error) { return headgate.New(store, "k", slow, headgate.WithPrefix("")) },
		"a prefix of two lines": func() (*headgate.Limiter, error) { return headgate.New(store, "k", slow, headgate.WithPrefix("a\nb")) },
		"a prefix with braces":  func() (*headgate.Limiter, error) { return headgate.New(store, "k", slow, headgate.WithPrefix("{a}")) },
		"no client":             func() (*headgate.Limiter, error) { return headgate.New(headgate.Redis(nil), "k", slow) },
		"a nil client": func() (*headgate.Limiter, error) {
			return headgate.New(headgate.Redis((*redis.Client)(nil)), "k", slow)
		},
		"no option": func() (*headgate.Limiter, error) { return headgate.New(store, "k", slow, nil) },
		"a negative longest wait": func() (*headgate.Limiter, error) {
			return headgate.New(store, "k", slow, headgate.WithMaxWait(-1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if l, err := build(); l != nil || !errors.Is(err, headgate.ErrInvalid) {
				t.Errorf("%v, %v", l, err)
			}
		})
	}
}

// Bad arguments and cancelled contexts reach no server: gkit PR #134 takes a token for a context that has ended.
func TestBadArgumentsMakeNoCall(t *testing.T) {
	server := redistest.Start(t)
	l := newLimiter(t, headgate.Redis(server.Client()), slow)
	allowN(t, l, 1)
	before := server.Calls("evalsha") + server.Calls("eval") + server.Calls("del")
	good := context.Background()
	ended, stop := context.WithCancel(good)
	stop()
	late, stop := context.WithTimeout(good, 0)
	defer stop()
	for name, test := range map[string]struct {
		l    *headgate.Limiter
		ctx  context.Context
		n    int
		want error
	}{
		"n = 0":               {l, good, 0, headgate.ErrInvalid},
		"n = -5":              {l, good, -5, headgate.ErrInvalid},
		"the smallest n":      {l, good, math.MinInt, headgate.ErrInvalid},
		"more than the burst": {l, good, 1001, headgate.ErrNeverAllowed},
		"the largest n":       {l, good, math.MaxInt, headgate.ErrNeverAllowed},
		"cancelled":           {l, ended, 1, context.Canceled},
		"past the deadline":   {l, late, 1, context.DeadlineExceeded},
		"no parts":            {l.For(), good, 1, headgate.ErrInvalid},
		"an empty part":       {l.For("a", ""), good, 1, headgate.ErrInvalid},
		"below an empty part": {l.For("").For("a"), good, 1, headgate.ErrInvalid},
		"not made by New":     {&headgate.Limiter{}, good, 1, headgate.ErrInvalid},
		"nor this one":        {(&headgate.Limiter{}).For("a"), good, 1, headgate.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, allow := test.l.AllowN(test.ctx, test.n)
			_, reserve := test.l.ReserveN(test.ctx, test.n)
			wait := test.l.WaitN(test.ctx, test.n)
			for verb, err := range map[string]error{"AllowN": allow, "ReserveN": reserve, "WaitN": wait} {
				if !errors.Is(err, test.want) {
					t.Errorf("%s: %v", verb, err)
				}
			}
			if test.n == 1 {
				_, peek := test.l.Peek(test.ctx)
				reset := test.l.Reset(test.ctx)
				for verb, err := range map[string]error{"Peek": peek, "Reset": reset} {
					if !errors.Is(err, test.want) {
						t.Errorf("%s: %v", verb, err)
					}
				}
			}
		})
	}
	if _, err := l.Reserve(good, headgate.Within(-1)); !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("Within(-1): %v", err)
	}
	if _, err := l.Reserve(good, nil); !errors.Is(err, headgate.ErrInvalid) {
		t.Errorf("a nil option: %v", err)
	}
	if got := server.Calls("evalsha") + server.Calls("eval") + server.Calls("del"); got != before {
		t.Errorf("%d calls were made", got-before)
	}
	if d, _ := l.Peek(good); d.Remaining != 999 {
		t.Errorf("something was charged: %+v", d)
	}
}

// hostileKeys are what users' keys may hold.
func hostileKeys() []string {
	return []string{
		"{", "}", "{}", "a{b}c", "}{", "{other}", "a/b", "a%2Fb", "%", "%7B", ":", "a:b", "}:tb", "x}:tb{", "\x00", "a\nb",
		"\x7f", "\xff\xfe invalid", "ключ", " ", "KEYS[1]", "redis.call('FLUSHALL')", strings.Repeat("k", 64<<10),
		strings.Repeat("k", 64<<10) + "x", strings.Repeat("{", 300),
	}
}

// shenyu #6514, ratelimit.js #15: ("a", "b:c") and ("a:b", "c") share a counter. Here every list of parts has its own.
func TestDifferentKeysNeverMeet(t *testing.T) {
	inRealTime(t, func(t *testing.T, store headgate.Store) {
		one := algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1}
		var all []*headgate.Limiter
		for _, key := range hostileKeys() {
			l, err := headgate.New(store, key, one)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, l, l.For("x"), l.For("x", "y"), l.For("x/y"), newLimiter(t, store, one).For(key))
		}
		all = append(all, hashTwin(t, store, one)...)
		for _, parts := range [][]string{{"a", "b:c"}, {"a:b", "c"}, {"a", "b", "c"}, {"a", "b/c"}, {"a/b", "c"}, {"a/b/c"}} {
			all = append(all, newLimiter(t, store, one).For(parts...))
		}
		all = append(all, newLimiter(t, store, one), newLimiter(t, store, one, headgate.WithPrefix("other")))
		for i, l := range all {
			if d := allowN(t, l, 1); !d.Allowed {
				t.Errorf("limiter %d shares its count with another one", i)
			}
		}
		if d := allowN(t, newLimiter(t, store, one).For("a").For("b:c"), 1); d.Allowed {
			t.Error("For(a).For(b:c) is another limiter than For(a, b:c)")
		}
	})
}

// hashTwin makes limiters of a long key, which is stored as its hash, and of the short key that comes nearest to it.
func hashTwin(t *testing.T, store headgate.Store, algorithm algos.Algorithm) []*headgate.Limiter {
	t.Helper()
	for i := range 10_000 {
		long := strings.Repeat("v", 250) + fmt.Sprint(i)
		sum := sha256.Sum256([]byte(long))
		if hash := hex.EncodeToString(sum[:]); strings.HasPrefix(hash, "00") {
			a, err := headgate.New(store, long, algorithm)
			if err != nil {
				t.Fatal(err)
			}
			b, err := headgate.New(store, "\x00"+hash[2:], algorithm)
			if err != nil {
				t.Fatal(err)
			}
			return []*headgate.Limiter{a, b}
		}
	}
	t.Fatal("no such hash")
	return nil
}
