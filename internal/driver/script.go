package driver

import (
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/headgate-go/headgate/algos"
)

//go:embed driver.lua
var driverLua string

//go:embed guard.lua
var guardLua string

//go:embed many.lua
var manyLua string

// A Script is the driver with one algorithm in it, as Redis runs it.
type Script struct {
	Source string
	SHA1   string // of Source, in hex: what EVALSHA takes
}

// NewScript puts the sections of the rule's Lua in the places that the driver marks for them; several of one name
// follow each other.
func NewScript(rule algos.Rule) (Script, error) {
	sections := make(map[string]string)
	for part := range strings.SplitSeq("\n"+rule.Lua(), "\n--@") {
		head, body, _ := strings.Cut(part, "\n")
		name, _, _ := strings.Cut(head, " ")
		sections[name] += body + "\n"
	}
	var source strings.Builder
	for line := range strings.Lines(driverLua) {
		name, marked := strings.CutPrefix(strings.TrimSpace(line), "--@")
		if !marked {
			source.WriteString(line)
			continue
		}
		body, ok := sections[name]
		if !ok && name != "functions" && name != "deny" && name != "repeat" { // few algorithms have these
			return Script{}, fmt.Errorf("headgate: the Lua of %s has no section %s", rule.Name(), name)
		}
		source.WriteString(body)
	}
	return ScriptOf(source.String()), nil
}

// Guarded is the script with guard.lua before it.
func (s Script) Guarded() Script { return ScriptOf(guardLua + s.Source) }

// Many is the script in many.lua, which reads the clock and what the calls read first.
func (s Script) Many() Script {
	functions, decide, _ := strings.Cut(s.Source, decides)
	decide = strings.Replace(decide, "call('TIME')", "clock", 1)
	read := "{}" // a sorted set is not read at once
	// GET, or GETRANGE of what begins the string.
	if at := strings.Index(decide, "call('GET"); at >= 0 {
		get := decide[at : at+1+strings.IndexByte(decide[at:], ')')]
		read = "redis.pcall('MGET', unpack(KEYS))"
		decide = strings.Replace(decide, get, "(read[KEYS[1]] or call('GET', KEYS[1]))", 1)
	}
	return ScriptOf(strings.NewReplacer("--@functions\n", functions, "--@driver\n", decides+decide, "{} --@read", read).Replace(manyLua))
}

// decides is where the driver begins to decide. Before it there is only what it does not do anew for each call.
const decides = "local now\n"

// ScriptOf is the script of a source.
func ScriptOf(source string) Script {
	sum := sha1.Sum([]byte(source))
	return Script{Source: source, SHA1: hex.EncodeToString(sum[:])}
}
