package headgate

import (
	"context"
	"time"

	"github.com/headgate-go/headgate/internal/driver"
)

// A queue is those who wait for a call to end.
type queue struct {
	batches []*batch    // none is empty; the last one takes more callers
	overdue *time.Timer // serves them if the call takes too long
}

// A batch is requests that go in one call, each of a caller whose goroutine waits for it.
type batch struct {
	*room                 // until it has ended: under the lines' mu while it is in line, then of who serves it
	done    chan struct{} // closed when the call has ended, with:
	replies driver.Replies
	err     error

	// Under the lines' mu:
	turn    uint64 // of its call
	phase   phase
	returns int          // requests that give back
	left    map[int]bool // callers who have left in this phase, by their numbers
	places  []int        // in the call, by the callers' numbers; nil if they are the same
}

// A room is where the requests of a batch and their callers are. It is used again.
type room struct {
	requests []driver.Request
	callers  []context.Context
}

// A phase is what has become of a batch.
type phase int

const (
	inLine  phase = iota
	sent          // on its way to Redis
	settled       // by the answer: nobody leaves any more
)

// next takes the first batch in which somebody is left, and returns the others, if there are any.
func (q *queue) next() (b *batch, others *queue) {
	if q == nil {
		return nil, nil
	}
	q.overdue.Stop()
	for len(q.batches) > 0 && b == nil {
		if q.batches[0].depart() {
			b = q.batches[0]
		}
		q.batches = q.batches[1:]
	}
	if len(q.batches) > 0 {
		others = q
	}
	return b, others
}

// last is the batch in which there is room.
func (l *lines) last(q *queue) *batch {
	n := len(q.batches)
	if n == 0 || q.batches[n-1].full() {
		q.batches = append(q.batches, l.newBatch())
		n++
	}
	return q.batches[n-1]
}

func (l *lines) newBatch() *batch {
	r, ok := l.rooms.Get().(*room)
	if !ok {
		r = new(room)
	}
	return &batch{room: r, done: make(chan struct{})}
}

// leaveRoom is the end of a batch: another may use its room.
func (l *lines) leaveRoom(b *batch) {
	clear(b.callers)
	b.requests, b.callers = b.requests[:0], b.callers[:0]
	l.rooms.Put(b.room)
	b.room = nil
}

// add takes a caller in.
func (b *batch) add(ctx context.Context, request driver.Request) (number int) {
	if request.Cost < 0 {
		b.returns++
	}
	b.requests = append(b.requests, request)
	b.callers = append(b.callers, ctx)
	return len(b.requests) - 1
}

// full tells whether nobody else is taken in. To find the place for what is given back, among much else that was, takes
// Redis four times as long as a decision.
func (b *batch) full() bool { return len(b.requests)+3*b.returns >= maxBatch }

// depart keeps the requests of those who are still there: nobody asks for one who has left. It tells whether there are any.
func (b *batch) depart() bool {
	b.phase = sent
	if b.left == nil {
		return true
	}
	requests, callers, left := b.requests, b.callers, b.left
	b.requests, b.callers, b.left = requests[:0], callers[:0], nil
	b.places = make([]int, len(requests))
	for number := range requests {
		if !left[number] {
			b.places[number] = len(b.requests)
			b.requests = append(b.requests, requests[number])
			b.callers = append(b.callers, callers[number])
		}
	}
	clear(callers[len(b.callers):])
	return len(b.requests) > 0
}

// place is that of a caller's request in the call.
func (b *batch) place(number int) int {
	if b.places == nil {
		return number
	}
	return b.places[number]
}
