package headgate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// What the server replies to the greeting of a new connection reaches each of the calls that were to go by it, as it does one
// that goes alone.
func TestAnErrorOfTheGreetingReachesAll(t *testing.T) {
	server := redistest.Start(t)
	for _, keys := range []int32{unasked, together, apart} {
		rdb := server.Client(func(o *redis.Options) { o.Username, o.Password = "nobody", "wrong" })
		l, s := manyKeys(t, rdb)
		s.outbox.keys.Store(keys)
		packed(t, s, 3, func(i int) {
			_, err := l.For(fmt.Sprint(i)).Allow(context.Background())
			if failed, ok := errors.AsType[*StoreError](err); !ok || failed.Unknown || !strings.Contains(err.Error(), "WRONGPASS") {
				t.Errorf("%v", err)
			}
		})
		if now := s.outbox.keys.Load(); now != keys {
			t.Errorf("a server that did not let it in has told whether it stands alone: %d, then %d", keys, now)
		}
	}
}

// A server that has no room for one more connection is out, and a fallback decides.
func TestAServerThatIsFullIsOutForAll(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			request := make([]byte, 4096)
			for {
				if _, err := conn.Read(request); err != nil {
					break
				}
				_, _ = conn.Write([]byte("-ERR max number of clients reached\r\n"))
			}
			_ = conn.Close()
		}
	}()
	rdb := redis.NewClient(&redis.Options{Addr: listener.Addr().String(), DisableIdentity: true, Password: "any", MaxRetries: -1})
	defer rdb.Close()
	s := Redis(rdb).(*redisStore)
	l, err := New(s, "full", algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1000}, WithFallback(FailOpen()))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(context.Background())
	packed(t, s, 3, func(i int) {
		if d, err := l.For(fmt.Sprint(i)).Allow(context.Background()); err != nil || d.Source != SourceOpen {
			t.Errorf("%+v, %v", d, err)
		}
	})
}

// A proxy that no longer waits for the answer says so by an error of its own, which proves nothing.
func TestAnUnknownErrorHasNothingSentAgain(t *testing.T) {
	rdb := redistest.Start(t).Client()
	var givesUp atomic.Bool
	rdb.AddHook(proxyError{&givesUp})
	l, s := manyKeys(t, rdb)
	once := func() {
		packed(t, s, 5, func(i int) { _, _ = l.For(fmt.Sprint(i)).Allow(context.Background()) })
	}
	once()
	givesUp.Store(true)
	once()
	for i := range 5 {
		if n := spent(t, l.For(fmt.Sprint(i))); n != 2 {
			t.Errorf("%d permits are charged for 2 calls", n)
		}
	}
}

// proxyError has a pipeline run, and answered by an error.
type proxyError struct{ on *atomic.Bool }

func (proxyError) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (proxyError) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (p proxyError) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if p.on.CompareAndSwap(true, false) {
			for _, cmd := range cmds {
				cmd.SetErr(&scriptError{text: "ERR upstream timed out"})
			}
		}
		return err
	}
}

