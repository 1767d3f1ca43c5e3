package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// SentinelName is what Sentinels call the primary.
const SentinelName = "primary"

// A Watched is a primary with replicas and three Sentinels, which replace it when it has not answered for 300 ms.
type Watched struct {
	Primary   *Server
	Replicas  []*Server
	Sentinels []string // their addresses

	sentinels []*Server
}

// Sentinel starts a primary with so many replicas, and three Sentinels that watch them.
func Sentinel(t testing.TB, replicas int) *Watched {
	t.Helper()
	brief := []string{"--repl-diskless-sync-delay", "0"} // else replicas are made to wait for others
	w := &Watched{Primary: Start(t, brief...)}
	host, port, _ := net.SplitHostPort(w.Primary.Addr)
	for range replicas {
		w.Replicas = append(w.Replicas, Start(t, append(brief, "--replicaof", host, port)...))
	}
	config := fmt.Sprintf("sentinel monitor %s %s %s 2\n", SentinelName, host, port)
	for _, line := range []string{"down-after-milliseconds %s 300", "failover-timeout %s 5000", "parallel-syncs %s 5"} {
		config += fmt.Sprintf("sentinel "+line+"\n", SentinelName)
	}
	if restricted() {
		config += fmt.Sprintf("sentinel auth-user %[1]s %[2]s\nsentinel auth-pass %[1]s %[3]s\n", SentinelName, adminName, adminPassword)
	}
	for range 3 {
		file := filepath.Join(t.TempDir(), "sentinel.conf") // it writes to it
		must(t, os.WriteFile(file, []byte(config), 0o600))
		s := start(t, &Server{network: "tcp", config: file})
		// They find each other sooner: Sentinels of Redis 7 can be told so, and others take a few seconds.
		_ = s.Admin().Do(context.Background(), "sentinel", "debug", "publish-period", 100, "info-period", 200, "ask-period", 100).Err()
		w.sentinels, w.Sentinels = append(w.sentinels, s), append(w.Sentinels, s.Addr)
	}
	for _, s := range w.Replicas {
		s.until("it follows", func(rdb *redis.Client) bool {
			return strings.Contains(rdb.Info(context.Background(), "replication").Val(), "master_link_status:up")
		})
	}
	want := fmt.Sprintf("slaves=%d,sentinels=3", replicas)
	for _, s := range w.sentinels {
		s.until("the Sentinels know all", func(rdb *redis.Client) bool {
			return strings.Contains(rdb.Info(context.Background(), "sentinel").Val(), want)
		})
	}
	return w
}

// Successor waits until the Sentinels agree on another primary than the first, which accepts writes.
func (w *Watched) Successor() *Server {
	var next *Server
	for _, sentinel := range w.sentinels {
		sentinel.until("there is another primary", func(rdb *redis.Client) bool {
			at := strings.Split(masterAddr(rdb), " ")
			for _, s := range w.Replicas {
				if strings.Join(at, ":") == s.Addr {
					next = s
					return true
				}
			}
			return false
		})
	}
	next.until("it is the primary", func(rdb *redis.Client) bool {
		return strings.Contains(rdb.Info(context.Background(), "replication").Val(), "role:master")
	})
	return next
}

func masterAddr(rdb *redis.Client) string {
	at, _ := rdb.Do(context.Background(), "sentinel", "get-master-addr-by-name", SentinelName).StringSlice()
	return strings.Join(at, " ")
}
