package headgate

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

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
	// terms reads or changes the terms kept at key. It returns what terms.lua replies.
	terms(ctx context.Context, key string, change change) (text string, changed bool, err error)
	source() Source
	// close gives back what it holds for the limiter, and ends what it does for it.
	close(ctx context.Context) error
}

// A grant is a reply, and who gave it: the store that takes it back, by what plan and under which key, and the life of
// the state where the store counts lives: a receipt is worth nothing in another.
type grant struct {
	driver.Reply
	store Store
	life  uint64
	plan  *plan
	key   string
}

// A plan is what all limiters of one New share: the rule, and what the Redis store sends for it.
type plan struct {
	observer
	algorithm algos.Algorithm
	rule      algos.Rule
	limit     int         // the rule's Limit
	most      int         // the rule's Max
	tail      *algos.Tail // the rule's, if it has one
	script    driver.Script
	sha1      any                    // the script's, as an argument, boxed once
	params    atomic.Pointer[params] // the rule's parameters too, as they were last needed
	counts    bool                   // refusals too: none goes without saying

	// Of limiters whose terms are in the store:
	shared *shared // nil for other limiters
	terms  string  // what is stored, by which the plan was made
	mark   string  // names the state, and is another when that begins anew
}

// params are parameters as arguments, and the instants between which they serve.
type params struct {
	args        []any
	text        string // of args: equal ones have the same
	from, until int64  // µs since 1970
}

// dated tells whether they serve for a time only.
func (p *params) dated() bool { return p.until != math.MaxInt64 }

func newPlan(algorithm algos.Algorithm) (*plan, error) {
	if algorithm == nil {
		return nil, invalidf("the algorithm is nil")
	}
	rule, err := algorithm.Rule()
	if err != nil {
		return nil, err
	}
	p := &plan{algorithm: algorithm, rule: rule, limit: rule.Limit(), most: rule.Max()}
	if tailed, ok := rule.(algos.Tailed); ok {
		p.tail = tailed.Tail()
	}
	if denier, ok := rule.NewState().(algos.Denier); ok {
		denier.Load(rule, 0)
		p.counts = denier.Deny(1)
	}
	if p.script, err = driver.NewScript(rule); err != nil {
		return nil, err
	}
	p.sha1 = p.script.SHA1
	p.renew(time.Now().UnixMicro())
	return p, nil
}

// renew reads the rule's parameters for a server whose clock shows about now.
func (p *plan) renew(now int64) *params {
	numbers, until := p.rule.Params(now)
	fresh := &params{from: now, until: until}
	for _, n := range numbers {
		fresh.args = append(fresh.args, n)
	}
	fresh.text = fmt.Sprint(fresh.args...)
	p.params.Store(fresh)
	return fresh
}

// paramsAt are the rule's parameters for a server whose clock is ahead of this machine's by so many microseconds.
func (p *plan) paramsAt(ahead int64) *params {
	last := p.params.Load()
	if !last.dated() {
		return last
	}
	if now := time.Now().UnixMicro() + ahead; now < last.from || now >= last.until {
		return p.renew(now)
	}
	return last
}
