package worker_test

import (
	"context"
	"log"
	"os/signal"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/worker"
)

// A complete server, with a limit of its own for each tenant.
func Example() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})

	limiter, err := headgate.New(headgate.Redis(rdb), "vendor", algos.TokenBucket{Rate: 50, Per: time.Second, Burst: 1})
	if err != nil {
		panic(err)
	}
	throttle, err := worker.New(limiter, rdb,
		worker.WithTasks(func(_ context.Context, task *asynq.Task) bool { return task.Type() == "send" }),
		worker.WithKey(func(_ context.Context, task *asynq.Task) string { return task.Headers()["tenant"] }))
	if err != nil {
		panic(err)
	}
	config := asynq.Config{Concurrency: 10}
	if err := throttle.Configure(&config); err != nil { // also starts the promoter
		panic(err)
	}
	defer throttle.Drain() // ends the promoter, also if Start fails

	mux := asynq.NewServeMux()
	mux.Use(throttle.Middleware)
	mux.HandleFunc("send", func(context.Context, *asynq.Task) error { return nil })
	server := asynq.NewServerFromRedisClient(rdb, config)
	if err := server.Start(mux); err != nil { // not Run, which shuts down by itself
		panic(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	<-ctx.Done()
	throttle.Drain() // before Shutdown, of which asynq tells nobody
	server.Shutdown()
}

// Tasks that leave at the limiter's pace, and a queue in front of them that is at most a minute long.
func ExampleClient() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	limiter, err := headgate.New(headgate.Redis(rdb), "mail", algos.LeakyBucket{Rate: 10, Per: time.Second, Capacity: 10_000})
	if err != nil {
		panic(err)
	}
	client, err := worker.NewClient(limiter, rdb)
	if err != nil {
		panic(err)
	}
	_, err = client.Enqueue(context.Background(), asynq.NewTask("mail", []byte("…")), time.Minute)
	if err != nil {
		log.Print(err) // a *headgate.DeniedError if the queue is longer
	}
}
