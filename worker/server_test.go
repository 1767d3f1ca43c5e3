package worker_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
	"github.com/headgate-go/headgate/worker"
)

// Two servers share a line: nothing runs twice, and no ticket is released twice.
func TestTwoServers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	algorithm := algos.TokenBucket{Rate: 100, Per: time.Second, Burst: 1}
	for range 2 {
		r.serve(r.throttle(r.limiter(algorithm), worker.WithKey(byPayload)), nil)
	}
	const tasks = 200
	for i := range tasks {
		r.enqueueFor([]string{"x", "y"}[i%2], fmt.Sprintf("t%d", i))
	}
	r.allRan(tasks)
	eventually(t, "the queue is empty", func() bool { return r.queue().Size == 0 })
	for id, n := range r.timesRan() {
		if n != 1 {
			t.Errorf("%s ran %d times", id, n)
		}
	}
	if q := r.queue(); q.Processed != tasks || q.Failed != 0 {
		t.Errorf("%d processed, %d failed", q.Processed, q.Failed)
	}
}

// On a cluster the keys of a line share a slot, whatever the key is, and asynq's are elsewhere.
func TestOnACluster(t *testing.T) {
	t.Parallel()
	servers := redistest.Cluster(t, 3)
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr)
	}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { _ = rdb.Close() })
	r := newRigOn(t, servers[0], rdb)
	r.serve(r.throttle(r.limiter(algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 1}), worker.WithKey(byPayload)), nil)
	const tasks = 60
	for i := range tasks {
		r.enqueueFor([]string{"x", "a}b", "y/z"}[i%3], fmt.Sprintf("t%d", i))
	}
	r.allRan(tasks)
	eventually(t, "the queue is empty", func() bool { return r.queue().Size == 0 })
	if r.bounces() == 0 {
		t.Error("no task took a ticket")
	}
}

// asynq 688, 286: a shutdown while tasks wait in place is quick, costs no retry and no permit, and they run elsewhere.
func TestDrain(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	algorithm := algos.TokenBucket{Rate: 1, Per: time.Hour, Burst: 1}
	l := r.limiter(algorithm)
	use(t, l, 1)
	s := r.serve(r.throttle(l, worker.WithMaxInPlace(100*time.Hour), worker.WithShare(100)), nil)
	r.enqueueMany(4, asynq.Timeout(1000*time.Hour))
	r.enqueue("last", asynq.Timeout(1000*time.Hour), asynq.MaxRetry(0))
	eventually(t, "all five wait in place", func() bool {
		d, err := l.Peek(ctx)
		return err == nil && d.RetryAfter > 5*time.Hour
	})

	start := time.Now()
	s.stop()
	if took := time.Since(start); took > 7*time.Second {
		t.Errorf("it took %v, and asynq's own patience is 8 s", took)
	}
	if d, err := l.Peek(ctx); err != nil || d.RetryAfter > time.Hour {
		t.Errorf("their permits are not back: %+v, %v", d, err)
	}
	q := r.queue()
	if q.Active+q.Archived+q.Failed != 0 || q.Retry != 4 || q.Scheduled != 1 {
		t.Errorf("%+v", q)
	}

	if err := l.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	r.serve(r.throttle(r.limiter(algorithm)), nil)
	for n := 1; n <= 5; n++ {
		r.allRan(n)
		if err := l.Reset(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for _, run := range r.ran() {
		if run.retried != 0 {
			t.Errorf("%s: asynq counts %d retries", run.id, run.retried)
		}
	}
}

// Those that cannot go away wait in place through a drain, until asynq takes them back: where that would count as a
// failure, or where nothing would bring them back.
func TestDrainOfTasksThatCannotGoAway(t *testing.T) {
	t.Parallel()
	for name, configured := range map[string]bool{"a server that is not configured": false, "another Redis": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			ctx := context.Background()
			l := r.limiter(onePerDay())
			use(t, l, 1)
			config := asynq.Config{
				Concurrency: 3, TaskCheckInterval: 10 * time.Millisecond, LogLevel: asynq.FatalLevel, ShutdownTimeout: 500 * time.Millisecond,
				ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { t.Errorf("handled: %v", err) }),
			}
			throttle, clones := r.throttle(l), 1
			if configured {
				other := redis.NewClient(&redis.Options{Addr: r.redis.Addr, DB: 1})
				t.Cleanup(func() { _ = other.Close() })
				var err error
				if throttle, err = worker.New(l, other); err != nil {
					t.Fatal(err)
				}
				if err := throttle.Configure(&config); err != nil {
					t.Fatal(err)
				}
				clones = 0
			}
			s := r.start(throttle, config, nil)
			r.enqueueMany(2, asynq.Timeout(1000*time.Hour))
			r.enqueue("last", asynq.Timeout(1000*time.Hour), asynq.MaxRetry(0))
			eventually(t, "all three wait in place", func() bool {
				d, err := l.Peek(ctx)
				return err == nil && d.RetryAfter > 3*24*time.Hour
			})
			s.stop()
			if q := r.queue(); q.Pending != 3-clones || q.Scheduled != clones || q.Size != 3 || q.Failed != 0 {
				t.Errorf("%+v", q)
			}
			eventually(t, "their permits are back", func() bool {
				d, err := l.Peek(ctx)
				return err == nil && d.RetryAfter <= 24*time.Hour
			})
		})
	}
}

