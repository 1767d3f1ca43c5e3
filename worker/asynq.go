package worker

import (
	"context"
	"errors"
	"time"

	"github.com/hibiken/asynq"
)

// queueKey is one of asynq's keys of a queue, as asynq's package internal/base makes it.
func queueKey(queue, name string) string { return "asynq:{" + queue + "}:" + name }

// taskKey is where asynq keeps a task.
func taskKey(queue, id string) string { return queueKey(queue, "t:"+id) }

// taskInfo asks asynq for a task. Its inspector knows listed queues only, and a client lists a queue when it enqueues there for
// the first time: not again if the queue was removed, or Redis emptied, since. So this lists the queue of a task that is there.
func (t *Throttle) taskInfo(ctx context.Context, queue, id string) (*asynq.TaskInfo, error) {
	info, err := t.inspector.GetTaskInfo(queue, id)
	if !errors.Is(err, asynq.ErrQueueNotFound) {
		return info, err
	}
	there, unknown := t.rdb.Exists(ctx, taskKey(queue, id)).Result()
	if unknown != nil {
		return nil, unknown
	}
	if there == 0 {
		return nil, err
	}
	if err := t.rdb.SAdd(ctx, "asynq:queues", queue).Err(); err != nil {
		return nil, err
	}
	return t.inspector.GetTaskInfo(queue, id)
}

// isGone tells whether an error of taskInfo says that there is no such task.
func isGone(err error) bool {
	return errors.Is(err, asynq.ErrTaskNotFound) || errors.Is(err, asynq.ErrQueueNotFound)
}

// whereabouts is what became of a task that was to be brought back.
type whereabouts int

const (
	taskBrought whereabouts = iota
	taskComing              // it is pending already
	taskActive              // it is in a worker: still, or again
	taskGone                // it will not come, or not for its ticket
	taskUnknown             // Redis failed
)

// bring has asynq run a task that waits for its slot. One that has ended meanwhile is left alone, as is one that waits for
// another reason.
func (t *Throttle) bring(ctx context.Context, member string) whereabouts {
	queue, id, ok := parseMember(member)
	if !ok {
		return taskGone
	}
	keys := []string{taskKey(queue, id), queueKey(queue, "pending"), queueKey(queue, "retry"), queueKey(queue, "scheduled")}
	state, err := t.scripts.bring.Run(ctx, t.rdb, keys, id, time.Now().UnixNano(), throttledText, cloneHeader).Text()
	switch {
	case err != nil:
		return taskUnknown
	case state == "brought":
		return taskBrought
	case state == "active":
		return taskActive
	case state == "pending":
		return taskComing
	default:
		return taskGone
	}
}
