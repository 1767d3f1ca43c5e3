package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/bench/internal/program"
	"github.com/headgate-go/headgate/internal/redistest"
)

// splitOver is over how many keys a limit is split, so that each of three primaries has a few.
const splitOver = 12

const (
	splitRate quantity = "decisions a second, of a cluster"
	splitBusy quantity = "server time a decision, of the busiest primary, µs"
)

// splits are the ways to keep one limit in a cluster.
func splits() (names []string) {
	for _, k := range []int{1, splitOver} {
		names = append(names, splitName(k, false), splitName(k, true))
	}
	return names
}

func splitName(keys int, shared bool) string {
	name := count(keys, "key")
	if shared {
		return name + ", shared calls"
	}
	return name + ", a call each"
}

// split measures a limit that is one key of a cluster, and the same split over several.
func split(p *program.Program, rounds int, r results) error {
	servers := redistest.Cluster(p, 3)
	var addrs []string
	var nodes []*redis.Client
	for _, s := range servers {
		addrs, nodes = append(addrs, s.Addr), append(nodes, s.Client())
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer cluster.Close()
	var probes []probe
	for _, k := range []int{1, splitOver} {
		part := limit{allowed.rate * splitOver / k, allowed.per * splitOver, allowed.burst / k}
		for shared, opts := range map[bool][]headgate.RedisOption{false: {headgate.Unbatched()}, true: nil} {
			keyed, err := headgateKeyed(headgate.Redis(cluster, opts...), part)
			if err != nil {
				return err
			}
			probes = append(probes, probe{splitName(k, shared), func() (reading, error) {
				for _, node := range nodes {
					if err := node.ConfigResetStat(context.Background()).Err(); err != nil {
						return nil, err
					}
				}
				all, err := crowd{64, k}.ask(keyed, users(k), true, untimed)
				if err != nil {
					return nil, err
				}
				busiest, err := busiest(nodes)
				return reading{splitRate: all.perSecond(), splitBusy: busiest / float64(all.decisions)}, err
			}})
		}
	}
	return r.measure(rounds, 1, probes)
}

// busiest is the most time, in µs, that one of the servers has spent in scripts.
func busiest(nodes []*redis.Client) (most float64, err error) {
	for _, node := range nodes {
		info, err := node.Info(context.Background(), "commandstats").Result()
		if err != nil {
			return 0, err
		}
		var all float64
		for line := range strings.Lines(info) {
			name, rest, _ := strings.Cut(line, ":")
			var calls, usec int
			if name == "cmdstat_evalsha" || name == "cmdstat_eval" {
				if _, err := fmt.Sscanf(rest, "calls=%d,usec=%d,", &calls, &usec); err != nil {
					return 0, fmt.Errorf("commandstats %q: %w", line, err)
				}
				all += float64(usec)
			}
		}
		most = max(most, all)
	}
	return most, nil
}
