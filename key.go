package headgate

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// A limiter's stored key is
//
//	prefix:{base/part/part}:suffix
//
// with the key given to New, the parts given to For, and the algorithm's suffix. What stands in the braces is all
// that Redis Cluster hashes, so everything of one limiter shares a slot. In base and parts, '%', '/', braces and
// control characters are written %XX: no key can move to another slot, and no two different lists of parts make the
// same key. A path longer than maxPath is stored as "%#" and its SHA-256 in hex, which no escaped path can be.
//
// All keys of a shared limiter lie in one slot: its terms have the suffix "rate", and the states the suffix
// "rate:mark:suffix/part/part".
const maxPath = 200

// StoredKey is a key for what a program keeps in Redis beside this limiter's state: "prefix:{…}:suffix", in the hash slot
// of the limiter's own keys, so that a script may use several of them on a cluster. The suffix must be none of an
// algorithm's or of Headgate's own; give it a prefix of yours. The key is made of the user's key: keep it private. It
// is empty for a limiter whose verbs all fail, as that of an empty part given to For.
func (l *Limiter) StoredKey(suffix string) string {
	switch {
	case l.store == nil || l.err != nil:
		return ""
	case l.shared != nil:
		return strings.TrimSuffix(l.shared.key, "rate") + suffix + shorten(l.parts)
	}
	return storedKey(l.prefix, l.path, suffix)
}

// storedKey is the key under which the limiter of a path keeps its state.
func storedKey(prefix, path, suffix string) string {
	return prefix + ":{" + shorten(path) + "}:" + suffix
}

// slotOf is what a stored key begins with, up to the end of what names its hash slot.
func slotOf(key string) string { return key[:strings.LastIndexByte(key, '}')+1] }

func shorten(path string) string {
	if len(path) > maxPath {
		sum := sha256.Sum256([]byte(path))
		path = "%#" + hex.EncodeToString(sum[:])
	}
	return path
}

// escape writes one element of a path.
func escape(s string) string {
	if !strings.ContainsFunc(s, mustEscape) {
		return s
	}
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; mustEscape(rune(c)) {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func mustEscape(r rune) bool {
	return r < 0x20 || r == 0x7f || r == '%' || r == '/' || r == '{' || r == '}'
}
