package driver

import (
	"slices"

	"github.com/headgate-go/headgate/algos"
)

// integers is how many make a Reply, in the order of its fields.
const integers = 5

// together is how many answer equal requests together.
const together = 4

// AppendArgs appends requests as the script takes them. If they are all equal and take something it takes them together.
func AppendArgs(args []any, requests []Request) []any {
	if equal(requests) {
		return append(args, 0, len(requests), requests[0].Cost, requests[0].Bound)
	}
	args = slices.Grow(args, 2*len(requests)) // what charges take
	for _, r := range requests {
		if r.Cost > 0 {
			args = append(args, r.Cost, r.Bound)
		} else {
			args = append(args, r.Cost, r.Receipt.Period, r.Receipt.Number)
		}
	}
	return args
}

// equal tells whether these are several requests that take, and are the same.
func equal(requests []Request) bool {
	if len(requests) < 2 {
		return false
	}
	first := requests[0]
	for _, r := range requests[1:] {
		if r != first {
			return false
		}
	}
	return first.Cost > 0 && first.Bound != Ask
}

// Replies are what a script answered to several requests, in their order.
type Replies struct {
	integers []int64
	replayed []Reply // instead, if the requests were answered together
}

// ReadReplies reads the script's answer to requests. It is not ok if it is none.
func ReadReplies(answer []int64, rule algos.Rule, requests []Request) (r Replies, ok bool) {
	if len(answer) == len(requests)*integers {
		return Replies{integers: answer}, true
	}
	replayer, replays := rule.(algos.Replayer)
	if !replays || len(answer) != together || !equal(requests) {
		return Replies{}, false
	}
	r.replayed = make([]Reply, len(requests))
	state, now := replayer.Replay(answer)
	Run(state, rule, now, requests, r.replayed)
	return r, true
}

// At is the i-th of them, from 0.
func (r Replies) At(i int) Reply {
	if r.replayed != nil {
		return r.replayed[i]
	}
	n := r.integers[i*integers : (i+1)*integers]
	return Reply{Wait: n[0], Remaining: n[1], Reset: n[2], Receipt: algos.Receipt{Period: n[3], Number: n[4]}}
}
