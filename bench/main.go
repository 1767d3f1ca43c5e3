// Command bench measures Headgate beside its peers, over Redis and in process, in one run on one machine, and writes the
// comparison as docs/benchmarks.md, with pictures. README.md says how to run it.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/headgate-go/headgate/bench/internal/program"
	"github.com/headgate-go/headgate/internal/redistest"
)

func main() {
	rounds := flag.Int("rounds", fewestRounds, fmt.Sprintf("how often everything is measured; fewer than %d are for trying", fewestRounds))
	out := flag.String("out", "../docs", "write benchmarks.md and its pictures to this `directory`")
	flag.Parse()
	if *rounds < 1 || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	p := program.New()
	defer p.End()
	if err := run(p, *rounds, *out); err != nil {
		p.Fatal(err)
	}
}

func run(p *program.Program, rounds int, out string) error {
	rdb := redistest.Start(p).Client()
	began := time.Now()
	about, err := machine(rdb)
	if err != nil {
		return err
	}
	r := report{results: make(results), Rounds: rounds, Date: began.Format(time.DateOnly), Machine: about}
	r.Loads[0] = loadAverage()
	for _, part := range []struct {
		name string
		take func() error
	}{
		{"one caller", func() (err error) {
			r.Pinned, err = pinned(rdb, func() error { return oneCaller(rdb, rounds, r.results) })
			return err
		}},
		{"server time", func() error { return serverTime(rdb, rounds, r.results) }},
		{"server time by the size of the state", func() error { return byStateSize(rdb, rounds, r.results) }},
		{"bytes a key", func() error { return keyBytes(rdb, rounds, r.results) }},
		{"waiters", func() error { return waiting(rdb, rounds, r.results) }},
		{"refusals", func() error { return refusals(rdb, rounds, r.results) }},
		{"in process", func() error { return inProcessPeers(rounds, r.results) }},
		{"in process, beside x/time/rate", func() (err error) {
			r.local, err = inProcess(rounds)
			return err
		}},
		{"tracing", func() (err error) {
			r.traced, err = tracing(rounds)
			return err
		}},
		{"crowds", func() error { return throughput(rdb, rounds, r.results) }},
		{"a limit split over a cluster", func() error { return split(p, rounds, r.results) }},
	} {
		since := time.Now()
		if err := part.take(); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", part.name, time.Since(since).Round(100*time.Millisecond))
	}
	r.Loads[1], r.Took = loadAverage(), time.Since(began).Round(time.Second)
	fmt.Println(r.Bars())
	fmt.Println(r.Verdict())
	return r.write(out)
}
