package headgate

import "time"

// A Decision is the answer to one request.
type Decision struct {
	// Allowed is true if the permits were charged and may be used now. (In a Peek: if they would have been.)
	Allowed bool
	// Limit is the most permits that the limiter holds at any one time: the burst of a token bucket.
	Limit int
	// Remaining is how many permits one request is sure to be granted now. Where slots in the middle of the queue
	// were given up, a request for more may be granted too.
	Remaining int
	// RetryAfter is how long until the same request, with the same bound, is admitted if nobody else comes; exact to
	// the microsecond, but for a denial that the process remembers: see RememberDenials. It is zero if and only if the
	// request was allowed.
	RetryAfter time.Duration
	// ResetAfter is how long until the limiter is as new, with all its permits, if nobody else comes.
	ResetAfter time.Duration
	// Source says who decided.
	Source Source
}

// Source says where a decision was made.
type Source string

// The sources of a decision.
const (
	SourceRedis  Source = "redis"
	SourceMemory Source = "memory"
	// SourceRemembered is of denials that the process remembers: see RememberDenials.
	SourceRemembered Source = "remembered"
	// SourceLease is of permits that the process had taken before: see WithLease.
	SourceLease Source = "lease"
	SourceLocal Source = "local" // in process, by its share of the limit: see Local
	SourceOpen  Source = "open"  // by nobody: it was admitted without being counted: see FailOpen
)

// Degraded tells whether Redis was out, and a Fallback decided.
func (s Source) Degraded() bool { return s == SourceLocal || s == SourceOpen }

// Throttle is the decision as redis-cell's CL.THROTTLE reports it: limited is 1 if the request was refused, 0 if not;
// capacity and left are permits; retryAfter is in how many seconds the same request would be admitted, -1 if it was
// now; fullReset is in how many seconds all permits will be there. Seconds are rounded up, so that none of them ends too
// early. See algos.Funnel for how the two compare.
func (d Decision) Throttle() (limited, capacity, left, retryAfter, fullReset int64) {
	retryAfter = -1
	if !d.Allowed {
		limited, retryAfter = 1, seconds(d.RetryAfter)
	}
	return limited, int64(d.Limit), int64(d.Remaining), retryAfter, seconds(d.ResetAfter)
}

// seconds rounds up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
