package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/worker"
)

// A setup is what a server process is told.
type setup struct {
	Addr        string
	Rate, Burst int
	Recipe      bool
	Forwarder   time.Duration
}

// limited and probe are the types of task: those in question, and those that are not limited.
const (
	limited = "limited"
	probe   = "probe"
)

// takes is how long a task takes.
const takes = 5 * time.Millisecond

// serve runs a server until stdin ends. It writes a line for each thing that happens, at once and unbuffered, so that
// nothing is lost if it is killed: "start ID µs", "bounce ID", "claim".
func serve(config string, stdin io.Reader, out io.Writer) error {
	var s setup
	if err := json.Unmarshal([]byte(config), &s); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: s.Addr})
	defer rdb.Close()
	events := make(chan string, 1000)
	go func() {
		for e := range events {
			_, _ = io.WriteString(out, e)
		}
	}()
	limiter, err := headgate.New(headgate.Redis(rdb), "bench",
		algos.TokenBucket{Rate: s.Rate, Per: time.Second, Burst: s.Burst},
		headgate.WithHook(func(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
			if op.Verb == headgate.VerbReserve || op.Verb == headgate.VerbAllow {
				events <- "claim\n"
			}
			return ctx, nil
		}))
	if err != nil {
		return err
	}

	server := asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel, DelayedTaskCheckInterval: s.Forwarder}
	var limit asynq.MiddlewareFunc
	drain := func() {}
	if s.Recipe {
		limit = recipe(limiter, &server)
	} else {
		throttle, err := worker.New(limiter, rdb,
			worker.WithTasks(func(_ context.Context, task *asynq.Task) bool { return task.Type() == limited }),
			worker.WithKey(func(_ context.Context, task *asynq.Task) string { return string(task.Payload()) }))
		if err != nil {
			return err
		}
		if err := throttle.Configure(&server); err != nil {
			return err
		}
		limit, drain = throttle.Middleware, throttle.Drain
	}

	mux := asynq.NewServeMux()
	mux.Use(func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			err := next.ProcessTask(ctx, task)
			if err != nil {
				id, _ := asynq.GetTaskID(ctx)
				events <- "bounce " + id + "\n"
			}
			return err
		})
	}, limit)
	run := func(ctx context.Context, _ *asynq.Task) error {
		at := time.Now().UnixMicro()
		id, _ := asynq.GetTaskID(ctx)
		events <- fmt.Sprintf("start %s %d\n", id, at)
		time.Sleep(takes)
		return nil
	}
	mux.HandleFunc(limited, run)
	mux.HandleFunc(probe, run)
	asynqServer := asynq.NewServerFromRedisClient(rdb, server)
	if err := asynqServer.Start(mux); err != nil {
		return err
	}
	events <- "ready\n"
	_, _ = io.Copy(io.Discard, stdin)
	drain()
	asynqServer.Shutdown()
	return nil
}

// recipe is what asynq's wiki shows: over the limit, an error that is no failure, and a random delay.
func recipe(limiter *headgate.Limiter, server *asynq.Config) asynq.MiddlewareFunc {
	server.IsFailure = func(err error) bool { return !strings.HasPrefix(err.Error(), "rate limited") }
	server.RetryDelayFunc = func(int, error, *asynq.Task) time.Duration { return time.Duration(rand.IntN(10)) * time.Second }
	return func(next asynq.Handler) asynq.Handler {
		return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
			if task.Type() == limited {
				d, err := limiter.For(string(task.Payload())).Allow(ctx)
				if err != nil {
					return err
				}
				if !d.Allowed {
					return fmt.Errorf("rate limited")
				}
			}
			return next.ProcessTask(ctx, task)
		})
	}
}
