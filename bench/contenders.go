package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// All contenders share one client, so its options and its connections are the same for them.
type client = *redis.Client

// userKey is a user's key. All are 20 bytes long, as a phone number or an identifier might be. Each contender adds its own
// prefix.
const userKey = "user:123456789012345"

// user is the key of another user.
func user(i int) string { return fmt.Sprintf("user:%015d", i) }

// A limit is the same for all contenders of a row.
type limit struct {
	rate  int
	per   time.Duration
	burst int
}

// The limits of the rows. A burst that no run uses up makes every answer Allowed, in one busy period; a burst of one,
// which the first call takes for longer than a run, makes all others Denied. At an uneven rate the time of a permit is
// no whole number of microseconds, which takes a longer way in Headgate. At a slow rate the keys of many users stay.
var (
	allowed       = limit{1000, time.Second, 1_000_000_000}
	lasting       = limit{1, 10 * time.Minute, 50_000}
	refused       = limit{1, time.Hour, 1}
	allowedUneven = limit{7, time.Second, 10_000_000}
	refusedUneven = limit{7, time.Hour, 1}
)

// A contender is a limiter in one of its modes.
type contender struct {
	name string
	mode string // how it is used, where there is more than one way
	open func(rdb client, l limit) (keyed, error)

	lone bool // it is compared where one caller asks, and not in crowds
}

func (c contender) String() string {
	if c.mode == "" {
		return c.name
	}
	return c.name + ", " + c.mode
}

// A keyed limiter gives the limiter of a key.
type keyed func(key string) call

// A call is one Allow. It reports whether it was allowed.
type call func(context.Context) (bool, error)

var (
	// errNoSuchLimit keeps a contender out of the rows of a limit that it does not know.
	errNoSuchLimit = errors.New("no such limit")
	// errGaveUp is the error of a contender that lost too many races for its key. The rows say how often that was.
	errGaveUp = errors.New("gave up")
)

// contenders are all that are measured over Redis, peers first. Adding one is adding it here; a bar for it goes to
// bars.go.
func contenders() []contender {
	return append(peers(), []contender{
		{name: headgateName, open: func(rdb client, l limit) (keyed, error) { return headgateKeyed(headgate.Redis(rdb), l) }},
		{name: headgateName, mode: "unbatched", open: func(rdb client, l limit) (keyed, error) {
			return headgateKeyed(headgate.Redis(rdb, headgate.Unbatched()), l)
		}},
		leasing(100), leasing(1000),
		{name: headgateName, mode: "remembered denials", open: func(rdb client, l limit) (keyed, error) {
			if l != refused {
				return nil, errNoSuchLimit // it is as without
			}
			return headgateKeyed(headgate.Redis(rdb, headgate.RememberDenials()), l)
		}},
		{name: headgateName, mode: "a context that can be cancelled", open: cancellable, lone: true},
		{name: headgateName, mode: "shared parameters", open: headgateShared, lone: true},
		{name: headgateName, mode: "a fallback", lone: true, open: func(rdb client, l limit) (keyed, error) {
			return headgateKeyed(headgate.Redis(rdb), l, headgate.WithFallback(headgate.FailOpen()))
		}},
	}...)
}

// The names of contenders that bars and pictures speak of.
const (
	headgateName  = "Headgate"
	unbatchedName = "Headgate, unbatched"
	rememberName  = "Headgate, remembered denials"
	redisRateName = "redis_rate"
	pipelinedMode = "go-redis's AutoPipeline"
	floorName     = "no limiter: a script that does nothing"
)

// leasing has Headgate take so many permits at a time.
func leasing(n int) contender {
	return contender{name: headgateName, mode: "leases of " + count(n, "permit"), open: func(rdb client, l limit) (keyed, error) {
		if l != allowed {
			return nil, errNoSuchLimit // a lease is for a hot key with a burst
		}
		return headgateKeyed(headgate.Redis(rdb), l, headgate.WithLease(n))
	}}
}

// headgateKeyed makes a limiter for each user. Its key is as long as the user's.
func headgateKeyed(store headgate.Store, l limit, opts ...headgate.Option) (keyed, error) {
	limiter, err := headgate.New(store, "user", algos.TokenBucket{Rate: l.rate, Per: l.per, Burst: l.burst}, opts...)
	if err != nil {
		return nil, err
	}
	return forEach(limiter), nil
}

func forEach(limiter interface {
	For(parts ...string) *headgate.Limiter
}) keyed {
	return func(key string) call { return allow(limiter.For(strings.TrimPrefix(key, "user:"))) }
}

func allow(limiter *headgate.Limiter) call {
	return func(ctx context.Context) (bool, error) {
		decision, err := limiter.Allow(ctx)
		return decision.Allowed, err
	}
}

// headgateIn is a limiter whose key is the user's alone.
func headgateIn(store headgate.Store, key string, l limit) (call, error) {
	limiter, err := headgate.New(store, key, algos.TokenBucket{Rate: l.rate, Per: l.per, Burst: l.burst})
	if err != nil {
		return nil, err
	}
	return allow(limiter), nil
}

// cancellable calls with a context that may end: Headgate then returns, whatever the client does.
func cancellable(rdb client, l limit) (keyed, error) {
	ctx, cancel := context.WithCancel(context.Background())
	plain, err := headgateKeyed(headgate.Redis(rdb), l)
	if err != nil {
		cancel()
		return nil, err
	}
	return func(key string) call {
		c := plain(key)
		return func(context.Context) (bool, error) {
			ok, err := c(ctx)
			if err != nil { // the run ends
				cancel()
			}
			return ok, err
		}
	}, nil
}

// headgateShared has its parameters in Redis.
func headgateShared(rdb client, l limit) (keyed, error) {
	limiter, err := headgate.NewShared(headgate.Redis(rdb), "user")
	if err != nil {
		return nil, err
	}
	algorithm := algos.TokenBucket{Rate: l.rate, Per: l.per, Burst: l.burst}
	if _, err := limiter.SetRate(context.Background(), algorithm); err != nil {
		return nil, err
	}
	return forEach(limiter), nil
}

// opened is a contender under a limit.
type opened struct {
	contender
	keyed keyed
	key   string // of a user whom nobody else asks for
}

// open makes the contenders that know the limit, on a server that has nothing of theirs.
func open(rdb client, l limit, all []contender) ([]opened, error) {
	if err := rdb.FlushAll(context.Background()).Err(); err != nil {
		return nil, err
	}
	var made []opened
	for i, c := range all {
		k, err := c.open(rdb, l)
		if errors.Is(err, errNoSuchLimit) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%v: %w", c, err)
		}
		made = append(made, opened{c, k, user(i)})
	}
	return made, nil
}

// repeat makes n calls that must all be answered in one way.
func repeat(ctx context.Context, c call, n int, want bool) error {
	for range n {
		if err := once(ctx, c, want); err != nil {
			return err
		}
	}
	return nil
}

// once makes a call that must be answered in one way.
func once(ctx context.Context, c call, want bool) error {
	got, err := c(ctx)
	if err == nil && got != want {
		err = fmt.Errorf("allowed is %v, and the row measures calls where it is %v", got, want)
	}
	return err
}
