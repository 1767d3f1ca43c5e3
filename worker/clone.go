package worker

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// errCloned says that a task goes on as its clone.
var errCloned = errors.New("worker: the task goes on as a clone")

// goOnAsClone has a task go on that must not be answered with an error: asynq archives one that has no retry left, whatever the
// error is. Its clone has another ID and takes the ticket; the task itself ends in success.
func (c *call) goOnAsClone(ctx context.Context, s standing, slot time.Time, putOff time.Duration) error {
	id, err := c.enqueueClone(ctx, putOff)
	if err != nil {
		return err
	}
	if c.inLine {
		// The clone is there before its ticket, so that no promoter takes it for gone. If this fails it comes as a new one.
		_, _ = c.join(ctx, member(c.cost, c.queue, id), s.place, slot, c.cost)
	}
	c.putOff, c.clone = putOff, id
	return errCloned
}

// enqueueClone enqueues a copy of the task that comes after putOff.
func (c *call) enqueueClone(ctx context.Context, putOff time.Duration) (id string, err error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	info, err := c.inspector.GetTaskInfo(c.queue, c.id)
	if err != nil {
		return "", c.failed(err)
	}
	opts := []asynq.Option{asynq.Queue(c.queue), asynq.MaxRetry(0), asynq.ProcessIn(putOff), asynq.Retention(info.Retention)}
	if info.Timeout > 0 {
		opts = append(opts, asynq.Timeout(info.Timeout))
	}
	if !info.Deadline.IsZero() {
		opts = append(opts, asynq.Deadline(info.Deadline))
	}
	task := asynq.NewTaskWithHeaders(c.task.Type(), c.task.Payload(), c.task.Headers(), opts...)
	for n := 1; ; n++ {
		id = cloneID(c.id, n)
		_, err := c.client.EnqueueContext(ctx, task, asynq.TaskID(id))
		if !errors.Is(err, asynq.ErrTaskIDConflict) { // of an earlier task with this ID
			return id, c.failed(err)
		}
	}
}

// cloneID is the ID of a task's n-th clone: "id~1", and that of a clone's first clone "id~2".
func cloneID(id string, n int) string {
	if i := strings.LastIndexByte(id, '~'); i > 0 {
		if before, err := strconv.Atoi(id[i+1:]); err == nil && before > 0 {
			id, n = id[:i], before+n
		}
	}
	return id + "~" + strconv.Itoa(n)
}
