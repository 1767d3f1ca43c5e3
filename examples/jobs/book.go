package main

import (
	"context"
	"sync"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headgate-go/headgate"
)

// A book is where everything is noted that happens to tasks, outside the limiter.
type book struct {
	options
	start time.Time

	mu     sync.Mutex
	tasks  map[string]*entry
	order  []string
	claims int
	left   int // limited tasks that are not done
}

// An entry is what happened to a task.
type entry struct {
	tenant   string
	enqueued time.Time
	starts   []time.Time
	bounces  int
	done     bool
}

func newBook(o options) *book {
	return &book{options: o, start: time.Now(), tasks: make(map[string]*entry)}
}

func (b *book) enqueued(id, tenant string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tasks[id] = &entry{tenant: tenant, enqueued: time.Now()}
	b.order = append(b.order, id)
	if tenant != ping {
		b.left++
	}
}

// handle is the work.
func (b *book) handle(ctx context.Context, _ *asynq.Task) error {
	b.note(ctx, func(e *entry) { e.starts = append(e.starts, time.Now()) })
	time.Sleep(takes)
	b.note(ctx, func(e *entry) {
		if !e.done && e.tenant != ping {
			b.left--
		}
		e.done = true
	})
	return nil
}

// watch sees each time that a task comes, and notes when it is sent away.
func (b *book) watch(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		err := next.ProcessTask(ctx, task)
		if err != nil {
			b.note(ctx, func(e *entry) { e.bounces++ })
		}
		return err
	})
}

func (b *book) note(ctx context.Context, f func(*entry)) {
	id, _ := asynq.GetTaskID(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.tasks[id]; e != nil { // not one that an earlier run left in the queue
		f(e)
	}
}

// hook counts the calls of the limiter that tasks make.
func (b *book) hook(ctx context.Context, op headgate.Operation) (context.Context, func(headgate.Outcome)) {
	if op.Verb == headgate.VerbReserve {
		b.mu.Lock()
		b.claims++
		b.mu.Unlock()
	}
	return ctx, nil
}

// wait returns when all tasks are done. Twice a second it calls the two functions.
func (b *book) wait(ctx context.Context, probe func(context.Context) error, show func()) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		b.mu.Lock()
		left := b.left
		b.mu.Unlock()
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			show()
			if err := probe(ctx); err != nil {
				return err
			}
		}
	}
}
