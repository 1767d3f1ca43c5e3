package main

import (
	"context"
	"fmt"
	"strings"
)

// serverTime measures how long the server is busy with one decision, as it counts itself: the script and the commands
// within it, without the network and the protocol. The server does one thing at a time, so this is what bounds the
// decisions a second of all callers together.
func serverTime(rdb client, rounds int) ([]row, error) {
	even, err := serverTimeOf(rdb, rounds, allowed, refused)
	if err != nil {
		return nil, err
	}
	uneven, err := serverTimeOf(rdb, rounds, allowedUneven, refusedUneven)
	if err != nil {
		return nil, err
	}
	const name, fraction = "server time a decision", ", 7 a second"
	return []row{
		even.row(name+": allowed", even.peerAllowed, even.oursAllowed, bar{1.15, ratio}),
		even.row(name+": refused, to redis_rate's allowed", even.peerAllowed, even.oursRefused, bar{0.75, ratio}),
		even.row(name+": refused, to redis_rate's refused", even.peerRefused, even.oursRefused, bar{}),
		uneven.row(name+fraction+": allowed", uneven.peerAllowed, uneven.oursAllowed, bar{}),
		uneven.row(name+fraction+": refused, to redis_rate's allowed", uneven.peerAllowed, uneven.oursRefused, bar{}),
	}, nil
}

// A verdicts is the server's µs a decision in each round, by who asked and what was answered.
type verdicts struct {
	peerAllowed, oursAllowed, peerRefused, oursRefused series
}

func (verdicts) row(name string, peer, ours series, b bar) row {
	return row{name: name, unit: "µs", peer: peer, ours: ours, bar: b}
}

func serverTimeOf(rdb client, rounds int, granting, denying limit) (verdicts, error) {
	const turns = 40 // of callsATurn each, so 4,000 calls a round
	var v verdicts
	peerAllows, oursAllow, err := pair(rdb, userKey, granting)
	if err != nil {
		return v, err
	}
	peerRefuses, oursRefuse, err := pair(rdb, strings.ToUpper(userKey), denying)
	if err != nil {
		return v, err
	}
	for _, c := range []call{peerRefuses, oursRefuse} {
		if err := repeat(context.Background(), c, 1, true); err != nil { // all that there is
			return v, err
		}
	}
	for round := range rounds + 1 {
		var means [4]series
		timing := func(i int, c call, want bool) func() error {
			return func() error {
				mean, err := turnOnServer(rdb, c, want)
				means[i] = append(means[i], mean)
				return err
			}
		}
		err := interleave(turns,
			timing(0, peerAllows, true), timing(1, oursAllow, true), timing(2, peerRefuses, false), timing(3, oursRefuse, false))
		if err != nil {
			return v, err
		}
		if round > 0 { // the first one warms up
			// The median over the turns leaves out those in which the server was interrupted.
			v.peerAllowed = append(v.peerAllowed, means[0].median())
			v.oursAllowed = append(v.oursAllowed, means[1].median())
			v.peerRefused = append(v.peerRefused, means[2].median())
			v.oursRefused = append(v.oursRefused, means[3].median())
		}
	}
	return v, nil
}

// callsATurn is small, so that few turns are spoilt by an interruption, and large enough for the server's whole
// microseconds to average out.
const callsATurn = 100

// turnOnServer is the server's mean µs of a few calls.
func turnOnServer(rdb client, c call, want bool) (float64, error) {
	ctx := context.Background()
	if err := rdb.ConfigResetStat(ctx).Err(); err != nil {
		return 0, err
	}
	if err := repeat(ctx, c, callsATurn, want); err != nil {
		return 0, err
	}
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, err
	}
	field := infoField(info, "cmdstat_evalsha")
	var calls, usec int
	if _, err := fmt.Sscanf(field, "calls=%d,usec=%d,", &calls, &usec); err != nil {
		return 0, fmt.Errorf("commandstats of EVALSHA %q: %w", field, err)
	}
	if calls != callsATurn {
		return 0, fmt.Errorf("%d calls of EVALSHA for %d decisions", calls, callsATurn)
	}
	return float64(usec) / callsATurn, nil
}
