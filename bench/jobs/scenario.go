package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/bench/internal/program"
	"github.com/headgate-go/headgate/internal/redistest"
)

// A scenario is one experiment: two servers of ten workers, and tasks of one or several keys.
type scenario struct {
	name        string
	rate, burst int // of each key, per second
	keys        []load
	arrivals    float64 // tasks a second, for all keys; 0: all at once
	recipe      bool
	remove      float64 // this share is deleted while it waits
	kill        bool    // one server in the middle
	cold        bool    // then one task of another key
	giveUp      time.Duration
}

// A load is how many tasks a key has.
type load struct {
	key   string
	tasks int
}

func scenarios() []scenario {
	one := []load{{"a", 2000}}
	var ten []load
	for i := range 10 {
		ten = append(ten, load{fmt.Sprintf("key%d", i), 200})
	}
	return []scenario{
		{name: "burst 1", rate: 50, burst: 1, keys: one},
		{name: "burst 50", rate: 50, burst: 50, keys: one},
		{name: "10 keys", rate: 5, burst: 1, keys: ten},
		{name: "1.2 × the limit", rate: 50, burst: 1, keys: one, arrivals: 60},
		{name: "a fifth deleted", rate: 50, burst: 1, keys: one, remove: 0.2},
		{name: "a server killed", rate: 50, burst: 1, keys: one, kill: true, giveUp: 4 * time.Minute},
		{name: "a cold tenant", rate: 50, burst: 1, keys: []load{{"hot", 1000}}, cold: true},
		{name: "the usual recipe, burst 1", rate: 50, burst: 1, keys: one, recipe: true},
		{name: "the usual recipe, burst 50", rate: 50, burst: 50, keys: one, recipe: true},
	}
}

// A record is what was seen of one task.
type record struct {
	key      string
	enqueued int64 // µs since 1970
	starts   []int64
	bounces  int
	deleted  bool
	stuck    bool // it was active in the killed server
}

// A journal is what the recorder has seen.
type journal struct {
	mu      sync.Mutex
	tasks   map[string]*record
	order   []string // of enqueuing
	claims  int
	started int
}

// enqueuing notes a task before it can start.
func (j *journal) enqueuing(id, key string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.tasks[id] = &record{key: key, enqueued: time.Now().UnixMicro()}
	j.order = append(j.order, id)
}

// follow reads what a server says; ready is closed when it serves.
func (j *journal) follow(r io.Reader, ready chan<- struct{}) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var what, id string
		var at int64
		_, _ = fmt.Sscan(lines.Text(), &what, &id, &at)
		j.mu.Lock()
		t := j.tasks[id]
		switch {
		case what == "ready":
			close(ready)
		case what == "claim":
			j.claims++
		case what == "start" && t != nil:
			t.starts = append(t.starts, at)
			if len(t.starts) == 1 && t.key != probe {
				j.started++
			}
		case what == "bounce" && t != nil:
			t.bounces++
		}
		j.mu.Unlock()
	}
}

// run runs the scenario on a Redis of its own.
func (s scenario) run(ctx context.Context, p *program.Program) (figures, error) {
	redisServer := redistest.Start(p)
	defer redisServer.Kill()
	rdb := redis.NewClient(&redis.Options{Addr: redisServer.Addr})
	defer rdb.Close()
	client, inspector := asynq.NewClientFromRedisClient(rdb), asynq.NewInspectorFromRedisClient(rdb)
	j := &journal{tasks: make(map[string]*record)}

	config, err := json.Marshal(setup{
		Addr: redisServer.Addr, Rate: s.rate, Burst: s.burst, Recipe: s.recipe, Forwarder: 5 * time.Second,
	})
	if err != nil {
		return figures{}, err
	}
	var servers []*process
	for range 2 {
		server, err := startServer(string(config), j)
		if err != nil {
			return figures{}, err
		}
		defer server.kill()
		servers = append(servers, server)
	}

	stopProbing := s.probe(ctx, client, j)
	defer stopProbing()
	total, err := s.enqueue(ctx, client, j)
	if err != nil {
		return figures{}, err
	}
	if s.remove > 0 {
		time.Sleep(5 * time.Second)
		s.delete(inspector, j)
	}
	if s.kill {
		j.await(func() bool { return j.started >= total/2 }, time.Minute)
		servers[0].kill()
		if err := markStuck(inspector, j); err != nil {
			return figures{}, err
		}
	}
	giveUp := s.giveUp
	if giveUp == 0 {
		giveUp = 90 * time.Second
	}
	j.await(func() bool {
		for _, t := range j.tasks {
			if t.key != probe && !t.deleted && len(t.starts) == 0 {
				return false
			}
		}
		return true
	}, giveUp)
	time.Sleep(500 * time.Millisecond) // for what would run twice
	stopProbing()
	for _, server := range servers {
		server.stop()
	}
	archived, err := inspector.GetQueueInfo("default")
	if err != nil {
		return figures{}, err
	}
	return s.figures(j, archived.Archived, redisServer.Calls("evalsha")), nil
}

