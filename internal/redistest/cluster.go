package redistest

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Cluster starts n servers that share the slots of a cluster, and waits until all of them know it.
func Cluster(t testing.TB, n int) []*Server {
	t.Helper()
	primaries, _ := ClusterWithReplicas(t, n, 0)
	return primaries
}

// ClusterWithReplicas starts n servers that share the slots of a cluster, and so many replicas of each, which follow them in the
// order of the servers. Who does not answer for a second is taken for dead.
func ClusterWithReplicas(t testing.TB, n, replicas int) (primaries, followers []*Server) {
	t.Helper()
	ctx := context.Background()
	var all []*Server
	for range n * (1 + replicas) {
		all = append(all, Start(t, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"))
	}
	primaries, followers = all[:n], all[n:]
	host, port, _ := net.SplitHostPort(all[0].Addr)
	for i, s := range all {
		if i < n {
			must(t, s.Admin().ClusterAddSlotsRange(ctx, i*16384/n, (i+1)*16384/n-1).Err())
		}
		must(t, s.Admin().ClusterMeet(ctx, host, port).Err())
	}
	for _, s := range all {
		known := fmt.Sprintf("cluster_known_nodes:%d", len(all))
		s.until("the cluster forms", func(rdb *redis.Client) bool {
			info := rdb.ClusterInfo(ctx).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, known)
		})
	}
	for i, s := range followers {
		id := primaries[i%n].NodeID()
		s.until("it becomes a replica", func(rdb *redis.Client) bool { return rdb.ClusterReplicate(ctx, id).Err() == nil })
	}
	for _, s := range followers {
		s.until("it follows", func(rdb *redis.Client) bool {
			return strings.Contains(rdb.Info(ctx, "replication").Val(), "master_link_status:up")
		})
	}
	return primaries, followers
}

// NodeID is the server's name in its cluster.
func (s *Server) NodeID() string {
	s.t.Helper()
	id, err := s.Admin().ClusterMyID(context.Background()).Result()
	must(s.t, err)
	return id
}

// Migrate has a cluster's server move keys, which are there, to another one.
func (s *Server) Migrate(to *Server, keys ...string) {
	s.t.Helper()
	host, port, _ := net.SplitHostPort(to.Addr)
	args := []any{"migrate", host, port, "", 0, 1000}
	if restricted() {
		args = append(args, "auth2", adminName, adminPassword)
	}
	args = append(args, "keys")
	for _, key := range keys {
		args = append(args, key)
	}
	must(s.t, s.Admin().Do(context.Background(), args...).Err())
}

// MoveSlot moves a slot with its keys to another server of the cluster, in steps: between them clients are told to ask
// there, or that it has moved. Two servers tell the others in time.
func (s *Server) MoveSlot(to *Server, slot int64, step func()) {
	s.t.Helper()
	ctx := context.Background()
	from, target := s.Admin(), to.Admin()
	defer from.Close()
	defer target.Close()
	must(s.t, target.Do(ctx, "cluster", "setslot", slot, "importing", s.NodeID()).Err())
	step()
	must(s.t, from.Do(ctx, "cluster", "setslot", slot, "migrating", to.NodeID()).Err())
	step()
	for {
		keys, err := from.ClusterGetKeysInSlot(ctx, int(slot), 100).Result()
		must(s.t, err)
		if len(keys) == 0 {
			break
		}
		s.Migrate(to, keys...)
		step()
	}
	must(s.t, target.Do(ctx, "cluster", "setslot", slot, "node", to.NodeID()).Err())
	step()
	must(s.t, from.Do(ctx, "cluster", "setslot", slot, "node", to.NodeID()).Err())
}

// until waits for what the server is to say.
func (s *Server) until(what string, holds func(*redis.Client) bool) {
	s.t.Helper()
	rdb := s.Admin()
	defer rdb.Close()
	for range 1500 {
		if holds(rdb) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.t.Fatalf("never happened at %s: %s", s.Addr, what)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
