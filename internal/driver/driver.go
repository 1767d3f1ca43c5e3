// Package driver decides requests by an algorithm: Run in process, and Script inside Redis. The two are one driver
// written twice, and give the same answers to the microsecond.
package driver

import "github.com/headgate-go/headgate/algos"

// Ask is a bound that no slot meets: a request with it takes nothing and tells what one would get.
const Ask = -1

// A Request asks for Cost permits (at least 1) no more than Bound microseconds from now, or, if Cost is negative,
// gives back the -Cost permits of a Receipt.
type Request struct {
	Cost    int64
	Bound   int64
	Receipt algos.Receipt
}

// A Reply answers one Request. Times are in microseconds.
type Reply struct {
	// Wait is how long until the slot. A negative Wait is a refusal: the same request would be granted after -Wait,
	// and not a microsecond earlier, if nobody else came. For permits given back it is how many can be taken again.
	Wait int64
	// Remaining and Reset are the limiter's status after the request.
	Remaining, Reset int64
	// Receipt is for giving back what was granted.
	Receipt algos.Receipt
}

// Run answers a batch of requests in order, as if they had come one by one, at the instant now, and writes to replies,
// which is as long as requests. A batch all of which is refused leaves the state as it was, unless the clock went
// back, the rule is another one, or the algorithm counts refusals. Run reports whether it saved the state.
func Run(state algos.State, rule algos.Rule, now int64, requests []Request, replies []Reply) (changed bool) {
	if len(requests) == 1 {
		return Answer(state, rule, now, requests[0], &replies[0])
	}
	changed = state.Load(rule, now)
	for i, request := range requests {
		if answer(state, request, &replies[i]) {
			changed = true
		}
	}
	if changed {
		state.Save()
	}
	return changed
}

// Answer is Run for a lone request.
func Answer(state algos.State, rule algos.Rule, now int64, request Request, reply *Reply) (changed bool) {
	changed = state.Load(rule, now)
	if answer(state, request, reply) {
		changed = true
	}
	if changed {
		state.Save()
	}
	return changed
}

// answer answers one request by the loaded state, and reports whether that has changed.
func answer(state algos.State, request Request, reply *Reply) (changed bool) {
	*reply = Reply{}
	if request.Cost > 0 {
		reply.Wait = state.Earliest(request.Cost)
		if reply.Wait <= request.Bound {
			reply.Receipt = state.Take(request.Cost)
			changed = true
		} else {
			if denier, ok := state.(algos.Denier); ok && request.Bound != Ask && denier.Deny(request.Cost) {
				reply.Wait = state.Earliest(request.Cost)
				changed = true
			}
			reply.Wait = request.Bound - reply.Wait
		}
	} else {
		reply.Wait = state.GiveBack(request.Receipt, -request.Cost)
		changed = true
	}
	status := state.Status()
	reply.Remaining, reply.Reset = status.Remaining, status.ResetAfter
	return changed
}
