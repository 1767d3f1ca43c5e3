package headgate

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// A serial decides for one key by the driver alone, one request after the other, and forgets as Redis does.
type serial struct {
	state   algos.State
	plan    *plan // that the state was saved by
	expires int64
	lives   int
}

func (s *serial) ask(p *plan, now int64, request driver.Request) driver.Reply {
	fresh := s.expires < now
	if fresh && request.Cost < 0 {
		return driver.Reply{}
	}
	if fresh {
		s.lives++
		if s.plan != p {
			s.state = p.rule.NewState()
		}
	}
	var replies [1]driver.Reply
	changed := driver.Run(s.state, p.rule, now, []driver.Request{request}, replies[:])
	if changed {
		s.plan = p
	}
	if until := now + replies[0].Reset; changed || !fresh && until > s.expires {
		s.expires = until
	}
	return replies[0]
}

// Who asks Allow in memory is mostly told by where the line ends, and by nothing else. In virtual time, with reservations
// and what is given back in between, limiters that are drained to the microsecond, and two limiters of different parameters
// on one key, everybody is told what the driver would have told him.
func TestAllowInMemoryAnswersAsTheDriver(t *testing.T) {
	const histories = 4000
	first, byTail := rand.Uint64(), 0
	for seed := first; seed != first+histories; seed++ {
		synctest.Test(t, func(t *testing.T) { byTail += allowAsTheDriver(t, seed) })
	}
	if byTail < histories {
		t.Errorf("%d decisions were made by where the line ends", byTail)
	}
}

// allowAsTheDriver lives one history, and tells how many decisions were made by where the line ends.
func allowAsTheDriver(t *testing.T, seed uint64) (byTail int) {
	ctx, r := context.Background(), rand.New(rand.NewPCG(seed, 0))
	m := Memory().(*memoryStore)
	limiters := make([]*Limiter, 1+r.IntN(3)/2)
	for i := range limiters {
		bucket := oneOf(r,
			algos.TokenBucket{Rate: 1, Per: time.Microsecond},
			algos.TokenBucket{Rate: 512, Per: time.Microsecond},
			algos.TokenBucket{Rate: 513, Per: time.Microsecond},
			algos.TokenBucket{Rate: 40, Per: 7 * time.Microsecond},
			algos.TokenBucket{Rate: 3, Per: 13 * time.Microsecond},
			algos.TokenBucket{Rate: 511, Per: time.Millisecond},
			algos.TokenBucket{Rate: 7, Per: time.Second},
			algos.TokenBucket{Rate: 500, Per: time.Second},
			algos.TokenBucket{Rate: 999_983, Per: time.Second},
			algos.TokenBucket{Rate: 10, Per: time.Hour},
		)
		bucket.Burst = 1 + r.IntN(9)
		l, err := New(m, "key", bucket)
		if err != nil {
			t.Fatal(err)
		}
		limiters[i] = l
	}
	oracle := serial{expires: -1}
	type both struct {
		*Reservation
		back driver.Request // the oracle's, of one of its lives
		life int
	}
	var reserved []both
	for call := range 40 {
		l := oneOf(r, limiters...)
		b := l.plan.algorithm.(algos.TokenBucket)
		each := b.Per.Microseconds() / int64(b.Rate)
		time.Sleep(micros(oneOf(r, 0, 0, 0, 1, 2, max(each-1, 0), each, each+1, each+2, 5*each, 20*each)))
		cost := 1 + r.IntN(b.Burst)
		request := driver.Request{Cost: int64(cost)}
		ask := func() Decision {
			g := grant{Reply: oracle.ask(l.plan, m.now(), request), store: m, plan: l.plan}
			if request.Bound == driver.Ask {
				g.Wait++
			}
			return g.decision()
		}
		var told, want Decision
		var err error
		switch r.IntN(6) {
		case 0:
			request = driver.Request{Cost: 1, Bound: driver.Ask}
			want = ask()
			told, err = l.Peek(ctx)
		case 1:
			request.Bound = 3 * each
			reply := oracle.ask(l.plan, m.now(), request)
			want = (&grant{Reply: reply, store: m, plan: l.plan}).decision()
			var made *Reservation
			made, err = l.ReserveN(ctx, cost, Within(micros(request.Bound)))
			if denied, ok := errors.AsType[*DeniedError](err); ok {
				told, err = denied.Decision, nil
			} else if err == nil {
				told = made.grant.decision()
				if slot := time.Until(made.slot); slot != micros(reply.Wait) {
					t.Fatalf("seed %d, call %d: a slot in %v, and by the driver in %d µs", seed, call, slot, reply.Wait)
				}
				reserved = append(reserved, both{made, driver.Request{Cost: -request.Cost, Receipt: reply.Receipt}, oracle.lives})
			}
		case 2:
			if len(reserved) == 0 {
				continue
			}
			i := r.IntN(len(reserved))
			given := reserved[i]
			if given.life == oracle.lives {
				oracle.ask(given.grant.plan, m.now(), given.back)
			}
			if err := given.giveBack(ctx); err != nil { // even if it is late
				t.Fatal(err)
			}
			reserved = slices.Delete(reserved, i, i+1)
			continue
		default:
			if e := l.seat.Load(); e != nil && l.plan.tail != nil && e.end.Load() != closed && *e.tail == *l.plan.tail {
				byTail++
			}
			want = ask()
			told, err = l.AllowN(ctx, cost)
		}
		if err != nil || told != want {
			t.Fatalf("seed %d, call %d: told %+v, %v; by the driver %+v", seed, call, told, err, want)
		}
	}
	return byTail
}

func oneOf[T any](r *rand.Rand, all ...T) T { return all[r.IntN(len(all))] }
