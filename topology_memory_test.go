package headgate_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

var update = flag.Bool("update", false, "write the table of docs/operations.md anew")

// The documented memory of a key is what Redis 7.0 says, give or take a quarter, and others say a third more at most. To write
// it anew: go test -run DocumentedMemory -update.
func TestTheDocumentedMemory(t *testing.T) {
	const page, begin, end = "docs/operations.md", "<!-- the table of memory -->\n", "<!-- its end -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	was, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no table of memory", page)
	}
	server := redistest.Start(t)
	ours := strings.Contains(server.Admin().Info(t.Context(), "server").Val(), "redis_version:7.0.")
	table, now := memoryTable(t, server)
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+table+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	i := 0
	for _, word := range strings.Fields(was) {
		var documented int
		if _, err := fmt.Sscanf(word, "%d", &documented); err != nil {
			continue
		}
		if i < len(now) && (documented < now[i]*3/4 || ours && documented > now[i]*5/4) {
			t.Errorf("%d bytes are documented, and there are %d", documented, now[i])
		}
		i++
	}
	if i != len(now) {
		t.Errorf("%d figures are documented, want %d:\n%s", i, len(now), table)
	}
}

func memoryTable(t *testing.T, server *redistest.Server) (table string, figures []int) {
	t.Helper()
	ctx := context.Background()
	store, admin := headgate.Redis(server.Client()), server.Admin()
	var b strings.Builder
	b.WriteString("| Bytes a key | Used once | In use | Waited for | Given up |\n|---|---|---|---|---|\n")
	for _, algorithm := range []algos.Algorithm{
		algos.TokenBucket{Rate: 100, Per: time.Minute, Burst: 100},
		algos.Funnel{Capacity: 100, Rate: 100, Per: time.Minute},
		algos.LeakyBucket{Rate: 100, Per: time.Minute, Capacity: 200},
		algos.FixedWindow{Limit: 100, Window: time.Minute},
		algos.CalendarWindow{Limit: 100, Every: algos.Day, Location: time.UTC},
		algos.SlidingLog{Limit: 100, Window: time.Minute},
		algos.SlidingWindow{Limit: 100, Window: time.Minute, Cells: 10},
		algos.WarmUp{Rate: 100, Per: time.Minute, Period: time.Minute, ColdFactor: 3},
	} {
		l, err := headgate.New(store, strings.Repeat("k", 20), algorithm)
		if err != nil {
			t.Fatal(err)
		}
		admin.FlushAll(ctx)
		var held []*headgate.Reservation
		take := func(n int) {
			for range n {
				r, err := l.Reserve(ctx)
				if err != nil && !errors.Is(err, headgate.ErrDenied) {
					t.Fatal(err)
				}
				held = append(held, r)
			}
		}
		fmt.Fprintf(&b, "| `%s` |", strings.TrimPrefix(fmt.Sprintf("%T", algorithm), "algos."))
		for _, step := range []func(){
			func() { take(1) }, func() { take(99) }, func() { take(100) },
			func() {
				for i := 101; i < len(held); i += 2 {
					cancel(t, held[i])
				}
			},
		} {
			step()
			bytes := int(admin.MemoryUsage(ctx, admin.Keys(ctx, "hg:*").Val()[0], 0).Val())
			figures = append(figures, bytes)
			fmt.Fprintf(&b, " %d |", bytes)
		}
		b.WriteString("\n")
	}
	return b.String(), figures
}
