package main

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// What the server is busy with for a decision, as it counts itself: scripts and commands, without the network and the
// protocol. The server does one thing at a time, so this is what bounds the decisions a second of all callers together.
const (
	busyAllowed       quantity = "server time a decision, allowed, µs"
	busyRefused       quantity = "server time a decision, refused, µs"
	busyBeside        quantity = "server time a decision, allowed in turns with those refused, µs"
	busyCrowd         quantity = "server time a decision, 64 callers of one key, µs"
	busyAllowedUneven quantity = "server time a decision, allowed, uneven rate, µs"
	busyRefusedUneven quantity = "server time a decision, refused, uneven rate, µs"
	commands          quantity = "commands a decision"
	commandsCrowd     quantity = "commands a decision, 64 callers of one key"
)

// A turn has few calls, so that few turns are spoilt by an interruption, and enough for the server's whole
// microseconds to average out.
const (
	serverTurns = 20
	serverCalls = 100
)

// serverTime measures it. The contenders have a client that counts what they send.
func serverTime(rdb client, rounds int, r results) error {
	sent := newSent()
	counted := redis.NewClient(&redis.Options{Addr: rdb.Options().Addr})
	defer counted.Close()
	counted.AddHook(sent)
	busyOf := func(o opened, c call, q quantity, want bool) probe {
		return probe{o.String(), func() (reading, error) {
			busy, number, err := sent.busy(rdb, serverCalls, func() error {
				return repeat(context.Background(), c, serverCalls, want)
			})
			values := reading{q: busy}
			if q == busyAllowed {
				values[commands] = number
			}
			return values, err
		}}
	}
	for _, row := range []struct {
		q     quantity
		limit limit
		want  bool
	}{
		{busyAllowed, allowed, true}, {busyRefused, refused, false},
		{busyAllowedUneven, allowedUneven, true}, {busyRefusedUneven, refusedUneven, false},
	} {
		all, err := open(counted, row.limit, contenders())
		if err != nil {
			return err
		}
		var probes []probe
		for _, o := range all {
			if o.String() == floorName && !row.want { // it never refuses
				continue
			}
			c := o.keyed(o.key)
			if !row.want {
				if err := once(context.Background(), c, true); err != nil { // all that there is
					return fmt.Errorf("%v: %w", o, err)
				}
			}
			probes = append(probes, busyOf(o, c, row.q, row.want))
			if row.q == busyRefused && o.String() == redisRateName {
				granting, err := o.open(counted, allowed)
				if err != nil {
					return err
				}
				probes = append(probes, busyOf(o, granting(user(manyKeys)), busyBeside, true)) // of a key of its own
			}
		}
		// The median over the turns leaves out those in which the server was interrupted.
		if err := r.measure(rounds, serverTurns, probes); err != nil {
			return err
		}
	}
	all, err := open(counted, allowed, inCrowds())
	if err != nil {
		return err
	}
	var probes []probe
	for _, o := range all {
		probes = append(probes, probe{o.String(), func() (reading, error) {
			var all asked
			busy, number, err := sent.busy(rdb, 1, func() (err error) {
				all, err = crowd{64, 1}.ask(o.keyed, []string{o.key}, true, untimed)
				return err
			})
			if err != nil {
				return nil, err
			}
			decisions := float64(all.decisions)
			return reading{busyCrowd: busy / decisions, commandsCrowd: number / decisions}, nil
		}})
	}
	return r.measure(rounds, 1, probes)
}

// sent counts the commands that a client sends, by their names.
type sent struct {
	mu    sync.Mutex
	names map[string]int
}

func newSent() *sent { return &sent{names: make(map[string]int)} }

func (s *sent) count(cmds ...redis.Cmder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cmd := range cmds {
		s.names[cmd.Name()]++
	}
}

// DialHook implements redis.Hook.
func (s *sent) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

// ProcessHook implements redis.Hook.
func (s *sent) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		s.count(cmd)
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (s *sent) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		s.count(cmds...)
		return next(ctx, cmds)
	}
}

// busy is the server's µs for each of n decisions, and the commands. What a script calls is in the script's time, and
// once more by its name: of the other commands as many count as were sent, at their mean time.
func (s *sent) busy(rdb client, n int, decide func() error) (busy, number float64, err error) {
	ctx := context.Background()
	if err := rdb.ConfigResetStat(ctx).Err(); err != nil {
		return 0, 0, err
	}
	s.mu.Lock()
	clear(s.names)
	s.mu.Unlock()
	if err := decide(); err != nil {
		return 0, 0, err
	}
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range strings.Lines(info) {
		name, rest, found := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if !found {
			continue
		}
		var calls, usec int
		if _, err := fmt.Sscanf(rest, "calls=%d,usec=%d,", &calls, &usec); err != nil {
			return 0, 0, fmt.Errorf("commandstats %q: %w", line, err)
		}
		times := s.names[name]
		if name == "evalsha" || name == "eval" { // no script calls a script
			times = calls
		}
		busy += float64(usec) / float64(calls) * float64(times)
		number += float64(times)
	}
	return busy / float64(n), number / float64(n), nil
}
