package trace

import (
	"slices"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/headgate-go/headgate"
)

// A cache keeps what is built from a few names. It is safe for concurrent use.
type cache[K comparable, V any] struct {
	build func(K) V
	mu    sync.RWMutex
	built map[K]V
}

// mostCached bounds a cache, should a limiter's name hold what it must not: what is beyond is built each time.
const mostCached = 4096

func newCache[K comparable, V any](build func(K) V) *cache[K, V] {
	return &cache[K, V]{build: build, built: make(map[K]V)}
}

func (c *cache[K, V]) get(key K) V {
	c.mu.RLock()
	v, ok := c.built[key]
	c.mu.RUnlock()
	if ok {
		return v
	}
	v = c.build(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.built) < mostCached {
		c.built[key] = v
	}
	return v
}

// spanNames are what spans are alike in that have the same name.
type spanNames struct {
	verb                        headgate.Verb
	limiter, algorithm, command string
}

// A start is how such a span begins.
type start struct {
	name string
	opts []trace.SpanStartOption
}

func newStart(n spanNames) start {
	attributes := []attribute.KeyValue{keyLimiter.String(n.limiter)}
	switch {
	case n.verb == headgate.VerbCall:
		attributes = append(attributes, semconv.DBSystemNameRedis,
			semconv.DBOperationName(n.command), semconv.DBStoredProcedureName(n.algorithm))
	case n.algorithm != "":
		attributes = append(attributes, keyAlgorithm.String(n.algorithm))
	}
	row := spans[slices.IndexFunc(spans, func(r spanRow) bool { return r.verb == n.verb })]
	name := strings.NewReplacer("{limiter}", n.limiter, "{algorithm}", n.algorithm, "{command}", n.command).Replace(row.name)
	return start{name, []trace.SpanStartOption{trace.WithSpanKind(row.kind), trace.WithAttributes(attributes...)}}
}

// labels are what tells the series of a metric apart. Empty ones are left out.
type labels struct {
	limiter, algorithm string
	operation          headgate.Verb
	result             result
	source             headgate.Source
	errorType          string
	command            string
}

// series are the options that carry labels.
type series struct {
	add    []metric.AddOption
	record []metric.RecordOption
}

func newSeries(l labels) series {
	var attributes []attribute.KeyValue
	for _, a := range []attribute.KeyValue{
		keyLimiter.String(l.limiter), keyAlgorithm.String(l.algorithm), keyOperation.String(string(l.operation)),
		keyResult.String(string(l.result)), keySource.String(string(l.source)),
		semconv.ErrorTypeKey.String(l.errorType), semconv.DBOperationName(l.command),
	} {
		if a.Value.AsString() != "" {
			attributes = append(attributes, a)
		}
	}
	set := metric.WithAttributeSet(attribute.NewSet(attributes...))
	return series{[]metric.AddOption{set}, []metric.RecordOption{set}}
}
