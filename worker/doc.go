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
//	mux := asynq.NewServeMux()
//	mux.Use(throttle.Middleware)
//	mux.HandleFunc("send", send)
//	server := asynq.NewServerFromRedisClient(rdb, config)
//	if err := server.Start(mux); err != nil {
//		return err
//	}
//	<-ctx.Done()
//	throttle.Drain() // before Shutdown
//	server.Shutdown()
//
// # How it works
//
// A task over the limit takes a ticket, a place in a line kept in Redis for each key, and goes away uncharged: its worker
// is free. Those who come later stand behind it. A promoter in each server process asks the limiter when its next slot is
// and brings the first tasks of the line back just before, with asynq's Inspector. A task that is back claims its permits,
// strictly, from the same limiter as all other callers of the key, waits in its worker for the last tenth of a second, and
// runs. That claim is the one charge. So it is with every algorithm, and with limiters of headgate.NewShared.
//
// To asynq a ticket is a retry that does not count: the task's retry count stays, nothing is archived for being throttled,
// and the server's ErrorHandler hears nothing. A task that has no retry left would be archived for any error. It waits in
// place if its slot is near; otherwise it ends in success and goes on as a clone with the ID "id~1", and one attempt. The
// lock of asynq.Unique is released by that, and a clone has its own Retention.
//
// The promoters of all servers share the lines, and a line is looked after by one of them at a time. If none is alive,
// asynq's own forwarder brings tasks back: some 5 s after their slots, more if the line is long or its pace not known
// yet, and WithMaxPutOff at the latest. A promoter never touches a task that is archived, completed or gone, and one
// that the forwarder is about to bring back anyway is left to it.
//
// A ticket whose task was deleted is dropped when its turn comes and costs nothing. One whose task does not arrive after
// it was brought back, because its queue is paused or its server died, counts for WithGrace; then others get its slot, and
// it keeps its place. An ID that is enqueued again inherits the place of the task that had it.
//
// # What it does not do
//
// The middleware runs after asynq has taken a task off the queue, so a task over the limit costs a visit to a worker. A
// task under several throttles is charged by the first while the second sends it away. asynq's functions of the
// configuration are wrapped when Configure is called, so what is set later is not.
package worker
