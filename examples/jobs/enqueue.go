package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// tenants have shares of the tasks, in tenths.
var tenants = []struct {
	name   string
	tenths int
}{{"ann", 5}, {"bob", 3}, {"cyd", 2}}

// An enqueuer enqueues tasks, and notes them before they can run.
type enqueuer struct {
	client *asynq.Client
	book   *book
	run    string // keeps the IDs of two runs apart
	pings  int
}

func newEnqueuer(rdb redis.UniversalClient, b *book) (*enqueuer, error) {
	e := &enqueuer{client: asynq.NewClientFromRedisClient(rdb), book: b, run: time.Now().Format("150405.000")}
	return e, e.client.Ping()
}

// enqueue enqueues so many tasks, the tenants' mixed.
func (e *enqueuer) enqueue(ctx context.Context, tasks int) error {
	for i := range tasks {
		tenant := tenants[0].name
		for place, j := i%10, 0; j < len(tenants); j++ {
			if tenant = tenants[j].name; place < tenants[j].tenths {
				break
			}
			place -= tenants[j].tenths
		}
		if err := e.one(ctx, send, tenant, fmt.Sprintf("%s-%d", tenant, i)); err != nil {
			return err
		}
	}
	return nil
}

// probe enqueues a task that is not limited.
func (e *enqueuer) probe(ctx context.Context) error {
	e.pings++
	return e.one(ctx, ping, ping, fmt.Sprintf("ping-%d", e.pings))
}

func (e *enqueuer) one(ctx context.Context, kind, tenant, name string) error {
	id := e.run + "-" + name
	e.book.enqueued(id, tenant)
	_, err := e.client.EnqueueContext(ctx, asynq.NewTask(kind, []byte(tenant)), asynq.Queue(queue), asynq.TaskID(id))
	return err
}
