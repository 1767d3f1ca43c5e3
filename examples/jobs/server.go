package main

import (
	"context"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/worker"
)

const (
	queue   = "headgate-jobs"
	send    = "send" // the limited type of task
	ping    = "ping" // one that is not
	takes   = 5 * time.Millisecond
	workers = 10
)

// A server is an asynq server that keeps to the limit.
type server struct {
	throttle *worker.Throttle
	server   *asynq.Server
}

func startServer(rdb redis.UniversalClient, limiter *headgate.Limiter, b *book) (*server, error) {
	throttle, err := worker.New(limiter, rdb,
		worker.WithTasks(func(_ context.Context, task *asynq.Task) bool { return task.Type() == send }),
		worker.WithKey(func(_ context.Context, task *asynq.Task) string { return string(task.Payload()) }))
	if err != nil {
		return nil, err
	}
	config := asynq.Config{Concurrency: workers, Queues: map[string]int{queue: 1}, LogLevel: asynq.ErrorLevel}
	if err := throttle.Configure(&config); err != nil {
		return nil, err
	}
	mux := asynq.NewServeMux()
	mux.Use(b.watch, throttle.Middleware)
	mux.HandleFunc(send, b.handle)
	mux.HandleFunc(ping, b.handle)
	s := &server{throttle: throttle, server: asynq.NewServerFromRedisClient(rdb, config)}
	if err := s.server.Start(mux); err != nil {
		throttle.Drain()
		return nil, err
	}
	return s, nil
}

// stop first has the tasks leave that wait in workers: asynq would wait for them.
func (s *server) stop() {
	s.throttle.Drain()
	s.server.Shutdown()
}
