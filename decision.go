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
	// the microsecond. It is zero if and only if the request was allowed.
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
)