// A log writes in several commands, and what stops it after the first has it charged: nobody sends it again to learn why.
func TestWhatIsStoppedHalfWayIsChargedOnce(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	admin := server.Admin()
	if err := admin.Do(ctx, "acl", "setuser", "some", "on", ">secret", "~*", "+@all", "-pexpire").Err(); err != nil {
		t.Fatal(err)
	}
	s := Redis(server.Client(func(o *redis.Options) { o.Username, o.Password = "some", "secret" })).(*redisStore)
	s.outbox.keys.Store(together)
	l, err := New(s, "half", algos.SlidingLog{Limit: 5, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	packed(t, s, 5, func(i int) {
		_, err := l.For(fmt.Sprint(i)).Allow(ctx)
		if failed, ok := errors.AsType[*StoreError](err); !ok || !failed.Unknown || !errors.Is(err, ErrMisconfigured) || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("%v", err)
		}
	})
	for i := range 5 {
		key := l.For(fmt.Sprint(i)).key
		if n, err := admin.ZCard(ctx, key).Result(); n != 1 || err != nil {
			t.Errorf("%d are charged, %v", n, err)
		}
		admin.Del(ctx, key) // it has no TTL
	}
}

func TestWhatFailsAtOneKeyIsNothingToTheOthers(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	admin := server.Admin()
	if err := admin.Do(ctx, "acl", "setuser", "some", "on", ">secret", "~*odd}*", "+@all").Err(); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		rdb  *redis.Client
		set  func(key string) error // of an even number
		says string                 // to who asks for it
	}{
		"another type": {server.Client(), func(key string) error { return admin.RPush(ctx, key, "hello").Err() }, "WRONGTYPE"},
		"not ours":     {server.Client(), func(key string) error { return admin.Set(ctx, key, "hello", time.Hour).Err() }, "FOREIGN"},
		"forbidden":    {server.Client(func(o *redis.Options) { o.Username, o.Password = "some", "secret" }), func(string) error { return nil }, "NOPERM"},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := manyKeys(t, test.rdb)
			of := func(i int) *Limiter { return l.For(name, fmt.Sprint(i), []string{"even", "odd"}[i%2]) }
			for i := 0; i < 20; i += 2 {
				if err := test.set(of(i).key); err != nil {
					t.Fatal(err)
				}
			}
			packed(t, s, 20, func(i int) {
				switch d, err := of(i).Allow(ctx); failed := err.(type) {
				case nil:
					if i%2 == 0 || !d.Allowed {
						t.Errorf("%d: %+v", i, d)
					}
				case *StoreError:
					if i%2 == 1 || failed.Unknown || !strings.Contains(err.Error(), test.says) {
						t.Errorf("%d: %v", i, err)
					}
				default:
					t.Errorf("%d: %v", i, err)
				}
			})
			for i := 1; i < 20; i += 2 {
				if n := spent(t, of(i)); n != 1 {
					t.Errorf("%d: %d are charged", i, n)
				}
			}
			for i := range 20 {
				admin.Del(ctx, of(i).key)
			}
		})
	}
}

// An ACL of before there was MGET in the command, for instance.
func TestKeysThatCannotBeReadAtOnceAreReadOneByOne(t *testing.T) {
	ctx := context.Background()
	server := redistest.Start(t)
	if err := server.Admin().Do(ctx, "acl", "setuser", "some", "on", ">secret", "~*", "+@all", "-mget").Err(); err != nil {
		t.Fatal(err)
	}
	l, s := manyKeys(t, server.Client(func(o *redis.Options) { o.Username, o.Password = "some", "secret" }))
	call := func(i int) {
		if d, err := l.For(fmt.Sprint(i)).Allow(ctx); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
	}
	packed(t, s, 20, call) // loads the script
	before := server.Calls("evalsha")
	packed(t, s, 20, call)
	if calls := server.Calls("evalsha") - before; calls != 1 {
		t.Errorf("%d calls", calls)
	}
	for i := range 20 {
		if n := spent(t, l.For(fmt.Sprint(i))); n != 2 {
			t.Errorf("key %d: %d are charged", i, n)
		}
	}
}

// P6 of a command for many keys: it is not sent again. Who left before it was sent is not in it.
func TestALostCommandForManyKeysIsChargedOnce(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr)
	l, s := manyKeys(t, server.Client(func(o *redis.Options) { o.Addr, o.ReadTimeout = proxy.Addr, 500*time.Millisecond }))
	packed(t, s, 20, func(i int) { // loads the script
		if _, err := l.For(fmt.Sprint(i)).Allow(context.Background()); err != nil {
			t.Error(err)
		}
	})
	proxy.Set(redistest.Swallow)
	before := server.Calls("evalsha")
	gone, leave := context.WithCancel(context.Background())
	leave()
	packed(t, s, 20, func(i int) {
		if i == 19 {
			cmd := redis.NewIntSliceCmd(gone, "evalsha", l.plan.sha1, 1, l.For("19").key)
			s.outbox.process(gone, scriptCall{}, cmd)
			if cmd.Err() != errUnsent {
				t.Errorf("who left: %v", cmd.Err())
			}
			return
		}
		_, err := l.For(fmt.Sprint(i)).Allow(context.Background())
		if failed, ok := err.(*StoreError); !ok || !failed.Unknown {
			t.Errorf("%v", err)
		}
	})
	proxy.Set(redistest.Pass)
	if calls := server.Calls("evalsha") - before; calls != 1 {
		t.Errorf("it was sent %d times", calls)
	}
	for i := range 20 {
		if n := spent(t, l.For(fmt.Sprint(i))); n != 2-i/19 {
			t.Errorf("key %d: %d are charged", i, n)
		}
	}
}
