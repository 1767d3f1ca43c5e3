package headgate_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// childEnv makes the test binary one of several processes: it holds the address of their Redis.
const childEnv = "HEADGATE_TEST_CHILD"

const (
	children = 4
	waiters  = 100 // in each
)

var shared = algos.TokenBucket{Rate: 200, Per: time.Second, Burst: 1}

// actAsChild runs a child process if this is one. It says when it is ready, waits to be told to go, and reports each
// admission, the slot before it, and how long the reply took.
func actAsChild() bool {
	addr := os.Getenv(childEnv)
	if addr == "" {
		return false
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	var mu sync.Mutex
	report := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	l, err := headgate.New(headgate.Redis(rdb), "witness", shared, headgate.WithHook(
		func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
			if op.Verb == headgate.VerbSleep {
				asked := ctx.Value(ctxKey{}).(time.Time)
				report("slot %d %d", time.Now().Add(op.Delay).UnixMicro(), time.Since(asked).Microseconds())
			}
			return context.WithValue(ctx, ctxKey{}, time.Now()), nil
		}))
	if err != nil {
		report("error %v", err)
		return true
	}
	var wg sync.WaitGroup
	for range waiters { // connects
		wg.Go(func() {
			if _, err := l.For("another").Peek(context.Background()); err != nil {
				report("error %v", err)
			}
		})
	}
	wg.Wait()
	report("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	for range waiters {
		wg.Go(func() {
			if err := l.Wait(context.Background()); err != nil {
				report("error %v", err)
				return
			}
			report("admitted %d", time.Now().UnixMicro())
		})
	}
	wg.Wait()
	return true
}

// Four processes with a hundred waiters each on one key of a real Redis, and a witness who sees only when each of
// them was let through.
func TestProcessesShareALimitWithoutAWitnessSeeingMore(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client()
	allowN(t, newLimiter(t, headgate.Redis(rdb), shared), 1) // loads the script
	var wg sync.WaitGroup
	var mu sync.Mutex
	var admitted, slots []int64
	var roundTrip int64 // the longest
	var ready sync.WaitGroup
	var inputs []interface{ Close() error }
	for range children {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+server.Addr)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, in)
		ready.Add(1)
		wg.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				word, rest, _ := strings.Cut(lines.Text(), " ")
				var at, took int64
				_, _ = fmt.Sscan(rest, &at, &took)
				mu.Lock()
				switch word {
				case "ready":
					ready.Done()
				case "admitted":
					admitted = append(admitted, at)
				case "slot":
					slots, roundTrip = append(slots, at), max(roundTrip, took)
				default:
					t.Errorf("a child says %q", lines.Text())
				}
				mu.Unlock()
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	ready.Wait()
	calls := server.Calls("evalsha")
	now, err := rdb.Time(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, in := range inputs {
		_ = in.Close() // go
	}
	wg.Wait()

	const total = children * waiters
	if len(admitted) != total {
		t.Fatalf("%d admitted of %d", len(admitted), total)
	}
	if got := server.Calls("evalsha") - calls; got != total {
		t.Errorf("%d script calls for %d permits", got, total)
	}
	// From the first instant at which one could be admitted, never more than the limit. One that wakes late is late,
	// and takes nobody else's place.
	slices.Sort(admitted)
	interval := shared.Per.Microseconds() / int64(shared.Rate)
	for i, at := range admitted {
		if earliest := now.UnixMicro() + int64(i)*interval; at < earliest {
			t.Fatalf("admission %d is %d µs early", i, earliest-at)
		}
	}
	// No slot was wasted: they stand one interval apart, to two in a hundred of the whole. What a client sees of a slot
	// is late by as much as its reply was.
	slices.Sort(slots)
	ideal := (total - 2) * interval // the first waiter does not sleep, and the slot of the second is the first here
	if got := slots[len(slots)-1] - slots[0]; got < ideal-ideal/50-roundTrip || got > ideal+ideal/50+roundTrip {
		t.Errorf("the slots span %d µs; ideally %d", got, ideal)
	}
	t.Logf("%d admissions in %d µs; ideally %d; the longest round trip took %d", total, admitted[total-1]-admitted[0], ideal+interval, roundTrip)
}
