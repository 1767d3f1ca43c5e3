package headgate

import (
	"context"
	_ "embed"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/internal/driver"
)

//go:embed terms.lua
var termsLua string

var termsScript = driver.ScriptOf(termsLua)

// A change is what is done to the terms of a shared limiter, in one step.
type change struct {
	verb   Verb          // VerbRate to read them
	text   string        // the new terms; for VerbDelete, where to go on
	mark   string        // what names the state if it begins anew
	expire time.Duration // for VerbExpire

	observer
}

// terms implements Store.
func (s *redisStore) terms(ctx context.Context, key string, c change) (text string, changed bool, err error) {
	args := []any{"evalsha", termsScript.SHA1, 1, key, string(c.verb), c.text, c.mark}
	if c.verb == VerbExpire {
		args[5] = c.expire.Milliseconds()
	}
	run := func(ctx context.Context, _ scriptCall, args []any) ([]any, error) {
		cmd := redis.NewSliceCmd(ctx, args...)
		if c.verb == VerbRate {
			_ = s.client.Process(ctx, cmd)
		} else { // a second time it would answer that nothing changed, or delete what was set up meanwhile
			_ = s.client.Process(ctx, once{cmd})
		}
		return cmd.Result()
	}
	reply, err := bounded(ctx, func(ctx context.Context) (reply []any, err error) {
		if s.circuit.watched() {
			first := s.circuit.begin()
			defer func() { s.circuit.end(first, c.observer, key, err) }()
		}
		return eval(ctx, scriptCall{observer: &c.observer, source: termsScript.Source}, args, run)
	})
	if err != nil && c.verb == VerbRate {
		return "", false, &StoreError{Op: "terms", Err: redact(err, key)}
	}
	if err != nil {
		return "", false, storeError("terms", key, err)
	}
	if len(reply) == 2 {
		text, isText := reply[0].(string)
		if n, isNumber := reply[1].(int64); isText && isNumber {
			return text, n == 1, nil
		}
	}
	return "", false, storeError("terms", key, errReply)
}

// terms are what a Memory store keeps of a shared limiter.
type terms struct {
	text    string
	expires int64 // µs since 1970; 0 for never
}

// termsAt are those that count at an instant. Under termsMu.
func (m *memoryStore) termsAt(key string, now int64) terms {
	t := m.shared[key]
	if t.expires != 0 && now >= t.expires {
		return terms{}
	}
	return t
}

// terms implements Store, as terms.lua does.
func (m *memoryStore) terms(_ context.Context, key string, c change) (text string, changed bool, err error) {
	m.termsMu.Lock()
	defer m.termsMu.Unlock()
	if c.verb == VerbDelete {
		delete(m.shared, key)
		for i := range m.shards {
			m.shards[i].forgetAll(key + ":")
		}
		return "0", true, nil
	}
	now := m.now()
	t := m.termsAt(key, now)
	mark, had, _ := strings.Cut(t.text, " ")
	set := t.text != ""
	switch {
	case c.verb == VerbExpire && set:
		t.expires = now + c.expire.Milliseconds()*1000
	case c.verb == VerbClearExpire:
		t.expires = 0
	case c.verb == VerbTrySetRate && !set, c.verb == VerbSetRate && had != c.text, c.verb == VerbUpdateRate && set && had != c.text:
		if c.verb != VerbUpdateRate || firstWord(had) != firstWord(c.text) {
			mark = c.mark
		}
		t.text, changed = mark+" "+c.text, true
	}
	if t.text != "" {
		if !set {
			m.sweepTerms(now)
		}
		m.shared[key] = t
	}
	return t.text, changed, nil
}

// sweepTerms is sweep for terms that have expired. Under termsMu.
func (m *memoryStore) sweepTerms(now int64) {
	looked := 0
	for key := range m.shared {
		if m.termsAt(key, now).text == "" {
			delete(m.shared, key)
		}
		if looked++; looked == 4 {
			return
		}
	}
}

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}
