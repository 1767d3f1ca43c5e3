package headgate_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

const crowdCallers = 64 // in each process

// many is a limit that four processes use up.
var many = algos.TokenBucket{Rate: 1000, Per: time.Second, Burst: 400}

// useCrowded has many callers of one process ask for a permit, and after a pause for more again and again. It reports, for each that was admitted, when
// the call began and ended.
func useCrowded(opts ...headgate.Option) role {
	return func(addr string, begin func(), stop <-chan struct{}, report func(string, ...any)) error {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		defer rdb.Close()
		l, err := headgate.New(headgate.Redis(rdb), "crowd", many, opts...)
		if err != nil {
			return err
		}
		defer func() { _ = l.Close(context.Background()) }()
		if _, err := l.Peek(context.Background()); err != nil {
			return err
		}
		begin()
		var all sync.WaitGroup
		for range crowdCallers {
			all.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					if i == 1 {
						time.Sleep(600 * time.Millisecond) // the limit refills, and what is held must have decayed
					}
					began := time.Now()
					d, err := l.Allow(context.Background())
					if err != nil {
						report("error %v", err)
						return
					}
					if d.Allowed {
						report("%d %d %s", began.UnixMicro(), time.Now().UnixMicro(), d.Source)
					} else {
						time.Sleep(d.RetryAfter)
					}
				}
			})
		}
		all.Wait()
		return nil
	}
}

// Two hundred and fifty-six callers in four processes, who share calls or take leases, and a witness who only knows when
// each admission was asked for and told. Whatever stretch of time is looked at, no more were asked for and told within it
// than a burst and what the rate grants.
func TestACrowdIsNotAdmittedBeyondTheLimit(t *testing.T) {
	for name, leased := range map[string]bool{"many": false, "leases": true} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			var calls [][2]int64 // when each admission was told, and was asked for, µs
			held := 0
			all, ended := startChildren(t, children, name, server.Addr, func(line string) {
				var began, told int64
				var source headgate.Source
				if n, _ := fmt.Sscanf(line, "%d %d %s", &began, &told, &source); n != 3 {
					t.Errorf("a child says %q", line)
				}
				calls = append(calls, [2]int64{told, began})
				if source == headgate.SourceLease {
					held++
				}
			})
			for _, c := range all {
				c.say()
			}
			time.Sleep(1100 * time.Millisecond)
			for _, c := range all {
				c.say()
			}
			ended()
			if len(calls) < many.Burst+many.Rate/2 {
				t.Fatalf("only %d admissions: the limit was not used up", len(calls))
			}
			if leased != (held > 0) {
				t.Errorf("%d admissions of a lease", held)
			}
			slices.SortFunc(calls, func(a, b [2]int64) int { return int(a[0] - b[0]) })
			for i, first := range calls {
				n := 0
				for _, c := range calls { // in the order in which they were told
					if c[1] < first[1] {
						continue
					}
					n++
					within := c[0] - first[1] + clocks
					if most := int64(many.Burst) + within*int64(many.Rate)/many.Per.Microseconds(); int64(n) > most {
						t.Fatalf("from admission %d on, %d were admitted within %d µs; at most %d may be", i, n, within, most)
					}
				}
			}
		})
	}
}
