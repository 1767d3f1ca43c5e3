package trace

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

var update = flag.Bool("update", false, "write the tables of docs/observability.md anew")

const (
	page      = "../docs/observability.md"
	dashboard = "../docs/grafana.json"
)

// The tables of the documentation are those of the code. After a change: go test ./trace -run Documentation -update.
func TestTheDocumentationIsTheTable(t *testing.T) {
	text := read(t, page)
	for name, table := range map[string]string{"spans": spanTable(), "attributes": attributeTable(), "metrics": metricTable()} {
		begin, end := "<!-- the table of "+name+" -->\n", "<!-- its end -->"
		before, rest, ok := strings.Cut(text, begin)
		was, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			t.Fatalf("%s has no table of %s", page, name)
		}
		if was != table && !*update {
			t.Errorf("%s: the table of %s is\n%s\nwant\n%s\nwrite it by go test ./trace -run Documentation -update", page, name, was, table)
		}
		text = before + begin + table + end + after
	}
	if *update {
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// allMetrics are those of limiters and of tasks.
var allMetrics = slices.Concat(metrics, taskMetrics)

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func spanTable() string {
	var b strings.Builder
	b.WriteString("| Span | Kind | What it is | Attributes |\n|---|---|---|---|\n")
	for _, row := range spans {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", row.name, trace.ValidateSpanKind(row.kind), row.meaning, keyList(row.attributes))
	}
	for _, row := range taskSpans {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", row.name, trace.ValidateSpanKind(row.kind), row.meaning, keyList(row.attributes))
	}
	return b.String()
}

func attributeTable() string {
	var b strings.Builder
	b.WriteString("| Attribute | Unit or values | Meaning |\n|---|---|---|\n")
	for _, row := range attributes {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", row.key, row.unit, row.meaning)
	}
	return b.String()
}

func metricTable() string {
	var b strings.Builder
	b.WriteString("| Metric | Kind | Unit | What it counts | Attributes | In Prometheus |\n|---|---|---|---|---|---|\n")
	for _, row := range allMetrics {
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s | %s | `%s` |\n",
			row.name, row.kind, row.unit, row.meaning, keyList(row.attributes), prometheusNames(row)[0])
	}
	return b.String()
}

func keyList(keys []attribute.Key) string {
	short := make([]string, len(keys))
	for i, key := range keys {
		short[i] = "`" + strings.TrimPrefix(string(key), "headgate.") + "`"
	}
	return strings.Join(short, ", ")
}

// prometheusNames are what OpenTelemetry's exporters for Prometheus make of a metric, those of histograms without the
// parts that they are read by first.
func prometheusNames(row metricRow) []string {
	name := strings.ReplaceAll(row.name, ".", "_")
	switch row.unit {
	case "s":
		name += "_seconds"
	case "{permit}/s":
		name += "_per_second"
	}
	switch row.kind {
	case counter:
		return []string{name + "_total"}
	case histogram:
		return []string{name, name + "_bucket", name + "_sum", name + "_count"}
	case gauge, upDownCounter:
	}
	return []string{name}
}

// labelsOf are the labels of a metric of ours in Prometheus, by each of its names.
func labelsOf() map[string][]string {
	known := map[string][]string{
		// The one metric of others that a query needs: the semantic conventions' of an HTTP client.
		"http_client_request_duration_seconds_count": {"http_response_status_code", "server_address"},
	}
	for _, row := range allMetrics {
		labels := []string{"le"}
		for _, key := range row.attributes {
			labels = append(labels, strings.ReplaceAll(string(key), ".", "_"))
		}
		for _, name := range prometheusNames(row) {
			known[name] = labels
		}
	}
	return known
}

