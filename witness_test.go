package headgate_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// These make the test binary one of several processes: the address of their Redis, and what they do there.
const (
	childEnv = "HEADGATE_TEST_CHILD"
	roleEnv  = "HEADGATE_TEST_ROLE"
)

const (
	children = 4
	waiters  = 100 // in each
)

// A role is what a child process does. When it is ready it calls the function, which says so and returns when all are to
// begin; it ends when stop is closed, if not before. What it reports is a line for its parent.
type role func(addr string, begin func(), stop <-chan struct{}, report func(format string, args ...any)) error

func roles() map[string]role {
	return map[string]role{
		"wait": waitOnce, "share": useShared, "change": changeShared, "zone": useInZone, "crowd": crowd, "mix": mixed,
		"many": useCrowded(), "leases": useCrowded(headgate.WithLease(20)),
	}
}

var shared = algos.TokenBucket{Rate: 200, Per: time.Second, Burst: 1}

// actAsChild runs a child process if this is one.
func actAsChild() bool {
	addr := os.Getenv(childEnv)
	if addr == "" {
		return false
	}
	var mu sync.Mutex
	report := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	input := bufio.NewReader(os.Stdin)
	stop := make(chan struct{})
	begin := func() {
		report("ready")
		_, _ = input.ReadString('\n')
		go func() {
			_, _ = input.ReadString('\n')
			close(stop)
		}()
	}
	if err := roles()[os.Getenv(roleEnv)](addr, begin, stop, report); err != nil {
		report("error %v", err)
	}
	return true
}

// A child is a process that plays a role.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

// startChildren starts n processes, waits until they are ready, and hands each line that they report to heard, one at a
// time. ended returns when all have ended, and is nil for those that are to be killed.
func startChildren(t *testing.T, n int, role, addr string, heard func(line string)) (all []child, ended func()) {
	t.Helper()
	var mu sync.Mutex
	var ready, done sync.WaitGroup
	for range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+addr, roleEnv+"="+role)
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
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // of a test that fails before it ends them
		all = append(all, child{cmd, in})
		ready.Add(1)
		done.Go(func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if lines.Text() == "ready" {
					ready.Done()
					continue
				}
				mu.Lock()
				heard(lines.Text())
				mu.Unlock()
			}
			_ = cmd.Wait()
		})
	}
	ready.Wait()
	return all, done.Wait
}

// say sends an empty line: to begin, and then to stop.
func (c child) say() { _, _ = fmt.Fprintln(c.in) }

// waitOnce has a hundred waiters, each with a connection of its own. It reports for each when it was admitted, its
// connection, and how far ahead its slot lay when it was given.
func waitOnce(addr string, begin func(), _ <-chan struct{}, report func(string, ...any)) error {
	start := make(chan struct{})
	var ready, done sync.WaitGroup
	for range waiters {
		ready.Add(1)
		done.Go(func() {
			if err := childWait(addr, ready.Done, start, report); err != nil {
				report("error %v", err)
			}
		})
	}
	ready.Wait()
	begin()
	close(start)
	done.Wait()
	return nil
}

func childWait(addr string, ready func(), start <-chan struct{}, report func(string, ...any)) error {
	var local string
	rdb := redis.NewClient(&redis.Options{PoolSize: 1, Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			local = conn.LocalAddr().String()
		}
		return conn, err
	}})
	defer rdb.Close()
	var ahead time.Duration
	l, err := headgate.New(headgate.Redis(rdb), "witness", shared, headgate.WithHook(
		func(ctx context.Context, _ headgate.Operation) (context.Context, func(headgate.Outcome)) {
			return ctx, func(o headgate.Outcome) { ahead = max(ahead, o.Delay) }
		}))
	if err == nil {
		_, err = l.For("another").Peek(context.Background()) // connects
	}
	ready()
	<-start
	if err == nil {
		err = l.Wait(context.Background())
	}
	if err == nil {
		report("admitted %d %s %d", time.Now().UnixMicro(), local, ahead.Microseconds())
	}
	return err
}

// An arrival is a charge as Redis saw it: the connection that it came from, and the time that the script read.
type arrival struct {
	conn string
	now  int64
}

