package headgate

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/internal/driver"
)

// Calls of one script that go in one pipeline are one command for many keys where one server has all keys: it reads less
// then, reads its clock once, and enters the script once. Each key is decided as if alone, and what fails at one of them is
// nothing to the others.

// maxPacked bounds the requests of a command for many keys, and so for how long it holds up Redis: about a millisecond.
const maxPacked = 64

// Whether one server has all keys.
const (
	unasked = iota
	together
	apart
)

// A letter is a command of a pipeline, of one parcel or of several.
type letter struct {
	parcels  []*parcel
	requests int
	cmd      once
}

// pack makes letters of those parcels for which somebody still waits: of several parcels, if they may share, or of one each.
func (o *outbox) pack(parcels []*parcel, share bool) (letters []*letter) {
	last := make(map[kind]*letter)
	for _, p := range parcels {
		if p.ctx.Err() != nil {
			p.fail(errUnsent)
			continue
		}
		var l *letter
		of, packable := p.kind()
		if packable && share {
			l = last[of]
		}
		if l == nil || l.requests+p.requests > maxPacked {
			l = &letter{cmd: p.cmd}
			letters = append(letters, l)
			last[of] = l
		}
		l.parcels, l.requests = append(l.parcels, p), l.requests+p.requests
	}
	for _, l := range letters {
		if len(l.parcels) > 1 {
			l.address("evalsha", o.many(l.parcels[0]).SHA1)
		}
	}
	return letters
}

// A kind is what parcels have in common that may share a letter: they are for one key each, and answer by integers.
type kind struct {
	sha1   string // of their script
	params string
}

func (p *parcel) kind() (of kind, ok bool) {
	if _, ok = p.cmd.Cmder.(*redis.IntSliceCmd); ok {
		of.sha1, ok = p.cmd.Args()[1].(string)
	}
	if ok = ok && p.cmd.Args()[0] == "evalsha"; ok {
		of.params = p.params.text
	}
	return of, ok
}

// many is the script for many keys of a parcel's script.
func (o *outbox) many(p *parcel) driver.Script {
	sha1 := p.cmd.Args()[1]
	script, found := o.scripts.Load(sha1)
	if !found {
		script, _ = o.scripts.LoadOrStore(sha1, driver.Script{Source: p.source}.Many())
	}
	return script.(driver.Script)
}

// address makes the command of several parcels.
func (l *letter) address(command, script string) {
	const key, clock = 3, 4 // where these are in a parcel's command
	asked := func(p *parcel) int64 {
		at, _ := p.cmd.Args()[clock].(int64) // if the clock is their own
		return at
	}
	// Nobody is decided as of an instant before he asked: leases count on it.
	latest := slices.MaxFunc(l.parcels, func(a, b *parcel) int { return cmp.Compare(asked(a), asked(b)) })
	common := latest.cmd.Args()[clock : clock+1+len(latest.params.args)]
	args := make([]any, 0, 8+len(common)+len(l.parcels)) // what equal requests take; others grow it
	args = append(args, command, script, len(l.parcels))
	for _, p := range l.parcels {
		args = append(args, p.cmd.Args()[key])
	}
	args = append(append(args, len(common)), common...)
	own := func(p *parcel) []any { return p.cmd.Args()[clock+len(common):] }
	for rest := l.parcels; len(rest) > 0; {
		same := own(rest[0])
		run := 1
		for run < len(rest) && slices.Equal(own(rest[run]), same) {
			run++
		}
		args = append(append(args, run, len(same)), same...)
		rest = rest[run:]
	}
	l.cmd = once{redis.NewIntSliceCmd(context.Background(), args...)}
}

// open hands out what was answered, and returns what is to be sent again: the script to a server that does not have it,
// and parcels one by one of a command that failed. That means that it did not run, since within it the errors of each key
// are caught; but one without a code of its own, an ERR, may come from anything in between, and after it ran.
func (o *outbox) open(l *letter) (again []*letter) {
	if len(l.parcels) == 1 {
		close(l.parcels[0].done)
		return nil
	}
	n, err := l.cmd.Cmder.(*redis.IntSliceCmd).Result()
	if redis.HasErrorPrefix(err, "NOSCRIPT") && l.cmd.Args()[0] == "evalsha" {
		l.address("eval", o.many(l.parcels[0]).Source)
		return []*letter{l}
	}
	if reply := replyOf(err); reply != nil && !errors.Is(err, redis.Nil) && reply.code != "ERR" {
		if redis.HasErrorPrefix(err, "CROSSSLOT") { // it has become a node of a cluster
			o.keys.Store(apart)
		}
		return o.pack(l.parcels, false)
	}
	for _, p := range l.parcels {
		if err == nil && (len(n) == 0 || max(n[0], -n[0]) >= int64(len(n))) {
			err = errReply
		}
		if err != nil {
			p.fail(err)
			continue
		}
		size := max(n[0], -n[0])
		own := n[1 : 1+size : 1+size]
		if n[0] < 0 {
			p.fail(errorOf(own))
		} else {
			p.cmd.Cmder.(*redis.IntSliceCmd).SetVal(own)
			close(p.done)
		}
		n = n[1+size:]
	}
	return nil
}

// errorOf is the error of one key's, by the bytes of its text, as Redis replies it of a script for one.
func errorOf(bytes []int64) error {
	text := make([]byte, len(bytes))
	for i, b := range bytes {
		text[i] = byte(b)
	}
	if strings.HasPrefix(string(text), userScript) { // in Redis 6
		return &scriptError{text: "ERR Error running script " + string(text)}
	}
	return &scriptError{text: string(text)}
}

// hello is what asks a server whether it has all keys. It is nil if the answer is known.
func (o *outbox) hello() *redis.Cmd {
	if o.keys.Load() != unasked {
		return nil
	}
	if _, one := o.client.(*redis.Client); !one {
		o.keys.Store(apart)
		return nil
	}
	return redis.NewCmd(context.Background(), "hello")
}

// meet reads the answer. Of itself a server says that it stands alone: a proxy that distributes keys over several does not,
// or does not take HELLO, and it might send a command for many keys to where the first one is.
func (o *outbox) meet(hello *redis.Cmd) {
	reply, err := hello.Result()
	if _, replied := errors.AsType[redis.Error](err); err != nil && !replied {
		return // and ask again
	}
	keys := int32(apart)
	switch reply := reply.(type) {
	case map[any]any: // RESP3
		if reply["mode"] == "standalone" {
			keys = together
		}
	case []any: // RESP2
		if i := slices.Index(reply, any("mode")); i >= 0 && i+1 < len(reply) && reply[i+1] == "standalone" {
			keys = together
		}
	}
	o.keys.CompareAndSwap(unasked, keys)
}
