package headgate

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate-go/headgate/algos"
)

// A key for each of a hundred thousand users, a few of whom are active at a time.
func TestMemoryForgetsLimitersThatAreAsNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := Memory()
		l, err := New(store, "users", algos.TokenBucket{Rate: 1, Per: time.Second, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100_000 { // a hundred of them are live at any time
			if _, err := l.For(fmt.Sprint(i)).Allow(context.Background()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if kept := len(store.(*memoryStore).entries); kept > 1000 {
			t.Errorf("%d entries for a hundred live limiters", kept)
		}
		for i := range 1000 { // neither a peek nor a refusal makes an entry
			if _, err := l.For("peek", fmt.Sprint(i)).Peek(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if kept := len(store.(*memoryStore).entries); kept > 1000 {
			t.Errorf("%d entries after peeking", kept)
		}
	})
}
