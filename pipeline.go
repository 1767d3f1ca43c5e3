package headgate

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Calls for different keys that are made at the same time share connections: while a few are under way, those that come
// meanwhile go together in one pipeline, as soon as one of them has ended, and share commands in it where they can (see
// pack). Who comes alone notices nothing.

const (
	// fewCalls is how many calls and pipelines are under way before others wait for one of them: one that Redis works
	// on, and one that is on its way.
	fewCalls = 2
	// maxPipeline bounds the calls of a pipeline.
	maxPipeline = 128
)

// An outbox sends commands, alone or in pipelines.
type outbox struct {
	client redis.UniversalClient
	alone  bool // send each by itself, whatever is under way

	mu       sync.Mutex
	underWay int       // since others were overtaken
	turn     uint64    // how often some were
	progress time.Time // when a call began or ended last, if there were a few or somebody waited
	waiting  []*parcel
	overdue  *time.Timer // while somebody waits: sends them if what is under way takes too long

	keys    atomic.Int32 // unasked, together or apart: whether one server has all of them
	scripts sync.Map     // driver.Script for many keys, by the SHA1 of the one for one key
}

// A parcel is a command that waits to be sent.
type parcel struct {
	ctx      context.Context
	cmd      once
	source   string        // of the script
	params   *params       // among the command's arguments
	requests int           // that the command carries
	done     chan struct{} // closed when it has been answered, or has failed
}

// fail is the end of a parcel that has no answer.
func (p *parcel) fail(err error) {
	p.cmd.SetErr(err)
	close(p.done)
}

// outboxFor is where the calls for a key go. In a cluster or a ring each server has its own, so that one that hangs holds
// up nobody who asks another.
func (s *redisStore) outboxFor(ctx context.Context, key string) *outbox {
	if s.outbox.alone {
		return &s.outbox
	}
	var server *redis.Client
	var err error
	switch client := s.client.(type) {
	case *redis.ClusterClient:
		server, err = client.MasterForKey(ctx, key)
	case *redis.Ring:
		server, err = client.GetShardClientForKey(key)
	}
	if server == nil || err != nil { // sending it tells why
		return &s.outbox
	}
	name := server.Options().Addr
	o, found := s.outboxes.Load(name)
	if !found { // there are no more than there have been servers
		o, _ = s.outboxes.LoadOrStore(name, &outbox{client: s.client})
	}
	return o.(*outbox)
}

// process sends a command once, and returns when it has its answer or its error.
func (o *outbox) process(ctx context.Context, script scriptCall, cmd redis.Cmder) {
	defer func() { o.lookAround(cmd.Err()) }()
	if o.alone {
		_ = o.client.Process(ctx, once{cmd}) // the error is the command's too
		return
	}
	o.mu.Lock()
	// What is under way for too long has met a dead connection, and holds up nobody else.
	if o.underWay >= fewCalls && time.Since(o.progress) < patience {
		p := &parcel{ctx, once{cmd}, script.source, script.params, max(1, len(script.callers)), make(chan struct{})}
		o.waiting = append(o.waiting, p)
		if o.overdue == nil {
			o.overdue = time.AfterFunc(patience, o.rescue)
		}
		o.mu.Unlock()
		<-p.done
		return
	}
	if o.underWay >= fewCalls {
		o.overtake()
	}
	o.count(1)
	turn := o.turn
	o.mu.Unlock()
	defer func() { // whatever becomes of this goroutine
		if batch := o.next(turn); batch != nil {
			go o.flush(batch, turn)
		}
	}()
	_ = o.client.Process(ctx, once{cmd})
}

// count notes that calls have begun or ended. Under mu.
func (o *outbox) count(begun int) {
	o.underWay += begun
	if o.underWay >= fewCalls || len(o.waiting) > 0 { // otherwise nobody looks at it
		o.progress = time.Now()
	}
}

// overtake has those who are under way counted no more: they have taken too long. Under mu.
func (o *outbox) overtake() { o.turn, o.underWay = o.turn+1, 0 }

// lookAround has a cluster's client ask who serves which slots if a server did not answer: a replica may have taken its
// place. Of itself the client asks when it is told that a slot has moved, which a dead server does not say, and else once
// a minute.
func (o *outbox) lookAround(err error) {
	cluster, ok := o.client.(*redis.ClusterClient)
	if !ok || err == nil || errors.Is(err, context.Canceled) || errors.Is(err, errUnsent) {
		return
	}
	if _, answered := errors.AsType[redis.Error](err); !answered {
		cluster.ReloadState(context.Background()) // on a goroutine of its own, five times a second at most
	}
}

// rescue sends those who have waited for too long, beside what is under way, as many as a pipeline carries. Others wait for
// that one, and no longer than for any.
func (o *outbox) rescue() {
	o.mu.Lock()
	o.overdue = nil
	stuck := len(o.waiting) > 0 && time.Since(o.progress) >= patience
	if stuck {
		o.overtake()
		o.count(1)
	}
	turn := o.turn
	if len(o.waiting) > 0 { // next stops it if the pipeline has room for all
		o.overdue = time.AfterFunc(patience-time.Since(o.progress), o.rescue)
	}
	o.mu.Unlock()
	if stuck {
		if batch := o.next(turn); batch != nil {
			o.flush(batch, turn)
		}
	}
}

// next takes those who wait now that a call has ended, as many as a pipeline carries.
func (o *outbox) next(turn uint64) (batch []*parcel) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.turn != turn {
		return nil // it was overtaken
	}
	n := min(len(o.waiting), maxPipeline)
	if n == 0 {
		o.count(-1)
		return nil
	}
	o.count(0) // another one for the one that has ended
	batch, o.waiting = o.waiting[:n:n], o.waiting[n:]
	if len(o.waiting) == 0 && o.overdue != nil {
		o.overdue.Stop()
		o.overdue = nil
	}
	return batch
}

// flush sends a pipeline, and others for those who have come meanwhile.
func (o *outbox) flush(batch []*parcel, turn uint64) {
	for ; batch != nil; batch = o.next(turn) {
		for letters := o.pack(batch, o.keys.Load() == together); len(letters) > 0; {
			letters = o.send(letters)
		}
		if len(batch) > 1 {
			runtime.Gosched() // those who were answered may have more to ask, which goes together too
		}
	}
}

// send sends letters in one pipeline, and returns what is to be sent again.
func (o *outbox) send(letters []*letter) (again []*letter) {
	pipe := o.client.Pipeline()
	hello := o.hello()
	if hello != nil {
		_ = pipe.Process(context.Background(), hello)
	}
	for _, l := range letters {
		_ = pipe.Process(context.Background(), l.cmd)
	}
	// Each command has its own error. If none has one and there is an error all the same, the server has refused the greeting
	// of a new connection, and nothing was sent.
	cmds, err := pipe.Exec(context.Background())
	greeted := err == nil || slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Err() != nil })
	if !greeted {
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
	}
	if hello != nil && greeted {
		o.meet(hello)
	}
	for _, l := range letters {
		again = append(again, o.open(l)...)
	}
	return again
}
