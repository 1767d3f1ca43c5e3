// Command bench measures Headgate beside redis_rate and golang.org/x/time/rate, and with tracing beside without, in one run
// on one machine, and prints the comparison as Markdown. README.md says how it measures and what the rows mean.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/headgate-go/headgate/bench/internal/program"
	"github.com/headgate-go/headgate/internal/redistest"
)

// fewestRounds is how many rounds a median and its quartiles need to mean something.
const fewestRounds = 10

func main() {
	rounds := flag.Int("rounds", 15, fmt.Sprintf("how often everything is measured, at least %d", fewestRounds))
	flag.Parse()
	if *rounds < fewestRounds || flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	p := program.New()
	defer p.End()
	if err := run(p, *rounds); err != nil {
		p.Fatal(err)
	}
}

func run(p *program.Program, rounds int) error {
	rdb := redistest.Start(p).Client()
	about, err := machine(rdb)
	if err != nil {
		return err
	}
	fmt.Printf("%s; %d rounds\n\n", about, rounds)

	var shared []row
	for _, measure := range []func(client, int) ([]row, error){latency, throughput, allocations, serverTime, keyBytes} {
		rows, err := measure(rdb, rounds)
		if err != nil {
			return err
		}
		shared = append(shared, rows...)
	}
	printTable("redis_rate", "Headgate", shared)

	batched, err := alone(rdb, rounds)
	if err != nil {
		return err
	}
	printTable("unbatched", "batched", batched)

	local, err := inProcess(rounds)
	if err != nil {
		return err
	}
	printTable("x/time/rate", "Headgate", local)

	traced, err := tracing(rounds)
	if err != nil {
		return err
	}
	printTable("Headgate", "traced", traced)
	return nil
}
