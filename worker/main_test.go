package worker_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
	"github.com/headgate-go/headgate/worker"
)

func TestMain(m *testing.M) {
	if actAsServer() {
		return
	}
	// Most tests wait rather than compute, so that more of them can run at a time than there are processors.
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	// go-redis's pool and asynq's own goroutines end by and by.
	goleak.VerifyTestMain(m)
}

// A rig is a Redis with asynq's clients, and what ran, seen from outside the limiter.
type rig struct {
	t         *testing.T
	redis     *redistest.Server
	rdb       redis.UniversalClient
	client    *asynq.Client
	inspector *asynq.Inspector

	mu   sync.Mutex
	runs []run
	away []string // IDs, each time that a task did not end in success
}

// A run is one time that a handler was called.
type run struct {
	id      string
	at      time.Time
	retried int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	server := startRedis(t)
	return newRigOn(t, server, server.Client())
}

// startRedis starts a server for asynq, which archives tasks by ZRANGE BYSCORE: Redis has that since 6.2.
func startRedis(t *testing.T) *redistest.Server {
	t.Helper()
	server := redistest.Start(t)
	if err := server.Admin().Do(context.Background(), "ZRANGE", "none", 0, 1, "BYSCORE").Err(); redis.HasErrorPrefix(err, "syntax error") {
		t.Skip("asynq needs Redis 6.2")
	}
	return server
}

func newRigOn(t *testing.T, server *redistest.Server, rdb redis.UniversalClient) *rig {
	return &rig{
		t: t, redis: server, rdb: rdb,
		client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb),
	}
}

func (r *rig) limiter(algorithm algos.Algorithm, opts ...headgate.Option) *headgate.Limiter {
	r.t.Helper()
	l, err := headgate.New(headgate.Redis(r.rdb), "test", algorithm, opts...)
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

func (r *rig) throttle(l *headgate.Limiter, opts ...worker.Option) *worker.Throttle {
	r.t.Helper()
	throttle, err := worker.New(l, r.rdb, opts...)
	if err != nil {
		r.t.Fatal(err)
	}
	return throttle
}

// A server is one that runs in the test's process.
type server struct {
	throttle *worker.Throttle
	*asynq.Server
	once sync.Once
}

// stop shuts it down as the documentation says.
func (s *server) stop() {
	s.once.Do(func() {
		s.throttle.Drain()
		s.Shutdown()
	})
}

// serve runs a server of ten workers that is stopped with the test. Without a handler, it notes what runs.
func (r *rig) serve(throttle *worker.Throttle, handler asynq.Handler, configure ...func(*asynq.Config)) *server {
	r.t.Helper()
	config := asynq.Config{
		Concurrency: 10, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond,
	}
	for _, f := range configure {
		f(&config)
	}
	if err := throttle.Configure(&config); err != nil {
		r.t.Fatal(err)
	}
	return r.start(throttle, config, handler)
}

func (r *rig) start(throttle *worker.Throttle, config asynq.Config, handler asynq.Handler) *server {
	r.t.Helper()
	if handler == nil {
		handler = asynq.HandlerFunc(r.note)
	}
	s := &server{throttle: throttle, Server: asynq.NewServerFromRedisClient(r.rdb, config)}
	limited := throttle.Middleware(handler)
	err := s.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := limited.ProcessTask(ctx, task)
		if err != nil {
			id, _ := asynq.GetTaskID(ctx)
			r.mu.Lock()
			r.away = append(r.away, id)
			r.mu.Unlock()
		}
		return err
	}))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(s.stop)
	return s
}

// note is the handler that succeeds.
func (r *rig) note(ctx context.Context, _ *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.runs = append(r.runs, run{id, time.Now(), retried})
	return nil
}

func (r *rig) ran() []run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.runs)
}

// bounces is how often tasks were sent away.
func (r *rig) bounces() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.away)
}

// timesRan is how often each task ran.
func (r *rig) timesRan() map[string]int {
	times := make(map[string]int)
	for _, run := range r.ran() {
		times[run.id]++
	}
	return times
}

func (r *rig) enqueue(id string, opts ...asynq.Option) {
	r.t.Helper()
	r.enqueueFor("", id, opts...)
}

// enqueueFor enqueues a task whose payload is the key of its limit.
func (r *rig) enqueueFor(key, id string, opts ...asynq.Option) {
	r.t.Helper()
	if _, err := r.client.Enqueue(asynq.NewTask("limited", []byte(key)), append(opts, asynq.TaskID(id))...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) enqueueMany(n int, opts ...asynq.Option) {
	r.t.Helper()
	for i := range n {
		r.enqueue(fmt.Sprintf("t%d", i), opts...)
	}
}

// byPayload is the key of a task.
func byPayload(_ context.Context, task *asynq.Task) string { return string(task.Payload()) }

func (r *rig) info(id string) *asynq.TaskInfo {
	info, err := r.inspector.GetTaskInfo("default", id)
	if err != nil {
		return &asynq.TaskInfo{}
	}
	return info
}

func (r *rig) queue() *asynq.QueueInfo {
	r.t.Helper()
	info, err := r.inspector.GetQueueInfo("default")
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

// eventually waits for a condition. How long that takes is not the test's subject.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in three minutes: %s", what)
		}
	}
}

// waits waits until a task has been sent away.
func (r *rig) waits(id string) {
	r.t.Helper()
	eventually(r.t, id+" is sent away", func() bool { return r.info(id).State == asynq.TaskStateRetry })
}

// allRan waits until n runs were noted.
func (r *rig) allRan(n int) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%d tasks run", n), func() bool { return len(r.ran()) >= n })
}

// onePerDay admits one task, and for a test's purposes none after it.
func onePerDay() algos.TokenBucket { return algos.TokenBucket{Rate: 1, Per: 24 * time.Hour, Burst: 1} }

// use takes the limiter's permits.
func use(t *testing.T, l *headgate.Limiter, n int) {
	t.Helper()
	if d, err := l.AllowN(context.Background(), n); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
}

// actAsServer is for tests that need another process: see server_test.go.
func actAsServer() bool { return os.Getenv(childConfig) != "" && childServer() }
