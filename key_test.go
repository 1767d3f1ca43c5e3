package headgate

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/headgate-go/headgate/algos"
)

func TestStoredKeys(t *testing.T) {
	long := strings.Repeat("k", maxPath+1)
	hash := sha256.Sum256([]byte(long))
	for name, test := range map[string]struct{ path, want string }{
		"a plain key":            {escape("openai:rpm"), "hg:{openai:rpm}:tb"},
		"a key with parts":       {escape("sms") + "/" + escape("+4470001"), "hg:{sms/+4470001}:tb"},
		"a slash in a part":      {escape("sms") + "/" + escape("a/b"), "hg:{sms/a%2Fb}:tb"},
		"braces":                 {escape("{other}"), "hg:{%7Bother%7D}:tb"},
		"control characters":     {escape("a\x00\n\x7f"), "hg:{a%00%0A%7F}:tb"},
		"what looks escaped":     {escape("a%2Fb"), "hg:{a%252Fb}:tb"},
		"other bytes stay":       {escape("ключ \xff"), "hg:{ключ \xff}:tb"},
		"the longest path":       {long[1:], "hg:{" + long[1:] + "}:tb"},
		"a longer one is hashed": {long, "hg:{%#" + hex.EncodeToString(hash[:]) + "}:tb"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := storedKey("hg", test.path, "tb"); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// What a program keeps beside a limiter shares its hash slot, and is its own for each key.
func TestStoredKeyIsInTheLimitersSlot(t *testing.T) {
	store := Memory()
	l, err := New(store, "test", algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	shared, err := NewShared(store, "shared")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		limiter *Limiter
		want    string
	}{
		{l, "hg:{test}:x"},
		{l.For("a{b}", "c"), "hg:{test/a%7Bb%7D/c}:x"},
		{&shared.Limiter, "hg:{shared}:x"},
		{shared.For("a"), "hg:{shared}:x/a"},
		{l.For(""), ""},
		{&Limiter{}, ""},
	} {
		if got := c.limiter.StoredKey("x"); got != c.want {
			t.Errorf("StoredKey is %q, want %q", got, c.want)
		}
	}
}
