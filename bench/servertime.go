package main

import (
	"context"
	"fmt"

	"github.com/headgate-go/headgate"
)

// serverTime measures how long the server is busy with one decision, as it counts itself: the script and the commands
// within it, without the network and the protocol. The server does one thing at a time, so this is what bounds the
// decisions a second of all callers together.
func serverTime(rdb client, rounds int) ([]row, error) {
	even, err := serverTimesOf(rdb, rounds, allowed, refused)
	if err != nil {
		return nil, err
	}
	uneven, err := serverTimesOf(rdb, rounds, allowedUneven, refusedUneven)
	if err != nil {
		return nil, err
	}
	rows := []row{
		{name: "allowed", peer: even.peerAllowed, ours: even.oursAllowed, bar: bar{1.15, ratio}},
		{name: "refused, to redis_rate's allowed", peer: even.peerAllowed, ours: even.oursRefused, bar: bar{0.75, ratio}},
		{name: "refused, to redis_rate's refused", peer: even.peerRefused, ours: even.oursRefused},
		{name: "allowed, uneven rate", peer: uneven.peerAllowed, ours: uneven.oursAllowed},
		{name: "allowed, shared, to Headgate's plain one", peer: even.oursAllowed, ours: even.sharedAllowed},
		{name: "refused, uneven rate, to redis_rate's allowed", peer: uneven.peerAllowed, ours: uneven.oursRefused},
	}
	for i := range rows {
		rows[i].name, rows[i].unit = "server time a decision: "+rows[i].name, "µs"
	}
	return rows, nil
}

// serverTimes are the server's µs a decision, by who asked and what was answered.
type serverTimes struct {
	peerAllowed, oursAllowed, sharedAllowed, peerRefused, oursRefused series
}

// serverTimesOf measures under a limit that grants everything, and under one that denies everything.
func serverTimesOf(rdb client, rounds int, granting, denying limit) (serverTimes, error) {
	var all serverTimes
	peerAllows, oursAllow, err := pair(rdb, userKey, granting)
	if err != nil {
		return all, err
	}
	sharedAllows, err := headgateShared(headgate.Redis(rdb), userKey, granting)
	if err != nil {
		return all, err
	}
	peerRefuses, oursRefuse, err := pair(rdb, refusedKey, denying)
	if err != nil {
		return all, err
	}
	for _, c := range []call{peerRefuses, oursRefuse} {
		if err := once(context.Background(), c, true); err != nil { // all that there is
			return all, err
		}
	}
	for round := range rounds + 1 {
		var peerAllowed, oursAllowed, sharedAllowed, peerRefused, oursRefused series
		timing := func(c call, want bool, into *series) func() error {
			return func() error {
				mean, err := turnOnServer(rdb, c, want)
				*into = append(*into, mean)
				return err
			}
		}
		err := interleave(serverTurns,
			timing(peerAllows, true, &peerAllowed), timing(oursAllow, true, &oursAllowed), timing(sharedAllows, true, &sharedAllowed),
			timing(peerRefuses, false, &peerRefused), timing(oursRefuse, false, &oursRefused))
		if err != nil {
			return all, err
		}
		if round == 0 { // it warms up
			continue
		}
		// The median over the turns leaves out those in which the server was interrupted.
		all.peerAllowed = append(all.peerAllowed, peerAllowed.median())
		all.oursAllowed = append(all.oursAllowed, oursAllowed.median())
		all.sharedAllowed = append(all.sharedAllowed, sharedAllowed.median())
		all.peerRefused = append(all.peerRefused, peerRefused.median())
		all.oursRefused = append(all.oursRefused, oursRefused.median())
	}
	return all, nil
}

// A turn has few calls, so that few turns are spoilt by an interruption, and enough for the server's whole
// microseconds to average out.
const (
	serverTurns = 40
	serverCalls = 100
)

// turnOnServer is the server's mean µs of a few calls.
func turnOnServer(rdb client, c call, want bool) (float64, error) {
	ctx := context.Background()
	if err := rdb.ConfigResetStat(ctx).Err(); err != nil {
		return 0, err
	}
	if err := repeat(ctx, c, serverCalls, want); err != nil {
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
	if calls != serverCalls {
		return 0, fmt.Errorf("%d calls of EVALSHA for %d decisions", calls, serverCalls)
	}
	return float64(usec) / serverCalls, nil
}
