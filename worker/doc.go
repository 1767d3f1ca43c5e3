// Package worker runs the tasks of github.com/hibiken/asynq within a limit.
//
//	limiter, err := headgate.New(headgate.Redis(rdb), "vendor", algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 1})
//	…
//	throttle, err := worker.New(limiter, rdb)
//	…
//	config := asynq.Config{Concurrency: 10}
//	if err := throttle.Configure(&config); err != nil { // also starts the promoter
//		return err
//	}
//	defer throttle.Drain() // ends the promoter, also if Start fails
//	mux := asynq.NewServeMux()
//	mux.Use(throttle.Middleware)
//	mux.HandleFunc("send", send)
//	server := asynq.NewServerFromRedisClient(rdb, config)
//	if err := server.Start(mux); err != nil { // not Run, which shuts down by itself
//		return err
//	}
//	<-ctx.Done()
//	throttle.Drain() // before Shutdown
//	server.Shutdown()
//
// rdb is a client of the Redis that asynq uses, and of the same DB. One is made of an asynq.RedisClientOpt by
// opt.MakeRedisClient().(redis.UniversalClient).
//
// With WithKey each tenant has a limit of its own. The tenant comes with the task, in its headers:
//
//	client := asynq.NewClientFromRedisClient(rdb)
//	client.Enqueue(asynq.NewTaskWithHeaders("send", payload, map[string]string{"tenant": "ann"}))
//
//	worker.WithKey(func(_ context.Context, task *asynq.Task) string { return task.Headers()["tenant"] })
//
// # How it works
//
// A task over the limit takes a ticket, a place in a line kept in Redis for each key, and goes away uncharged: its worker
// is free. Those who come later stand behind it. A promoter in each server process asks the limiter when its next slot is
// and brings the first tasks of the line back just before, as asynq's Inspector would. A task that is back claims its
// permits, strictly, from the same limiter as all other callers of the key, waits in its worker for the last tenth of a
// second, and runs. That claim is the one charge of a run; a retry after the handler's own error is another run. So it is
// with every algorithm, and with limiters of headgate.NewShared.
//
// To asynq a ticket is a retry that does not count: the task's retry count stays, nothing is archived for being throttled,
// and the server's ErrorHandler hears nothing. A task that has no retry left would be archived for any error. It waits in
// place if its slot is near; otherwise it ends in success and goes on as a clone with the ID "id~1", and one attempt. That
// concerns the last attempt of each task. asynq.Unique and asynq.TaskID no longer guard it then; its handler sees the
// clone's ID, a header "headgate-clone", and 0 retries of 0; what it writes as its result is the clone's, which has a
// Retention of its own. The original counts as processed, and its result is empty.
//
// The promoters of all servers share the lines, and a line is looked after by one of them at a time. If none is alive,
// asynq's own forwarder brings tasks back: 5 s to 10 s after their slots, more if the line is long or its pace not known
// yet, and WithMaxPutOff at the latest. A promoter never revives a task that is archived, completed or gone, not even one
// that ends in that moment.
//
// Where a slot is far off promoters look only now and then: once a second, and where many lines wait, 50 times a second for
// all of them, each at least every 30 s. So late may a rate that was raised, or permits that came back, be noticed.
//
// A task whose asynq.Deadline passes before the limiter's next slot ends at once with ErrPastDeadline. Behind others it
// stands in line, as they may be deleted or the limit raised; it is back some seconds before its deadline, maybe more than
// once, and ends so when there is no time left. If it came there with less than some two seconds left, it ends as asynq ends
// a task whose deadline has passed, which counts as its failure.
//
// A ticket whose task was deleted is dropped when its turn comes and costs nothing. One whose task does not arrive after
// it was brought back, because its queue is paused or its servers are gone, counts for WithGrace; then others get its slot,
// and it keeps its place. If the line has tickets of several queues, none of a queue is counted on from then on until one
// arrives, and a few are brought back in each grace: so the others do not wait for one such ticket, or queue, after another.
//
// An ID that is enqueued again while its ticket stands inherits the place of the task that had it. If it is enqueued for a
// later time, or the task has failed by itself meanwhile, it comes at a time of its own, and a ticket whose turn comes before
// is dropped.
//
// # What it does not do
//
// The middleware runs after asynq has taken a task off the queue, so a task over the limit costs a visit to a worker. A
// task under several throttles is charged by the first each time that the second sends it away. (Several throttles of
// different tasks on one server are fine: have each Configure the configuration in turn.) asynq's functions of the
// configuration are wrapped when Configure is called, so what is set later is not.
package worker
