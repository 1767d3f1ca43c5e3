package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// What is measured of many callers at once.
const (
	perSecond quantity = "decisions a second, all callers together"
	callerP50 quantity = "a caller's p50, µs"
	callerP99 quantity = "a caller's p99, µs"
	gaveUp    quantity = "calls that failed, %"
)

// crowdLasts is how long a crowd asks.
const crowdLasts = 150 * time.Millisecond

// A crowd is callers who each ask again and again, each time for any of the keys.
type crowd struct{ callers, keys int }

func (c crowd) String() string {
	return fmt.Sprintf("%s, %s", count(c.callers, "caller"), count(c.keys, "key"))
}

// limit is that of the crowd's keys. A key's TTL is the time that its charged permits take to come back: where there are
// many keys they come back slowly, so that all keys stay.
func (c crowd) limit() limit {
	if c.keys > 1 {
		return lasting
	}
	return allowed
}

// The crowds are those that the rows and the pictures speak of.
var (
	crowdsByCallers = []crowd{{1, 1}, {8, 1}, {64, 1}, {256, 1}, {1024, 1}}
	crowdsByKeys    = []crowd{{64, 1}, {64, 100}, {64, 10_000}, {64, 1_000_000}}
	crowdOfAll      = crowd{256, 10_000}
)

// manyKeys takes long to make: only Headgate and redis_rate do.
const manyKeys = 1_000_000

// throughput measures crowds.
func throughput(rdb client, rounds int, r results) error {
	points := append(slices.Clone(crowdsByCallers), crowdOfAll)
	for _, c := range crowdsByKeys {
		if c.keys > 1 && c.keys < manyKeys {
			points = append(points, c)
		}
	}
	for _, c := range points {
		all, err := open(rdb, c.limit(), inCrowds())
		if err != nil {
			return err
		}
		if err := c.measure(rounds, r, all, users(c.keys)); err != nil {
			return err
		}
	}
	return manyKeysThroughput(rdb, rounds, r)
}

// measure measures one crowd of each.
func (c crowd) measure(rounds int, r results, all []opened, keys []string) error {
	var probes []probe
	for _, o := range all {
		probes = append(probes, probe{o.String(), func() (reading, error) {
			return c.countAndTime(o.keyed, keys)
		}}.at(c.String()))
	}
	if err := r.measure(rounds, 1, probes); err != nil {
		return fmt.Errorf("%v: %w", c, err)
	}
	return nil
}

// users are the keys of n users.
func users(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = user(i)
	}
	return keys
}

func inCrowds() (some []contender) {
	for _, c := range contenders() {
		if !c.lone {
			some = append(some, c)
		}
	}
	return some
}

// deniedCrowd asks for what there is none of.
var deniedCrowd = crowd{64, 1}

const denied quantity = "refusals a second, hot key, 64 callers"

// refusals measures a crowd that is refused again and again.
func refusals(rdb client, rounds int, r results) error {
	all, err := open(rdb, refused, inCrowds())
	if err != nil {
		return err
	}
	var probes []probe
	for _, o := range all {
		if err := once(context.Background(), o.keyed(o.key), true); err != nil { // all that there is
			return fmt.Errorf("%v: %w", o, err)
		}
		probes = append(probes, probe{o.String(), func() (reading, error) {
			counted, err := deniedCrowd.ask(o.keyed, []string{o.key}, false, untimed)
			return reading{denied: counted.perSecond()}, err
		}})
	}
	return r.measure(rounds, 1, probes)
}

// asked is what came of a crowd's asking for a while.
type asked struct {
	decisions, gaveUp int
	took              time.Duration
	waits             []time.Duration // of all calls, decided or given up, the shortest first; nil if they were not timed
}

func (a asked) perSecond() float64 { return float64(a.decisions) / a.took.Seconds() }

// A clock says whether each call is timed.
type clock bool

const (
	untimed clock = false
	timed   clock = true
)

// ask has the callers ask for a while. All must get the answer want.
func (c crowd) ask(k keyed, keys []string, want bool, clock clock) (all asked, err error) {
	each := make([]asked, c.callers)
	errs := make([]error, c.callers)
	var callers sync.WaitGroup
	var over atomic.Bool
	start := make(chan struct{})
	for i := range each {
		callers.Go(func() {
			var a asked // their own, far from the others'
			if clock == timed {
				a.waits = make([]time.Duration, 0, 256)
			}
			of := k(keys[0])
			<-start
			for began := time.Now(); !over.Load() && errs[i] == nil; {
				if len(keys) > 1 {
					of = k(keys[rand.IntN(len(keys))])
				}
				switch err := once(context.Background(), of, want); {
				case err == nil:
					a.decisions++
				case errors.Is(err, errGaveUp):
					a.gaveUp++
				default:
					errs[i] = err
				}
				if clock == timed {
					ended := time.Now()
					a.waits = append(a.waits, ended.Sub(began))
					began = ended
				}
			}
			each[i] = a
		})
	}
	began := time.Now()
	close(start)
	time.AfterFunc(crowdLasts, func() { over.Store(true) })
	callers.Wait()
	all.took = time.Since(began)
	for _, a := range each {
		all.decisions, all.gaveUp = all.decisions+a.decisions, all.gaveUp+a.gaveUp
		all.waits = append(all.waits, a.waits...)
	}
	slices.Sort(all.waits)
	return all, errors.Join(errs...)
}

// countAndTime measures how many decisions a crowd gets, and how long its callers wait: in turns of their own, since
// reading the clock takes longer than some of the decisions.
func (c crowd) countAndTime(k keyed, keys []string) (reading, error) {
	counted, err := c.ask(k, keys, true, untimed)
	if err != nil {
		return nil, err
	}
	each, err := c.ask(k, keys, true, timed)
	if err != nil {
		return nil, err
	}
	n := len(each.waits)
	return reading{
		perSecond: counted.perSecond(),
		callerP50: micros(each.waits[n/2]),
		callerP99: micros(each.waits[n*99/100]),
		gaveUp:    100 * float64(counted.gaveUp) / float64(counted.decisions+counted.gaveUp),
	}, nil
}
