package headgate

import (
	"context"
	_ "embed"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed terms.lua
var termsLua string

// A change is what is done to the terms of a shared limiter, in one step.
type change struct {
	kind   changeKind
	text   string        // the new terms
	mark   string        // and what names the state if it begins anew
	expire time.Duration // for changeExpire
}

// changeKind is what terms.lua calls it.
type changeKind string

const (
	changeNothing changeKind = "read"
	changeTry     changeKind = "try"
	changeSet     changeKind = "set"
	changeUpdate  changeKind = "update"
	changeExpire  changeKind = "expire"
	changePersist changeKind = "persist"
	changeDelete  changeKind = "delete"
)

// terms implements Store.
func (s *redisStore) terms(ctx context.Context, key string, c change) (text string, changed bool, err error) {
	args := []any{"eval", termsLua, 1, key, string(c.kind), c.text, c.mark}
	if c.kind == changeExpire {
		args[5] = c.expire.Milliseconds()
	}
	reply, err := bounded(ctx,
		func(ctx context.Context) ([]any, error) {
			cmd := redis.NewSliceCmd(ctx, args...)
			if c.kind == changeNothing {
				_ = s.client.Process(ctx, cmd)
			} else {
				_ = s.client.Process(ctx, once{cmd}) // a second time it would answer that nothing changed
			}
			return cmd.Result()
		},
		func([]any) {})
	if err != nil && c.kind == changeNothing {
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

// termsAt are those that count now. Under mu.
func (m *memoryStore) termsAt(key string) terms {
	t := m.shared[key]
	if t.expires != 0 && m.now() >= t.expires {
		delete(m.shared, key)
		return terms{}
	}
	return t
}

// terms implements Store, as terms.lua does.
func (m *memoryStore) terms(_ context.Context, key string, c change) (text string, changed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.termsAt(key)
	mark, had, _ := strings.Cut(t.text, " ")
	switch stored := t.text != ""; {
	case c.kind == changeExpire && stored:
		t.expires = m.now() + c.expire.Milliseconds()*1000
	case c.kind == changePersist:
		t.expires = 0
	case c.kind == changeDelete:
		delete(m.shared, key)
		return t.text, false, nil
	case c.kind == changeTry && !stored, c.kind == changeSet && had != c.text, c.kind == changeUpdate && stored && had != c.text:
		if c.kind != changeUpdate || firstWord(had) != firstWord(c.text) {
			mark = c.mark
		}
		t.text, changed = mark+" "+c.text, true
	}
	if t.text != "" {
		m.shared[key] = t
	}
	return t.text, changed, nil
}

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}
