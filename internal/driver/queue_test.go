package driver_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/headgate-go/headgate/algos"
)

// nginx's limit_req admits the same requests with nodelay and without: here a TokenBucket and a LeakyBucket. They may
// differ in the microsecond in which a permit comes, as the queue rounds its horizon up.
func TestALeakyBucketAdmitsWhomATokenBucketDoes(t *testing.T) {
	check(t, func(t *rapid.T) {
		b := buckets().Draw(t, "bucket")
		bucket := rule(t, b)
		queue := rule(t, algos.LeakyBucket{Rate: b.Rate, Per: b.Per, Capacity: b.Burst - 1})
		one, other := process{bucket.NewState()}, process{queue.NewState()}
		now := int64(epoch)
		for range rapid.IntRange(1, 40).Draw(t, "requests") {
			cost := int64(rapid.IntRange(1, b.Burst).Draw(t, "cost"))
			inBucket := one.ask(bucket, now, cost, 0).Wait
			if inQueue := other.ask(queue, now, cost, queue.Horizon(cost)).Wait; inBucket >= 0 != (inQueue >= 0) {
				if inBucket != -1 {
					t.Fatalf("the bucket says %d, the queue %d", inBucket, inQueue)
				}
				one.ask(bucket, now, cost, 1) // a microsecond ahead, so that both go on alike
			}
			now += steps(b).Draw(t, "pause")
		}
	})
}

// A departure is one interval after the last, at every rate: the whole queue, to the microsecond.
func TestAQueueDepartsEvenly(t *testing.T) {
	for _, rate := range []int{1, 3, 7, 1001, 2004, 5000, 999_983} {
		r := rule(t, algos.LeakyBucket{Rate: rate, Per: time.Second, Capacity: 10_000})
		p := process{r.NewState()}
		for i := range int64(10_001) {
			exact := (i*second + int64(rate) - 1) / int64(rate) // rounded up
			if wait := p.ask(r, epoch, 1, r.Horizon(1)).Wait; wait != exact {
				t.Fatalf("%d/s: number %d departs after %d µs, not %d", rate, i, wait, exact)
			}
		}
		if wait := p.ask(r, epoch, 1, r.Horizon(1)).Wait; wait >= 0 {
			t.Fatalf("%d/s: one too many waits", rate)
		}
	}
}
