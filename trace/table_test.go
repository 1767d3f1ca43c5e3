package trace

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// do calls every verb so that every outcome is among them, whether the store answers or not.
func do(l *headgate.Limiter) {
	ctx := context.Background()
	ended, end := context.WithCancel(ctx)
	end()
	_ = l.Reset(ctx)
	_, _ = l.AllowN(ctx, 2)
	_, _ = l.AllowN(ctx, 1000)
	_, _ = l.Allow(ended)
	_, _ = l.Allow(ctx)
	_, _ = l.Peek(ctx)
	_ = l.Wait(ctx)
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_ = l.Wait(short)
	_, _ = l.Reserve(ctx, headgate.Within(0))
	if r, err := l.Reserve(ctx); err == nil {
		leaving, leave := context.WithCancel(ctx)
		time.AfterFunc(time.Millisecond, leave)
		_ = r.Wait(leaving)
	}
	_ = l.Reset(ctx)
}

// All that is sent is in the table, and all that is in the table is sent.
func TestWhatIsSentIsWhatTheTableSays(t *testing.T) {
	r := newRig(t)
	server := redistest.Start(t)
	rdb := server.Client(func(o *redis.Options) { o.DialerRetries, o.MaxRetries = 1, -1 })
	every := twice
	every.Per = 200 * time.Millisecond
	l := r.limiter(headgate.Redis(rdb), every, WithScriptCalls(), WithKey(func(key string) string { return key }))
	do(l)
	if _, err := l.AllowN(context.Background(), 2); err != nil {
		t.Fatal(err)
	}
	held, err := l.ReserveN(context.Background(), 2)
	if err != nil {
		t.Fatal(err)
	}
	rdb.Del(context.Background(), "hg:{secret}:tb")
	rdb.LPush(context.Background(), "hg:{secret}:tb", "foreign")
	rdb.Expire(context.Background(), "hg:{secret}:tb", time.Minute)
	_ = held.Cancel(context.Background())
	for range 2 { // a Reset would mend it
		_, _ = l.Peek(context.Background())
		_ = l.Wait(context.Background())
		_, _ = l.Reserve(context.Background())
		_, _ = l.Allow(context.Background())
	}
	shared := func() {
		ctx := context.Background()
		s, err := headgate.NewShared(headgate.Redis(rdb), "secret", headgate.WithName("vendor"),
			r.instrument(WithScriptCalls(), WithKey(func(key string) string { return key })))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // its algorithm is known the second time
			_, _ = s.TrySetRate(ctx, every)
			_, _ = s.Allow(ctx)
			_, _ = s.SetRate(ctx, every)
			_, _ = s.UpdateRate(ctx, algos.TokenBucket{})
			_, _ = s.Rate(ctx)
			_ = s.Expire(ctx, time.Hour)
			_ = s.ClearExpire(ctx)
			_ = s.Delete(ctx)
		}
	}
	shared()
	server.Kill()
	shared()
	local, err := headgate.New(headgate.Redis(rdb), "secret", every, headgate.WithName("vendor"),
		headgate.WithFallback(headgate.Local(1)), r.instrument())
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); time.Since(began) < 10*time.Second && r.collect()["headgate.outages"].Data == nil; {
		time.Sleep(30 * time.Millisecond)
		_, _ = local.Allow(context.Background())
	}
	if err := local.Close(context.Background()); err != nil {
		t.Error(err)
	}
	ended := func() bool { // the outage, of which the hook is told by another goroutine
		return slices.ContainsFunc(r.exporter.GetSpans(), func(s tracetest.SpanStub) bool { return s.Name == "outage vendor" })
	}
	for began := time.Now(); time.Since(began) < 10*time.Second && !ended(); {
		time.Sleep(time.Millisecond)
	}
	_ = l.Reset(context.Background())

	t.Run("spans", func(t *testing.T) { compareSpans(t, r) })
	t.Run("metrics", func(t *testing.T) { compareMetrics(t, r) })
}