// A promoter dies between releasing a ticket and bringing the task back: another one does, after the grace.
func TestAPromoterThatDies(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := context.Background()
	l := r.limiter(onePerDay())
	use(t, l, 1)
	throttle := r.throttle(l)
	s := r.serve(throttle, nil)
	r.enqueue("a")
	r.waits("a")
	s.stop()
	if err := l.Reset(ctx); err != nil {
		t.Fatal(err)
	}
	if n := worker.ReleaseOnly(t, throttle); n != 1 {
		t.Fatalf("%d tickets were released", n)
	}
	r.serve(r.throttle(l, worker.WithGrace(200*time.Millisecond)), nil)
	r.allRan(1)
	if r.bounces() != 1 {
		t.Errorf("it was sent away %d times", r.bounces())
	}
}

// 20,000 tasks over the limit: none is archived, and none has a retry the less.
func TestManyThrottledTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	l := r.limiter(onePerDay())
	use(t, l, 1)
	s := r.serve(r.throttle(l), nil, func(c *asynq.Config) { c.Concurrency = 50 })
	const tasks = 20_000
	var enqueuing sync.WaitGroup
	for part := range 4 {
		enqueuing.Go(func() {
			for i := part; i < tasks; i += 4 {
				r.enqueue(strconv.Itoa(i))
			}
		})
	}
	enqueuing.Wait()
	eventually(t, "all are sent away", func() bool { return r.bounces() == tasks })
	s.stop()
	if q := r.queue(); q.Archived != 0 || q.Failed != 0 || q.Size != tasks {
		t.Errorf("%+v", q)
	}
	waiting, err := r.inspector.ListRetryTasks("default", asynq.PageSize(tasks))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range waiting {
		if task.Retried != 0 {
			t.Fatalf("%s: asynq counts %d retries", task.ID, task.Retried)
		}
	}
	if n := r.rdb.ZCard(context.Background(), "hg:{test}:tickets").Val(); n != tasks {
		t.Errorf("%d tickets", n)
	}
}

// A process that was stopped while its tasks waited in place does not run all of them at once when it goes on.
func TestAServerThatStalledClaimsAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childConfig+"="+r.redis.Addr)
	child.Stderr = os.Stderr
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	const tasks = 30
	var seen atomic.Int32
	starts := make(chan int64, tasks)
	go func() {
		defer close(starts)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			at, _ := strconv.ParseInt(lines.Text(), 10, 64)
			starts <- at
			seen.Add(1)
		}
	}()
	r.enqueueMany(tasks)
	eventually(t, "some run", func() bool { return seen.Load() >= 5 })
	if err := child.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if err := child.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all run", func() bool { return seen.Load() >= tasks })
	_ = stdin.Close()
	// The bucket is replayed: ten starts would come at once.
	level, worst, last := 0.0, 0.0, int64(0)
	for at := range starts {
		level = max(0, level-float64(at-last)/1e6*childRate) + 1
		worst, last = max(worst, level), at
	}
	_ = child.Wait()
	if worst > 4 {
		t.Errorf("%.1f runs at once, of a limit of 1", worst)
	}
}

// childConfig has the test's program be a server, for the Redis at this address.
const childConfig = "HEADGATE_TEST_WORKER"

const childRate = 20

// childServer runs a server whose tasks all wait in place, and writes when each starts (µs since 1970), until stdin ends.
func childServer() bool {
	rdb := redis.NewClient(&redis.Options{Addr: os.Getenv(childConfig)})
	defer rdb.Close()
	l, err := headgate.New(headgate.Redis(rdb), "test", algos.TokenBucket{Rate: childRate, Per: time.Second, Burst: 1})
	if err != nil {
		panic(err)
	}
	throttle, err := worker.New(l, rdb, worker.WithDedicated())
	if err != nil {
		panic(err)
	}
	config := asynq.Config{Concurrency: 30, LogLevel: asynq.FatalLevel}
	if err := throttle.Configure(&config); err != nil {
		panic(err)
	}
	server := asynq.NewServerFromRedisClient(rdb, config)
	err = server.Start(throttle.Middleware(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		fmt.Println(time.Now().UnixMicro())
		return nil
	})))
	if err != nil {
		panic(err)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	throttle.Drain()
	server.Shutdown()
	return true
}

// Each of two throttles of one server is asked about its own tasks, whichever was configured first.
func TestTwoThrottlesOnOneServer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	log := &logger{}
	config := asynq.Config{
		Concurrency: 2, LogLevel: asynq.ErrorLevel, Logger: log, TaskCheckInterval: 10 * time.Millisecond,
		ErrorHandler: asynq.ErrorHandlerFunc(func(_ context.Context, _ *asynq.Task, err error) { t.Errorf("handled: %v", err) }),
	}
	mux := asynq.NewServeMux()
	const tasks = 30
	for _, kind := range []string{"send", "mail"} {
		l, err := headgate.New(headgate.Redis(r.rdb), kind, algos.TokenBucket{Rate: 20, Per: time.Second, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		throttle := r.throttle(l, worker.WithTasks(func(_ context.Context, task *asynq.Task) bool { return task.Type() == kind }))
		if err := throttle.Configure(&config); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(throttle.Drain)
		mux.Use(throttle.Middleware)
		mux.HandleFunc(kind, r.note)
		for i := range tasks {
			if _, err := r.client.Enqueue(asynq.NewTask(kind, nil), asynq.TaskID(fmt.Sprint(kind, i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	server := asynq.NewServerFromRedisClient(r.rdb, config)
	if err := server.Start(mux); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	r.allRan(2 * tasks)
	for _, run := range r.ran() {
		if run.retried != 0 {
			t.Errorf("%s: asynq counts %d retries", run.id, run.retried)
		}
	}
	if n := log.told("Throttle.Configure"); n != 0 {
		t.Errorf("it was told %d times that it is not configured", n)
	}
}