var (
	span     = regexp.MustCompile(`\[[^\]]*\]`)
	grouping = regexp.MustCompile(`\b(?:by|on|without|ignoring)\s*\(([^)]*)\)`)
	selector = regexp.MustCompile(`\b([a-z]+_[a-z_]+)\b(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
)

// checkQuery tells which metrics a query asks for, and what it asks for that does not exist.
func checkQuery(query string) (about, problems []string) {
	known := labelsOf()
	var labels []string
	for _, found := range selector.FindAllStringSubmatch(grouping.ReplaceAllString(span.ReplaceAllString(query, ""), ""), -1) {
		name, matchers := found[1], found[2]
		if name == "histogram_quantile" {
			continue
		}
		of, ok := known[name]
		if !ok {
			problems = append(problems, "there is no metric "+name)
			continue
		}
		about, labels = append(about, name), append(labels, of...)
		for _, m := range matcher.FindAllStringSubmatch(matchers, -1) {
			if !slices.Contains(of, m[1]) {
				problems = append(problems, name+" has no label "+m[1])
			}
		}
	}
	for _, found := range grouping.FindAllStringSubmatch(query, -1) {
		for label := range strings.SplitSeq(found[1], ",") {
			if !slices.Contains(labels, strings.TrimSpace(label)) {
				problems = append(problems, "nothing in it has the label "+label)
			}
		}
	}
	if len(about) == 0 {
		problems = append(problems, "it asks for nothing")
	}
	return about, problems
}

// The queries ask for what exists, and all that exists is on the dashboard.
func TestTheDashboardAsksForWhatExists(t *testing.T) {
	var board struct {
		Title  string
		Panels []struct {
			ID          int
			Type, Title string
			Description string
			Targets     []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, dashboard)), &board); err != nil {
		t.Fatal(err)
	}
	shown := map[string]bool{}
	ids := map[int]bool{}
	for _, panel := range board.Panels {
		if ids[panel.ID] || panel.Title == "" || panel.Description == "" || len(panel.Targets) == 0 {
			t.Errorf("panel %d %q: not whole", panel.ID, panel.Title)
		}
		ids[panel.ID] = true
		for _, target := range panel.Targets {
			about, problems := checkQuery(target.Expr)
			for _, problem := range problems {
				t.Errorf("%s: %s: %s", panel.Title, problem, target.Expr)
			}
			for _, name := range about {
				shown[name] = true
			}
		}
	}
	for _, variable := range board.Templating.List {
		if variable.Type != "query" {
			continue
		}
		inner, _ := strings.CutPrefix(strings.TrimSuffix(variable.Query, ")"), "label_values(")
		metric, label, _ := strings.Cut(inner, ", ")
		if _, problems := checkQuery("sum by (" + label + ") (" + metric + ")"); len(problems) > 0 {
			t.Errorf("variable %s: %v", variable.Name, problems)
		}
	}
	for _, row := range allMetrics {
		if !slices.ContainsFunc(prometheusNames(row), func(name string) bool { return shown[name] }) {
			t.Errorf("no panel shows %s", row.name)
		}
	}
}

func TestTheDocumentationAsksForWhatExists(t *testing.T) {
	for _, file := range []string{page, "../README.md"} {
		queries := 0
		for i, block := range strings.Split(read(t, file), "```") {
			query, ok := strings.CutPrefix(block, "promql\n")
			if !ok || i%2 == 0 {
				continue
			}
			for line := range strings.Lines(query) {
				queries++
				if _, problems := checkQuery(line); len(problems) > 0 {
					t.Errorf("%s: %v: %s", file, problems, line)
				}
			}
		}
		if queries == 0 {
			t.Errorf("%s has no query", file)
		}
		// What is named in the text, too.
		for _, name := range regexp.MustCompile(`\bheadgate\.[a-z_.]*[a-z]\b`).FindAllString(read(t, file), -1) {
			isMetric := slices.ContainsFunc(allMetrics, func(row metricRow) bool { return row.name == name })
			isAttribute := slices.ContainsFunc(attributes, func(row attributeRow) bool { return string(row.key) == name })
			if !isMetric && !isAttribute {
				t.Errorf("%s names %s, which is neither a metric nor an attribute", file, name)
			}
		}
	}
}

func TestAQueryForWhatDoesNotExistIsFound(t *testing.T) {
	for query, fine := range map[string]bool{
		`rate(headgate_requests_total{headgate_result="denied"}[5m])`:                               true,
		`sum by (le, headgate_limiter) (rate(headgate_wait_duration_seconds_bucket[5m]))`:           true,
		`rate(headgate_request_total[5m])`:                                                          false,
		`rate(headgate_requests[5m])`:                                                               false,
		`rate(headgate_requests_total{headgate_outcome="denied"}[5m])`:                              false,
		`rate(headgate_permits_total{error_type="timeout"}[5m])`:                                    false,
		`sum by (headgate_key) (rate(headgate_requests_total[5m]))`:                                 false,
		`sum by (db_operation_name) (rate(headgate_wait_duration_seconds_count[5m]))`:               false,
		`histogram_quantile(0.99, sum by (le) (rate(headgate_degraded_decisions_seconds_sum[5m])))`: false,
		`headgate_limit`:            false,
		`headgate_limit_per_second`: true,
	} {
		if _, problems := checkQuery(query); (len(problems) == 0) != fine {
			t.Errorf("%s: %v", query, problems)
		}
	}
}
