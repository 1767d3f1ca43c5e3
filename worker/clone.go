package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"
)

// errMayBeCloned says that a task may go on as its clone: it must not run beside it.
var errMayBeCloned = errors.New("worker: the task has no retry left, and may go on as a clone; Redis did not say whether it is enqueued")

// cloneHeader is the header of a clone that tells which call has made it.
const cloneHeader = "headgate-clone"

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
	info, err := c.taskInfo(ctx, c.queue, c.id)
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
	mark := rand.Text()
	headers := maps.Clone(c.task.Headers())
	if headers == nil {
		headers = make(map[string]string)
	}
	headers[cloneHeader] = mark
	task := asynq.NewTaskWithHeaders(c.task.Type(), c.task.Payload(), headers, opts...)
	for n := 1; ; n++ {
		id = cloneID(c.id, n)
		_, err := c.client.EnqueueContext(ctx, task, asynq.TaskID(id))
		if err == nil {
			return id, nil
		}
		// If the reply was lost the clone may be there: then a conflict, too, may be with itself, since the client asks again.
		found, unknown := c.taskInfo(ctx, c.queue, id)
		switch {
		case unknown == nil && found.Headers[cloneHeader] == mark:
			return id, nil
		case unknown != nil && !isGone(unknown):
			return "", fmt.Errorf("%w: %w", errMayBeCloned, c.failed(err))
		case !errors.Is(err, asynq.ErrTaskIDConflict): // of an earlier task with this ID
			return "", c.failed(err)
		}
	}
}

// cloneID is the ID of a task's n-th clone: "id~1", and that of a clone's first clone "id~2".
func cloneID(id string, n int) string {
	original, before := parseCloneID(id)
	return original + "~" + strconv.Itoa(before+n)
}

// parseCloneID is the other way round; n is 0 for an ID that is no clone's.
func parseCloneID(id string) (original string, n int) {
	if i := strings.LastIndexByte(id, '~'); i > 0 {
		if n, err := strconv.Atoi(id[i+1:]); err == nil && n > 0 {
			return id[:i], n
		}
	}
	return id, 0
}
