package worker_test

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/internal/redistest"
	"github.com/headgate-go/headgate/worker"
)

// The reply to the enqueuing of a clone is lost, and the client asks again: there is one clone, whatever the answers say. If
// there are none any more, the task does not run beside what may be its clone.
func TestACloneWhoseReplyIsLost(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]redistest.Fate{"once": redistest.Pass, "and all that follow": redistest.Cut} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			l := r.limiter(onePerDay())
			use(t, l, 1)
			proxy := redistest.NewProxy(t, r.redis.Addr)
			rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, PoolSize: 1})
			t.Cleanup(func() { _ = rdb.Close() })
			throttle, err := worker.New(l, rdb, worker.WithFailOpen())
			if err != nil {
				t.Fatal(err)
			}
			worker.StopPromoter(throttle) // its calls are none of this
			r.serve(throttle, nil)
			r.enqueue("warm", asynq.MaxRetry(0)) // Redis has the scripts then
			eventually(t, "it goes on as a clone", func() bool { return r.queue().Scheduled == 1 && r.queue().Active == 0 })

			proxy.Set(redistest.Hold)
			r.enqueue("a", asynq.MaxRetry(0), asynq.Retention(time.Hour))
			for {
				proxy.Holding()
				if r.info("a~1").ID != "" {
					break
				}
				proxy.Next()
			}
			proxy.Set(redistest.Cut)
			time.Sleep(3 * time.Millisecond)
			proxy.Set(then)
			eventually(t, "the task ends", func() bool {
				return r.info("a").State == asynq.TaskStateCompleted || r.info("a").State == asynq.TaskStateArchived
			})
			proxy.Set(redistest.Pass)
			if r.info("a~2").ID != "" {
				t.Error("there is a second clone")
			}
			if n := r.timesRan()["a"]; n != 0 {
				t.Error("it runs itself, beside its clone")
			}
			if state := r.info("a").State; then == redistest.Pass && state != asynq.TaskStateCompleted {
				t.Errorf("the state of the task is %d", state)
			}
		})
	}
}
