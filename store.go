package headgate

import (
	"context"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// A Store is where limiters keep what they remember. Redis and Memory make one; a Store may serve any number of
// limiters and is safe for concurrent use.
type Store interface {
	// decide answers one request for the limiter at key. A request that gives back carries the grant's life.
	decide(ctx context.Context, p *plan, key string, request driver.Request, life uint64) (grant, error)
	// reset forgets all that the limiter at key remembers.
	reset(ctx context.Context, key string) error
	source() Source
}

// A grant is a reply, and the life of the state that gave it where the store counts lives: a receipt is worth nothing
// in another.
type grant struct {
	driver.Reply
	life uint64
}

// A plan is what all limiters of one New share: the rule, and what the Redis store sends for it.
type plan struct {
	rule   algos.Rule
	script driver.Script
	sha1   any   // the script's, as an argument, boxed once
	params []any // the rule's parameters too
}

func newPlan(algorithm algos.Algorithm) (*plan, error) {
	if algorithm == nil {
		return nil, invalidf("the algorithm is nil")
	}
	rule, err := algorithm.Rule()
	if err != nil {
		return nil, err
	}
	script, err := driver.NewScript(rule)
	if err != nil {
		return nil, err
	}
	p := &plan{rule: rule, script: script, sha1: script.SHA1}
	for _, n := range rule.Params() {
		p.params = append(p.params, n)
	}
	return p, nil
}