// monitor notes the charges on a key in the order in which they reach Redis. The script's time stands in the state that
// it writes.
func monitor(t *testing.T, server *redistest.Server, key string) (arrivals func() []arrival) {
	t.Helper()
	conn, err := net.Dial("tcp", server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	if login := server.Login(); login != "" {
		if _, err := fmt.Fprint(conn, login+"\r\n"); err != nil || !lines.Scan() {
			t.Fatal(err, lines.Err())
		}
	}
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil || !lines.Scan() {
		t.Fatal(err, lines.Err())
	}
	server.Admin().Echo(context.Background(), `"`)
	for lines.Scan() && !strings.Contains(lines.Text(), `"echo"`) {
	}
	if !strings.HasSuffix(lines.Text(), `"\""`) {
		t.Skip("the server's MONITOR, as that of Valkey 8.1, does not quote what it shows")
	}
	var all []arrival
	done := make(chan struct{})
	go func() {
		defer close(done)
		var caller string
		for lines.Scan() && len(all) < children*waiters {
			// +1700000000.123456 [0 127.0.0.1:1234] "evalsha" "…" "1" "key" …
			// +1700000000.123456 [0 lua] "SET" "key" "…" "PX" "…"
			head, rest, _ := strings.Cut(lines.Text(), "] ")
			_, from, _ := strings.Cut(head, "[0 ")
			var args []string
			for quoted, err := strconv.QuotedPrefix(rest); err == nil; quoted, err = strconv.QuotedPrefix(rest) {
				arg, _ := strconv.Unquote(quoted)
				args = append(args, arg)
				rest = strings.TrimPrefix(rest[len(quoted):], " ")
			}
			switch {
			case len(args) > 3 && args[0] == "evalsha" && args[3] == key:
				caller = from
			case len(args) > 2 && args[0] == "SET" && args[1] == key && from == "lua":
				start := binary.LittleEndian.Uint64([]byte(args[2]))&(1<<56-1) - 1<<48 // of the busy period, see line.lua
				elapsed := binary.LittleEndian.Uint64([]byte(args[2])[16:]) & (1<<48 - 1)
				all = append(all, arrival{caller, int64(start + elapsed)})
			}
		}
	}()
	return func() []arrival {
		<-done
		_ = conn.Close()
		return all
	}
}

// Four processes with a hundred waiters each on one key of a real Redis, and a witness who sees only when each of
// them was let through.
func TestProcessesShareALimitWithoutAWitnessSeeingMore(t *testing.T) {
	server := redistest.Start(t)
	rdb := server.Client()
	allowN(t, newLimiter(t, headgate.Redis(rdb), shared), 1) // loads the script
	arrivals := monitor(t, server, "hg:{witness}:tb")
	type admission struct{ at, ahead int64 }
	admissions := make(map[string]admission) // by connection
	all, ended := startChildren(t, children, "wait", server.Addr, func(line string) {
		var a admission
		var conn string
		if n, _ := fmt.Sscanf(line, "admitted %d %s %d", &a.at, &conn, &a.ahead); n != 3 {
			t.Errorf("a child says %q", line)
		}
		admissions[conn] = a
	})
	calls := server.Calls("evalsha")
	for _, c := range all {
		c.say()
	}
	ended()

	const total = children * waiters
	if len(admissions) != total {
		t.Fatalf("%d admitted of %d", len(admissions), total)
	}
	if got := server.Calls("evalsha") - calls; got != total {
		t.Errorf("%d script calls for %d permits", got, total)
	}
	interval := shared.Per.Microseconds() / int64(shared.Rate)
	ideal := (total - 1) * interval

	// In the order of arrival at Redis the slots stand one interval apart, to the microsecond. Only before one that came
	// when nobody waited is there more.
	var slots, seen []int64
	var wasted int64
	for i, a := range arrivals() {
		slots = append(slots, a.now+admissions[a.conn].ahead)
		seen = append(seen, admissions[a.conn].at)
		if i > 0 {
			gap := slots[i] - slots[i-1] - interval
			if gap < 0 {
				t.Fatalf("arrival %d has a slot %d µs too near to the one before", i, -gap)
			}
			wasted += gap
		}
		if early := slots[i] - seen[i]; early > clocks {
			t.Fatalf("arrival %d was let through %d µs before its slot", i, early)
		}
	}
	if wasted > ideal/50 {
		t.Errorf("%d µs of %d were wasted", wasted, ideal)
	}
	// From the first slot on the witness never counted more than the limit: one who wakes late takes nobody's place.
	slices.Sort(seen)
	for i := range seen {
		if early := slots[0] + int64(i)*interval - seen[i]; early > clocks {
			t.Fatalf("the witness saw admission %d %d µs early", i, early)
		}
	}
	t.Logf("%d admissions in %d µs; ideally %d; %d wasted", total, seen[total-1]-seen[0], ideal, wasted)
}

// clocks is how far the processes' clocks may be corrected meanwhile, in µs.
const clocks = 1000
