package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
)

// manyKeysThroughput measures crowds of so many users that each has a state before it begins. The modes of a limiter have
// the same states; the fastest makes them.
func manyKeysThroughput(rdb client, rounds int, r results) error {
	var some []contender
	for _, c := range inCrowds() {
		if c.name == redisRateName || c.name == headgateName {
			some = append(some, c)
		}
	}
	all, err := open(rdb, lasting, some)
	if err != nil {
		return err
	}
	keys := users(manyKeys)
	for _, o := range all {
		if o.mode == pipelinedMode || o.String() == headgateName {
			if err := each(o.keyed, keys); err != nil {
				return fmt.Errorf("%v: %w", o, err)
			}
		}
	}
	return crowd{64, manyKeys}.measure(rounds, r, all, keys) // the server ends with them: forgetting them takes long
}

// keyMemory is what the server takes for a key, its tables and all.
const keyMemory quantity = "used_memory a key, bytes"

// serverMemory measures it once, of 50,000 users each.
func serverMemory(rdb client, r results) error {
	keys := users(50_000)
	for _, c := range inCrowds() {
		made, err := open(rdb, lasting, []contender{c})
		if err != nil {
			return err
		}
		if len(made) == 0 { // it does not know the limit
			continue
		}
		before, err := usedMemory(rdb)
		if err != nil {
			return err
		}
		if err := each(made[0].keyed, keys); err != nil {
			return fmt.Errorf("%v: %w", c, err)
		}
		after, err := usedMemory(rdb)
		if err != nil {
			return err
		}
		r.add(keyMemory, c.String(), (after-before)/float64(len(keys)))
	}
	return nil
}

// each asks once for each key.
func each(k keyed, keys []string) error {
	var next atomic.Int64
	var callers sync.WaitGroup
	errs := make(chan error, 1)
	for range 64 {
		callers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(keys) {
					return
				}
				if err := once(context.Background(), k(keys[i]), true); err != nil {
					select {
					case errs <- err:
					default:
					}
					return
				}
			}
		})
	}
	callers.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func usedMemory(rdb client) (float64, error) {
	info, err := rdb.Info(context.Background(), "memory").Result()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(infoField(info, "used_memory"), 64)
}