// await waits until the condition, seen under the journal's lock, holds.
func (j *journal) await(condition func() bool, giveUp time.Duration) {
	for deadline := time.Now().Add(giveUp); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		j.mu.Lock()
		ok := condition()
		j.mu.Unlock()
		if ok {
			return
		}
	}
}

// enqueue enqueues the tasks, the keys in turn.
func (s scenario) enqueue(ctx context.Context, client *asynq.Client, j *journal) (total int, err error) {
	left := append([]load(nil), s.keys...)
	for enqueued := true; enqueued; {
		enqueued = false
		for i := range left {
			if left[i].tasks == 0 {
				continue
			}
			left[i].tasks--
			enqueued = true
			total++
			if s.arrivals > 0 {
				time.Sleep(time.Duration(rand.ExpFloat64() / s.arrivals * float64(time.Second)))
			}
			if err := enqueueOne(ctx, client, j, fmt.Sprintf("%s-%d", left[i].key, total), left[i].key, limited); err != nil {
				return 0, err
			}
		}
	}
	if s.cold {
		time.Sleep(2 * time.Second)
		return total + 1, enqueueOne(ctx, client, j, "cold-1", "cold", limited)
	}
	return total, nil
}

func enqueueOne(ctx context.Context, client *asynq.Client, j *journal, id, key, kind string) error {
	j.enqueuing(id, key)
	_, err := client.EnqueueContext(ctx, asynq.NewTask(kind, []byte(key)), asynq.TaskID(id))
	return err
}

// probe enqueues a task every half second that is not limited.
func (s scenario) probe(ctx context.Context, client *asynq.Client, j *journal) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-time.After(500 * time.Millisecond):
				_ = enqueueOne(ctx, client, j, fmt.Sprintf("probe-%d", n), probe, probe)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// delete deletes a share of the tasks, of those that wait.
func (s scenario) delete(inspector *asynq.Inspector, j *journal) {
	j.mu.Lock()
	ids := append([]string(nil), j.order...)
	j.mu.Unlock()
	want := int(s.remove * float64(len(ids)))
	for _, i := range rand.Perm(len(ids)) {
		if want == 0 {
			return
		}
		j.mu.Lock()
		t := j.tasks[ids[i]]
		waits := t.key != probe && len(t.starts) == 0
		j.mu.Unlock()
		if !waits {
			continue
		}
		switch err := inspector.DeleteTask("default", ids[i]); {
		case errors.Is(err, asynq.ErrTaskNotFound):
		case err != nil: // active
		default:
			j.mu.Lock()
			t.deleted = true
			j.mu.Unlock()
			want--
		}
	}
}

// markStuck finds the tasks that were active in a killed server: those that stay active.
func markStuck(inspector *asynq.Inspector, j *journal) error {
	for range 20 { // a task is active for a second at most otherwise, waits in place included
		time.Sleep(100 * time.Millisecond)
	}
	tasks, err := inspector.ListActiveTasks("default", asynq.PageSize(100))
	if err != nil {
		return err
	}
	time.Sleep(2 * time.Second)
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, task := range tasks {
		if t := j.tasks[task.ID]; t != nil {
			if info, err := inspector.GetTaskInfo("default", task.ID); err == nil && info.State == asynq.TaskStateActive {
				t.stuck = true
			}
		}
	}
	return nil
}

// A process is a server of its own.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	read  chan struct{} // closed when all that it said was read
}

func startServer(config string, j *journal) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-server", config)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, stdin: stdin, read: make(chan struct{})}
	ready := make(chan struct{})
	go func() {
		defer close(p.read)
		j.follow(stdout, ready)
	}()
	select {
	case <-ready:
		return p, nil
	case <-p.read:
		return nil, errors.New("the server ended")
	}
}

// stop has the server shut down and waits for it.
func (p *process) stop() {
	_ = p.stdin.Close()
	<-p.read
	_ = p.cmd.Wait()
}

// kill ends it as kill -9 does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.read
	_ = p.cmd.Wait()
}
