package main

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"
)

//go:embed benchmarks.md.tmpl
var documentText string

// A report is all that docs/benchmarks.md says.
type report struct {
	results
	Rounds  int
	Took    time.Duration
	Date    string
	Machine []string
	Loads   [2]string // before and after
	Pinned  bool
	local   []row // of inProcess
	traced  []row
}

// fewestRounds is how many rounds a median and its quartiles need to mean something.
const fewestRounds = 10

// Number is how many rounds there were.
func (r report) Number() string { return count(r.Rounds, "round") }

// Limits are those of one key and of many.
func (report) Limits() string {
	text := func(l limit) string {
		return fmt.Sprintf("%s in %v with a burst of %s", grouped(int64(l.rate)), l.per, grouped(int64(l.burst)))
	}
	return fmt.Sprintf("of one key %s, of many keys %s", text(allowed), text(lasting))
}

// Few is whether there were fewer.
func (r report) Few() bool { return r.Rounds < fewestRounds }

// Bars is the table of what is aimed at.
func (r report) Bars() string {
	var b strings.Builder
	b.WriteString("| | beside | Headgate | ratio (quartiles) | bar | |\n|---|--:|--:|--:|--:|---|\n")
	for _, row := range r.bars() {
		limit, verdict := row.judge()
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", row.name,
			amount(row.peer.median(), row.unit), amount(row.ours.median(), row.unit), spread(row.ours.over(row.peer)), limit, verdict)
	}
	return b.String()
}

// Verdict counts the bars that are met, and names the others.
func (r report) Verdict() string {
	var missed []string
	rows := r.bars()
	for _, row := range rows {
		if _, verdict := row.judge(); verdict != met {
			missed = append(missed, row.name)
		}
	}
	text := fmt.Sprintf("%d of %d bars are met.", len(rows)-len(missed), len(rows))
	if len(missed) > 0 {
		text += " Not met: " + strings.Join(missed, "; ") + "."
	}
	return text
}

// names are those of all contenders.
func names() (all []string) {
	for _, c := range contenders() {
		all = append(all, c.String())
	}
	return all
}

// OneCaller is what one caller sees of each contender.
func (r report) OneCaller() string {
	return r.table(names(), column{"p50, µs", wait}, column{"allocations", allocations}, column{"bytes allocated", allocatedB})
}

// Server is what each contender asks of the server.
func (r report) Server() string {
	return r.table(names(),
		column{"allowed, µs", busyAllowed}, column{"refused, µs", busyRefused}, column{"64 callers of one key, µs", busyCrowd},
		column{"commands", commands}, column{"… 64 callers", commandsCrowd})
}

// SplitOver is the number of keys.
func (report) SplitOver() int { return splitOver }

// Split is what a limit costs that is kept in a cluster, in one key and in several.
func (r report) Split() string {
	return r.table(splits(), column{"decisions a second", splitRate}, column{"busiest primary, µs a decision", splitBusy})
}

// Uneven is the same at an uneven rate.
func (r report) Uneven() string {
	return r.table(names(), column{"allowed, µs", busyAllowedUneven}, column{"refused, µs", busyRefusedUneven})
}

// Memory is what a key takes on the server.
func (r report) Memory() string {
	return r.table(names(), column{"after one decision", keyFirst}, column{"after 1,000", keyBusy}, column{"`used_memory`, of 50,000", keyMemory})
}

// crowdTable shows a quantity of crowds.
func (r report) crowdTable(q quantity, crowds []crowd) string {
	var columns []column
	for _, c := range crowds {
		columns = append(columns, column{c.String(), at(q, c.String())})
	}
	return r.table(names(), columns...)
}

// CallersRate is decisions a second, by the number of callers.
func (r report) CallersRate() string { return r.crowdTable(perSecond, crowdsByCallers) }

// CallersP50 is a caller's median wait.
func (r report) CallersP50() string { return r.crowdTable(callerP50, crowdsByCallers) }

// CallersP99 is a caller's longer wait.
func (r report) CallersP99() string { return r.crowdTable(callerP99, crowdsByCallers) }

// KeysRate is by the number of keys.
func (r report) KeysRate() string {
	return r.crowdTable(perSecond, crowdsOfTable())
}

// KeysP50 is a caller's median wait, by the number of keys.
func (r report) KeysP50() string {
	return r.crowdTable(callerP50, crowdsOfTable())
}

// crowdsOfTable are those with many keys.
func crowdsOfTable() []crowd { return append(slices.Clone(crowdsByKeys), crowdOfAll) }

// Refusals is who is refused how fast.
func (r report) Refusals() string { return r.table(names(), column{"refusals a second", denied}) }

// Waiters is how often a waiter asks.
func (r report) Waiters() string {
	return r.table(names(), column{"script calls a permit", callsAPermit})
}

// GaveUp names those whose calls failed.
func (r report) GaveUp() string {
	var b strings.Builder
	for _, c := range append(slices.Clone(crowdsByCallers), crowdsOfTable()[1:]...) {
		for _, who := range names() {
			if failed := r.results[at(gaveUp, c.String())][who]; len(failed) > 0 && failed.median() > 0 {
				fmt.Fprintf(&b, "- %s, %v: %s %% of its calls.\n", who, c, spread(failed))
			}
		}
	}
	return b.String()
}

