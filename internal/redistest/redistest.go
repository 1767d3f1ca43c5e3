// Package redistest starts real Redis servers for tests. Each listens on a free port of the loopback interface, keeps
// nothing on disk unless told to, and ends with the test.
package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Required names the environment variable that makes a missing redis-server a failure instead of a skip.
const Required = "HEADGATE_REQUIRE_REDIS"

// Binary names the environment variable that says which server to run; the default is redis-server.
const Binary = "HEADGATE_REDIS_SERVER"

// A Server is a running redis-server.
type Server struct {
	Addr string

	t    testing.TB
	dir  string
	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Start runs a server with the arguments added to its command line, and waits until it answers. Without a
// redis-server the test is skipped, or fails if the environment says that one is required.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	binary := os.Getenv(Binary)
	if binary == "" {
		binary = "redis-server"
	}
	if _, err := exec.LookPath(binary); err != nil {
		if os.Getenv(Required) != "" {
			t.Fatalf("%s is required and missing: install the package redis-server, or run make test", binary)
		}
		t.Skipf("%s is missing: make test installs it and runs this test", binary)
	}
	s := &Server{t: t, dir: t.TempDir(), args: append([]string{binary}, args...)}
	// Another process may take the free port first; then another one is tried.
	for attempt := 0; ; attempt++ {
		s.Addr = freeAddr(t)
		err := s.run()
		if err == nil {
			break
		}
		if attempt == 4 {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		s.checkTTLs()
		s.Kill()
	})
	return s
}

// checkTTLs fails the test if it leaves a limiter's key that would never expire, but for the terms of a shared one.
func (s *Server) checkTTLs() {
	ctx := context.Background()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1, DialerRetries: 1})
	defer rdb.Close()
	for keys := rdb.Scan(ctx, 0, "hg:*", 1000).Iterator(); keys.Next(ctx); {
		if rdb.PTTL(ctx, keys.Val()).Val() == -1 && !strings.HasSuffix(keys.Val(), "}:rate") {
			s.t.Errorf("%q was left without a TTL", keys.Val())
		}
	}
}

// freeAddr finds a port that is free and leaves room for a cluster's bus, which listens 10,000 ports higher.
func freeAddr(t testing.TB) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		if addr := l.Addr().(*net.TCPAddr); addr.Port < 55536 {
			return addr.String()
		}
	}
}

// run starts the process at s.Addr and waits until it answers.
func (s *Server) run() error {
	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return err
	}
	log := filepath.Join(s.dir, "redis.log")
	args := append([]string{"--bind", host, "--port", port, "--dir", s.dir, "--save", "", "--logfile", log}, s.args[1:]...)
	s.cmd = exec.Command(s.args[0], args...)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // no server outlives a test binary that dies
	if err := s.cmd.Start(); err != nil {
		return err
	}
	cmd, done := s.cmd, make(chan struct{})
	s.done = done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr, MaxRetries: -1})
	defer rdb.Close()
	for range 500 {
		err := rdb.Ping(context.Background()).Err()
		if err == nil || redis.HasErrorPrefix(err, "NOAUTH") {
			return nil
		}
		select {
		case <-done:
			text, _ := os.ReadFile(log)
			return fmt.Errorf("redis-server ended: %s", text)
		case <-time.After(20 * time.Millisecond):
		}
	}
	s.Kill()
	return fmt.Errorf("redis-server at %s does not answer", s.Addr)
}

// Client connects to the server. The client is closed with the test.
func (s *Server) Client(configure ...func(*redis.Options)) *redis.Client {
	s.t.Helper()
	o := &redis.Options{Addr: s.Addr}
	for _, f := range configure {
		f(o)
	}
	rdb := redis.NewClient(o)
	s.t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// Kill ends the server at once, as kill -9 does.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// Restart starts a killed server again, at the same address.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.run(); err != nil {
		s.t.Fatal(err)
	}
}

// Pause stops the process in its tracks until Resume: connections stay open and nothing answers.
func (s *Server) Pause() { _ = s.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (s *Server) Resume() { _ = s.cmd.Process.Signal(syscall.SIGCONT) }

// Calls is how many times the server has run a command, from INFO commandstats.
func (s *Server) Calls(command string) int {
	s.t.Helper()
	rdb := s.Client()
	defer rdb.Close()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			var n int
			if _, err := fmt.Sscanf(rest, "%d", &n); err != nil {
				s.t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// Cluster starts n servers that share the slots of a cluster, and waits until all of them know it.
func Cluster(t testing.TB, n int) []*Server {
	t.Helper()
	ctx := context.Background()
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = Start(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
	}
	for i, s := range servers {
		rdb := s.Client()
		if err := rdb.ClusterAddSlotsRange(ctx, i*16384/n, (i+1)*16384/n-1).Err(); err != nil {
			t.Fatal(err)
		}
		host, port, _ := net.SplitHostPort(servers[0].Addr)
		if err := rdb.ClusterMeet(ctx, host, port).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range servers {
		rdb := s.Client()
		ok := false
		for range 500 {
			info := rdb.ClusterInfo(ctx).Val()
			if strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", n)) {
				ok = true
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if !ok {
			t.Fatalf("the cluster did not form: %s", rdb.ClusterInfo(ctx).Val())
		}
	}
	return servers
}
