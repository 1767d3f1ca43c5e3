package headgate

import (
	"fmt"
	"testing"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// What a process remembers of keys is bounded: those that have nothing any more are forgotten as others come in.
func TestKeysThatHaveNothingAreForgotten(t *testing.T) {
	const few = 200
	p, err := newPlan(algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	leases := newLender(nil, p, p.rule.(algos.Lender), 5)
	for i := range 10_000 {
		leases.find(fmt.Sprint(i))
	}
	if n := len(leases.keys); n > few {
		t.Errorf("%d keys without a lease", n)
	}

	refusal := driver.Reply{Wait: -5}
	d := &denials{base: time.Now(), keys: make(map[string]*denied)}
	for i := range int64(10_000) { // each is over when the next one comes
		d.learn(line{p, fmt.Sprint(i)}, driver.Request{Cost: 1}, refusal, moment{now: 10 * i})
	}
	if n := len(d.keys); n == 0 || n > few {
		t.Errorf("%d keys whose denials are over", n)
	}
	for i := range mostDenials + 1000 { // none is over
		d.learn(line{p, fmt.Sprint("more", i)}, driver.Request{Cost: 1}, refusal, moment{now: 1_000_000})
	}
	if n := len(d.keys); n != mostDenials {
		t.Errorf("%d denials are remembered", n)
	}
}