func compareSpans(t *testing.T, r *rig) {
	seen := map[headgate.Verb]map[attribute.Key]bool{}
	for _, s := range r.exporter.GetSpans() {
		verb, _, _ := strings.Cut(s.Name, " ")
		i := slices.IndexFunc(spans, func(row spanRow) bool {
			return string(row.verb) == verb && row.name == verb+" {limiter}" && s.Name == verb+" vendor" ||
				row.verb == headgate.VerbCall && (verb == "EVALSHA" || verb == "EVAL") && (s.Name == verb+" token_bucket" || s.Name == verb+" terms")
		})
		if i < 0 {
			t.Errorf("there is no row for %q", s.Name)
			continue
		}
		row := spans[i]
		if s.SpanKind != row.kind {
			t.Errorf("%q is of kind %v, want %v", s.Name, s.SpanKind, row.kind)
		}
		if seen[row.verb] == nil {
			seen[row.verb] = map[attribute.Key]bool{}
		}
		for _, a := range s.Attributes {
			seen[row.verb][a.Key] = true
			if !slices.Contains(row.attributes, a.Key) {
				t.Errorf("%q has %s, which its row does not", s.Name, a.Key)
			}
		}
	}
	for _, row := range spans {
		for _, key := range row.attributes {
			if !seen[row.verb][key] {
				t.Errorf("no %s was seen with %s", row.verb, key)
			}
		}
	}
}

func compareMetrics(t *testing.T, r *rig) {
	collected := r.collect()
	for _, row := range metrics {
		m, ok := collected[row.name]
		delete(collected, row.name)
		if !ok {
			t.Errorf("%s was not sent", row.name)
			continue
		}
		kind := metricKind("")
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			if kind = upDownCounter; data.IsMonotonic {
				kind = counter
			}
		case metricdata.Gauge[float64]:
			kind = gauge
		case metricdata.Histogram[float64]:
			kind = histogram
			if !slices.Equal(data.DataPoints[0].Bounds, row.bounds) {
				t.Errorf("%s has the bounds %v", row.name, data.DataPoints[0].Bounds)
			}
		}
		if kind != row.kind || m.Unit != row.unit || m.Description != row.meaning {
			t.Errorf("%s: %s in %s, %q; want %+v", row.name, kind, m.Unit, m.Description, row)
		}
		seen := map[attribute.Key]bool{}
		for _, p := range points(m) {
			for _, a := range p.attributes.ToSlice() {
				seen[a.Key] = true
				if !slices.Contains(row.attributes, a.Key) {
					t.Errorf("%s has %s, which its row does not", row.name, a.Key)
				}
			}
		}
		for _, key := range row.attributes {
			if !seen[key] {
				t.Errorf("%s was not seen with %s", row.name, key)
			}
		}
	}
	for name := range collected {
		t.Errorf("there is no row for %s", name)
	}
}

// Every verb has a span, and every attribute that anything has is explained.
func TestTheTableIsWhole(t *testing.T) {
	var verbs []headgate.Verb
	used := map[attribute.Key]bool{}
	for _, row := range spans {
		verbs = append(verbs, row.verb)
		for _, key := range row.attributes {
			used[key] = true
		}
	}
	for _, row := range taskSpans {
		for _, key := range row.attributes {
			used[key] = true
		}
	}
	for _, row := range allMetrics {
		for _, key := range row.attributes {
			used[key] = true
		}
		if (row.kind == histogram) != (row.bounds != nil) || !slices.IsSorted(row.bounds) {
			t.Errorf("%s: bounds %v", row.name, row.bounds)
		}
	}
	for _, row := range attributes {
		if !used[row.key] {
			t.Errorf("nothing has %s", row.key)
		}
		delete(used, row.key)
	}
	for key := range used {
		t.Errorf("%s is not explained", key)
	}
	for _, row := range allMetrics {
		first, last := 0.0001, 10.0 // of calls
		if row.name == "headgate.wait.duration" || row.name == "headgate.throttle.delay" {
			first, last = 0.005, 300
		}
		if row.kind == histogram && (row.bounds[0] != first || row.bounds[len(row.bounds)-1] != last) {
			t.Errorf("%s: bounds %v", row.name, row.bounds)
		}
	}
	if want := []headgate.Verb{
		headgate.VerbAllow, headgate.VerbReserve, headgate.VerbWait, headgate.VerbSleep,
		headgate.VerbPeek, headgate.VerbCancel, headgate.VerbReset, headgate.VerbOutage,
		headgate.VerbTrySetRate, headgate.VerbSetRate, headgate.VerbUpdateRate, headgate.VerbRate,
		headgate.VerbExpire, headgate.VerbClearExpire, headgate.VerbDelete, headgate.VerbCall,
	}; !slices.Equal(verbs, want) {
		t.Errorf("the rows are for %v, want %v", verbs, want)
	}
}
