package algos

// A Tail decides by one number: where a line ends. That is the theoretical arrival time of the generic cell rate algorithm
// (ITU-T I.371), kept exactly: it counts parts of a microsecond since 1970, as many in each as the rate in lowest terms has
// permits, so that a permit takes a whole number of them. A Tail is immutable and safe for concurrent use.
type Tail struct {
	pace              // rate: parts of a µs; per: parts of a permit
	room, burst int64 // parts of a full bucket, and its permits
}

// A Tailed is a Rule whose limiters a Tail may decide for. Its States are Enders.
type Tailed interface {
	Rule
	// Tail is nil for a rate that has too many parts.
	Tail() *Tail
}

// An Ender is a State for which a Tail may decide while nothing matters but where its line ends.
type Ender interface {
	State
	// End is where the saved line ends. It is not ok if that does not tell all, or the line has another pace than the Tail.
	End(tail *Tail) (end int64, ok bool)
	// SetEnd saves where it ends after the Tail has taken permits from there on.
	SetEnd(tail *Tail, end int64)
}

// maxParts bounds the parts of a µs: instants until 2255, and all that is owed then, are below 2^63 of them.
const maxParts = 1 << 9

// Take is where the line ends once cost permits are taken at the instant now, and for how long, in microseconds, they have
// to wait for that. It is not ok if the line has drained: the next permit begins another.
func (t *Tail) Take(end, now, cost int64) (next, wait int64, ok bool) {
	instant := now * t.rate
	next = end + cost*t.per
	if beyond := next - t.room - instant; beyond > 0 {
		wait = t.Until(beyond)
	}
	return next, wait, end > instant-t.rate
}

// Status is what is left at the instant now by a line that ends there.
func (t *Tail) Status(end, now int64) (s Status) {
	owed := end - now*t.rate
	if left := t.room - owed; left > 0 {
		s.Remaining = min(left/t.per, t.burst)
	}
	if owed > 0 {
		s.ResetAfter = t.Until(owed)
	}
	return s
}

// Until is how many microseconds so many parts are, rounded up. They are not negative.
func (t *Tail) Until(parts int64) (us int64) {
	if t.rate == 1 {
		return parts
	}
	return (parts + t.rate - 1) / t.rate
}
