package headgate_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// aclUser makes the user "headgate" of a server, who may run these commands, on keys that begin with mine:.
func aclUser(t *testing.T, server *redistest.Server, commands string) {
	t.Helper()
	args := []any{"ACL", "SETUSER", "headgate", "reset", "on", ">pw", "~mine:*"}
	for rule := range strings.FieldsSeq(commands) {
		args = append(args, rule)
	}
	if err := server.Admin().Do(context.Background(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

const aclRoot = redistest.ACL + " " + redistest.ACLLog + " " + redistest.ACLShared

// useAll makes each call that Headgate makes of Redis, and returns the first error that is not a decision.
func useAll(rdb redis.UniversalClient) error {
	ctx := context.Background()
	store := headgate.Redis(rdb)
	mine := headgate.WithPrefix("mine")
	var errs []error
	note := func(err error) {
		if err != nil && !errors.Is(err, headgate.ErrDenied) {
			errs = append(errs, err)
		}
	}
	decided := func(_ headgate.Decision, err error) { note(err) }
	changed := func(_ bool, err error) { note(err) }
	for _, algorithm := range everyAlgorithm() {
		l, err := headgate.New(store, "acl", algorithm, mine)
		note(err)
		decided(l.AllowN(ctx, 5))
		var held []*headgate.Reservation
		for _, n := range []int{3, 2, 1, 1} {
			r, err := l.ReserveN(ctx, n)
			note(err)
			if err == nil {
				held = append(held, r)
			}
		}
		for _, r := range held {
			note(r.Cancel(ctx))
		}
		decided(l.AllowN(ctx, 10))
		decided(l.Peek(ctx))
		note(l.Reset(ctx))
		for _, n := range []int{10, 10, 10, 3, 7} { // places that are taken in parts, and lapse
			r, err := l.ReserveN(ctx, n)
			note(err)
			if err == nil {
				note(r.Cancel(ctx))
			}
		}
	}
	// A log of which nothing counts any more by a shorter window, and one of which a part does.
	for _, ahead := range []int{0, 1} {
		s, err := headgate.NewShared(store, fmt.Sprint("log", ahead), mine)
		note(err)
		changed(s.SetRate(ctx, algos.SlidingLog{Limit: 1, Window: time.Hour}))
		for range 1 + ahead {
			_, err = s.Reserve(ctx)
			note(err)
		}
		changed(s.UpdateRate(ctx, algos.SlidingLog{Limit: 1, Window: time.Millisecond}))
		time.Sleep(2 * time.Millisecond)
		_, err = s.Reserve(ctx)
		note(err)
	}
	s, err := headgate.NewShared(store, "shared", mine)
	note(err)
	changed(s.TrySetRate(ctx, slow))
	changed(s.UpdateRate(ctx, perTick(1, 1)))
	decided(s.For("client").Allow(ctx))
	note(s.Expire(ctx, time.Hour))
	note(s.ClearExpire(ctx))
	note(s.Delete(ctx))
	return errors.Join(errs...)
}

// The documented ACL suffices, and Headgate touches no key but its own.
func TestTheLeastACLSuffices(t *testing.T) {
	t.Parallel()
	cluster := redistest.Cluster(t, 1)[0]
	for name, connect := range map[string]func(t *testing.T) redis.UniversalClient{
		"standalone": func(t *testing.T) redis.UniversalClient {
			server := redistest.Start(t)
			aclUser(t, server, aclRoot)
			return redis.NewClient(&redis.Options{Addr: server.Addr, Username: "headgate", Password: "pw"})
		},
		"another database": func(t *testing.T) redis.UniversalClient {
			server := redistest.Start(t)
			aclUser(t, server, aclRoot+" +select")
			return redis.NewClient(&redis.Options{Addr: server.Addr, Username: "headgate", Password: "pw", DB: 3})
		},
		"a Ring": func(t *testing.T) redis.UniversalClient {
			server := redistest.Start(t)
			aclUser(t, server, aclRoot+" +ping")
			return redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": server.Addr}, Username: "headgate", Password: "pw"})
		},
		"cluster": func(t *testing.T) redis.UniversalClient {
			aclUser(t, cluster, aclRoot+" "+redistest.ACLCluster)
			return redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{cluster.Addr}, Username: "headgate", Password: "pw"})
		},
		"a cluster client that is ReadOnly": func(t *testing.T) redis.UniversalClient {
			aclUser(t, cluster, aclRoot+" "+redistest.ACLCluster+" +readonly")
			return redis.NewClusterClient(&redis.ClusterOptions{
				Addrs: []string{cluster.Addr}, Username: "headgate", Password: "pw", ReadOnly: true,
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			rdb := connect(t)
			defer rdb.Close()
			if err := useAll(rdb); err != nil {
				t.Error(err)
			}
			_, err := newLimiter(t, headgate.Redis(rdb), slow, headgate.WithPrefix("other")).For("secret-user").Allow(context.Background())
			wantUnknown(t, err, false)
			if !redis.HasErrorPrefix(err, "NOPERM") || strings.Contains(err.Error(), "secret-user") {
				t.Errorf("another prefix: %v", err)
			}
		})
	}
}

// Each command of the documented ACL but two is needed: without it some call is refused, and says so.
func TestEachCommandOfTheACLIsNeeded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rules := slices.Compact(slices.Sorted(strings.FieldsSeq(aclRoot)))
	for _, rule := range rules {
		if rule == "+hello" || rule == "+mget" { // go-redis, and commands for many keys, do without
			continue
		}
		rest := slices.DeleteFunc(slices.Clone(rules), func(r string) bool { return r == rule })
		server.Admin().FlushAll(context.Background())
		server.Admin().ScriptFlush(context.Background())
		aclUser(t, server, strings.Join(rest, " "))
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "headgate", Password: "pw"})
		err := useAll(rdb)
		_ = rdb.Close()
		if !redis.HasErrorPrefix(err, "NOPERM") {
			t.Errorf("without %s: %v", rule, err)
		}
	}
}

// A log writes in several commands, and may be stopped by the ACL after the first.
func TestWhatTheACLStopsHalfWayIsUnknown(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for rule, unknown := range map[string]bool{"+pexpire": true, "+evalsha": false} {
		aclUser(t, server, strings.ReplaceAll(aclRoot, rule+" ", ""))
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr, Username: "headgate", Password: "pw"})
		l := newLimiter(t, headgate.Redis(rdb), algos.SlidingLog{Limit: 5, Window: time.Second}, headgate.WithPrefix("mine"))
		_, err := l.Allow(context.Background())
		_ = rdb.Close()
		if failed, ok := errors.AsType[*headgate.StoreError](err); !ok || failed.Unknown != unknown || !errors.Is(err, headgate.ErrMisconfigured) {
			t.Errorf("without %s: %v", rule, err)
		}
	}
}

// The documentation tells the ACL that the tests run under.
func TestTheDocumentedACL(t *testing.T) {
	text, err := os.ReadFile("docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, rules := range map[string]string{
		"all": redistest.ACL, "a log": redistest.ACLLog, "a shared limiter": redistest.ACLShared, "tickets": redistest.ACLTickets, "a cluster": redistest.ACLCluster,
		"asynq": redistest.ACLAsynq,
	} {
		if !strings.Contains(string(text), "`"+rules+"`") {
			t.Errorf("docs/operations.md has no `%s`, for %s", rules, name)
		}
	}
	for rule := range strings.FieldsSeq(redistest.ACLOther) {
		if !strings.Contains(string(text), "`"+rule+"`") {
			t.Errorf("docs/operations.md has no `%s`", rule)
		}
	}
}
