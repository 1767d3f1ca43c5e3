package driver_test

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
)

// What is equal, and takes something, is sent once: whatever else is one by one.
func TestEqualRequestsGoTogether(t *testing.T) {
	one, two := driver.Request{Cost: 1, Bound: 7}, driver.Request{Cost: 2, Bound: 7}
	ask := driver.Request{Cost: 1, Bound: driver.Ask}
	back := driver.Request{Cost: -1, Receipt: algos.Receipt{Period: 3, Number: 4}}
	for _, row := range []struct {
		name     string
		requests []driver.Request
		args     []any
	}{
		{"a lone request", []driver.Request{one}, []any{int64(1), int64(7)}},
		{"three that are equal", []driver.Request{two, two, two}, []any{0, 3, int64(2), int64(7)}},
		{"another cost", []driver.Request{one, two}, []any{int64(1), int64(7), int64(2), int64(7)}},
		{"another bound", []driver.Request{one, {Cost: 1}}, []any{int64(1), int64(7), int64(1), int64(0)}},
		{"those that only ask", []driver.Request{ask, ask}, []any{int64(1), int64(-1), int64(1), int64(-1)}},
		{"what is given back twice", []driver.Request{back, back}, []any{int64(-1), int64(3), int64(4), int64(-1), int64(3), int64(4)}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if args := driver.AppendArgs(nil, row.requests); !reflect.DeepEqual(args, row.args) {
				t.Errorf("%v, want %v", args, row.args)
			}
		})
	}
}

// Whatever stands between the client and the server, an answer that is none is not read as one.
func TestAnAnswerOfAnotherLengthIsNone(t *testing.T) {
	bucket, log := rule(t, algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 5}), rule(t, algos.SlidingLog{Limit: 5, Window: time.Second})
	one, two := driver.Request{Cost: 1}, driver.Request{Cost: 2}
	for _, row := range []struct {
		name     string
		integers int
		rule     algos.Rule
		requests []driver.Request
		ok       bool
	}{
		{"five for one", 5, bucket, []driver.Request{one}, true},
		{"ten for two", 10, bucket, []driver.Request{one, one}, true},
		{"four for equal ones", 4, bucket, []driver.Request{one, one}, true},
		{"four for one", 4, bucket, []driver.Request{one}, false},
		{"four for different ones", 4, bucket, []driver.Request{one, two}, false},
		{"four of an algorithm that never answers together", 4, log, []driver.Request{one, one}, false},
		{"five for two", 5, bucket, []driver.Request{one, one}, false},
		{"nothing", 0, bucket, []driver.Request{one}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			if _, ok := driver.ReadReplies(make([]int64, row.integers), row.rule, row.requests); ok != row.ok {
				t.Errorf("ok = %v", ok)
			}
		})
	}
}

// A command for many keys decides them at one instant, which it asks for once, and reads them at once where they are strings.
func TestManyKeysAreReadAtOnce(t *testing.T) {
	for _, s := range subjects {
		script, err := driver.NewScript(rule(t, s.draw.Example(1)))
		if err != nil {
			t.Fatal(err)
		}
		many := script.Many().Source
		if n := strings.Count(many, "'TIME'"); n != 1 {
			t.Errorf("%s: the clock is read in %d places", s.name, n)
		}
		if n, want := strings.Count(many, "'MGET'"), strings.Count(script.Source, "call('GET', KEYS[1])"); n != want || strings.Contains(many, "--@") {
			t.Errorf("%s: %d places read all keys, want %d", s.name, n, want)
		}
	}
}
