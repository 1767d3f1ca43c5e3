package headgate

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
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