// LocalGaveUp names those whose calls failed in process.
func (r report) LocalGaveUp() string {
	var b strings.Builder
	for _, who := range localNames() {
		if failed := r.results[at(gaveUp, string(localEight))][who]; len(failed) > 0 && failed.median() > 0 {
			fmt.Fprintf(&b, "- %s, 8 goroutines of one key: %s %% of its calls.\n", who, spread(failed))
		}
	}
	return b.String()
}

func localNames() (all []string) {
	for _, c := range locals() {
		all = append(all, c.String())
	}
	return all
}

// InProcess is what limiters without Redis take.
func (r report) InProcess() string {
	return r.table(localNames(), column{"1 goroutine, ns", localOne}, column{"8 goroutines, ns", localEight},
		column{"allocations", localAllocs}, column{"bytes a key, of 100,000", localKey})
}

// Local is Headgate beside x/time/rate.
func (r report) Local() string { return pairTable("x/time/rate", "Headgate", r.local) }

// Traced is Headgate beside itself.
func (r report) Traced() string { return pairTable("Headgate", "traced", r.traced) }

// StateSizes says how the server's time grows with each load, and shows the times.
func (r report) StateSizes() string {
	var b strings.Builder
	b.WriteString("| by | grows | at | server time a call, µs |\n|---|---|--:|--:|\n")
	for _, l := range allLoads() {
		medians := make(series, len(l.sizes))
		for i, n := range l.sizes {
			medians[i] = r.results[at(l.of, fmt.Sprint(n))][headgateName].median()
		}
		name, verdict := l.name, growth(l.sizes, medians)
		for _, n := range l.sizes {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, verdict, grouped(int64(n)), spread(r.results[at(l.of, fmt.Sprint(n))][headgateName]))
			name, verdict = "", ""
		}
	}
	return b.String()
}

// Flat is by how much times grow at most that are called constant.
func (r report) Flat() string { return fmt.Sprintf("%.0f %%", 100*flat) }

// write writes the document and its pictures to a directory.
func (r report) write(directory string) error {
	document, err := template.New("benchmarks.md").Parse(documentText)
	if err != nil {
		return err
	}
	var text strings.Builder
	if err := document.Execute(&text, r); err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"benchmarks.md":     []byte(text.String()),
		"bench-callers.svg": r.callersPicture().svg(),
		"bench-keys.svg":    r.keysPicture().svg(),
		"bench-state.svg":   r.statePicture().svg(),
	} {
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// callersPicture is how decisions and waits grow with callers.
func (r report) callersPicture() picture {
	sizes := func(c crowd) int { return c.callers }
	return picture{"One key: decisions a second, and how long a caller waits, by the number of callers", []panel{
		r.crowdPanel("One key: decisions a second", "callers", perSecond, crowdsByCallers, sizes),
		r.crowdPanel("One key: a caller's p50, µs", "callers", callerP50, crowdsByCallers, sizes),
	}}
}

// keysPicture is how they grow with keys.
func (r report) keysPicture() picture {
	sizes := func(c crowd) int { return c.keys }
	return picture{"64 callers: decisions a second, and how long a caller waits, by the number of keys", []panel{
		r.crowdPanel("64 callers: decisions a second", "keys", perSecond, crowdsByKeys, sizes),
		r.crowdPanel("64 callers: a caller's p50, µs", "keys", callerP50, crowdsByKeys, sizes),
	}}
}

func (r report) crowdPanel(title, x string, q quantity, crowds []crowd, size func(crowd) int) panel {
	p := panel{title: title, x: x}
	for _, c := range crowds {
		p.ticks = append(p.ticks, size(c))
	}
	for _, who := range oursFirst() {
		c := curve{name: who}
		for _, crowd := range crowds {
			if s := r.results[at(q, crowd.String())][who]; len(s) > 0 && s.median() > 0 {
				c.xs, c.rounds = append(c.xs, size(crowd)), append(c.rounds, s)
			}
		}
		if len(c.xs) > 0 {
			p.curves = append(p.curves, c)
		}
	}
	return p
}

// oursFirst is the order of the curves.
func oursFirst() []string {
	all := []string{headgateName}
	for _, name := range names() {
		if name != headgateName {
			all = append(all, name)
		}
	}
	return all
}

// statePicture is how the server's time grows with a limiter's state.
func (r report) statePicture() picture {
	large, holes := loads()
	return picture{"Headgate: server time a call, by the size of a limiter's state", []panel{
		r.statePanel("permits owed, or requests in the log", large),
		r.statePanel("holes in a queue", holes),
	}}
}

func (r report) statePanel(x string, loads []load) panel {
	p := panel{title: "Server time a call, µs", x: x}
	for _, l := range loads {
		c := curve{name: l.name, xs: l.sizes}
		for _, n := range l.sizes {
			c.rounds = append(c.rounds, r.results[at(l.of, fmt.Sprint(n))][headgateName])
		}
		p.ticks, p.curves = l.sizes, append(p.curves, c)
	}
	return p
}
