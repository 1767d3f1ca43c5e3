// Package redistest starts real Redis servers for tests. Each listens on a free port of the loopback interface, keeps
// nothing on disk unless told to, and ends with the test.
package redistest

import (
	"context"
	"crypto/tls"
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
	Addr string // host and port, or the path of a socket

	t       testing.TB
	dir     string
	binary  string
	args    []string
	env     []string
	config  string      // the file of a Sentinel's configuration
	network string      // "tcp", "tls" or "unix"
	tls     *tls.Config // a client's, for "tls"
	cmd     *exec.Cmd
	done    chan struct{} // closed when the process has ended
}

// Start runs a server with the arguments added to its command line, and waits until it answers. Without a
// redis-server the test is skipped, or fails if the environment says that one is required.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, &Server{network: "tcp", args: append(aclArgs(), args...)})
}

// StartUnix is Start for a server that listens on a socket of the file system, and nowhere else.
func StartUnix(t testing.TB, args ...string) *Server {
	t.Helper()
	return start(t, &Server{network: "unix", args: append(aclArgs(), args...)})
}

func start(t testing.TB, s *Server) *Server {
	t.Helper()
	s.binary = os.Getenv(Binary)
	if s.binary == "" {
		s.binary = "redis-server"
	}
	if _, err := exec.LookPath(s.binary); err != nil {
		missing(t, s.binary, "the package redis-server")
	}
	s.t, s.dir = t, shortTempDir(t)
	// Another process may take the free port first; then another one is tried.
	for attempt := 0; ; attempt++ {
		if s.network == "unix" {
			s.Addr = filepath.Join(s.dir, "redis.sock")
		} else {
			s.Addr = freeAddr(t)
		}
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

// missing skips the test, or fails it if the environment says that nothing may be missing.
func missing(t testing.TB, program, remedy string) {
	t.Helper()
	if os.Getenv(Required) != "" {
		t.Fatalf("%s is required and missing: install %s, or run make test", program, remedy)
	}
	t.Skipf("%s is missing: make test installs it and runs this test", program)
}

// shortTempDir is a directory of the test's whose path is short enough for a socket's.
func shortTempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// checkTTLs fails the test if it leaves a limiter's key that would never expire, but for the terms of a shared one.
func (s *Server) checkTTLs() {
	if s.listens() != nil {
		return
	}
	ctx := context.Background()
	o := s.adminOptions()
	o.MaxRetries, o.DialerRetries = -1, 1
	rdb := redis.NewClient(o)
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
	log := filepath.Join(s.dir, "redis.log")
	var args []string
	if s.network == "unix" {
		args = []string{"--port", "0", "--unixsocket", s.Addr}
	} else {
		host, port, err := net.SplitHostPort(s.Addr)
		if err != nil {
			return err
		}
		args = []string{"--bind", host, "--port", port}
		if s.network == "tls" {
			args = []string{"--bind", host, "--port", "0", "--tls-port", port}
		}
	}
	args = append(args, "--dir", s.dir, "--logfile", log)
	if s.config != "" {
		args = append([]string{s.config, "--sentinel"}, args...)
	} else {
		args = append(args, "--save", "")
	}
	s.cmd = exec.Command(s.binary, append(args, s.args...)...)
	s.cmd.Env = append(os.Environ(), s.env...)
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
	o := s.adminOptions()
	o.MaxRetries, o.DialerRetries = -1, 1
	rdb := redis.NewClient(o)
	defer rdb.Close()
	var err error
	for range 500 {
		if err = s.listens(); err == nil {
			var info string // by which it is this one, and not another that took the port first
			info, err = rdb.Info(context.Background(), "server").Result()
			if err == nil && strings.Contains(info, fmt.Sprintf("process_id:%d\r\n", cmd.Process.Pid)) || redis.HasErrorPrefix(err, "NOAUTH") {
				return nil
			}
		}
		select {
		case <-done:
			text, _ := os.ReadFile(log)
			return fmt.Errorf("redis-server ended: %s", text)
		case <-time.After(20 * time.Millisecond):
		}
	}
	s.Kill()
	return fmt.Errorf("redis-server at %s does not answer: %w", s.Addr, err)
}

// listens tells whether there is somebody at s.Addr: go-redis logs it when there is not.
func (s *Server) listens() error {
	network := "tcp"
	if s.network == "unix" {
		network = "unix"
	}
	conn, err := net.Dial(network, s.Addr)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// Options are those with which a client connects to the server.
func (s *Server) Options() *redis.Options {
	o := &redis.Options{Addr: s.Addr, TLSConfig: s.tls}
	if s.network == "unix" {
		o.Network = "unix"
	}
	return o
}

// Client connects to the server. The client is closed with the test.
func (s *Server) Client(configure ...func(*redis.Options)) *redis.Client {
	s.t.Helper()
	o := s.Options()
	for _, f := range configure {
		f(o)
	}
	rdb := redis.NewClient(o)
	s.t.Cleanup(func() { _ = rdb.Close() })
	if restricted() && o.Username == "" {
		rdb.AddHook(beyondACL{s.Admin()})
	}
	return rdb
}

// Admin connects to the server as one who may do everything, though the environment restricts all others. The client is
// closed with the test.
func (s *Server) Admin() *redis.Client {
	s.t.Helper()
	o := s.adminOptions()
	o.ReadTimeout = 30 * time.Second // a server that writes each command to a busy disk takes its time
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
	rdb := s.Admin()
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
