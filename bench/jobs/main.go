// Command jobs measures how limited asynq tasks come back: Headgate's throttle, and asynq's usual recipe. README.md in
// the directory above says what the columns mean.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"

	"github.com/headgate-go/headgate/bench/internal/program"
)

func main() {
	only := flag.String("only", "", "run only the scenarios whose names contain this `text`")
	server := flag.String("server", "", "be a server of this `configuration`; for the program's own use")
	flag.Parse()
	if *server != "" {
		if err := serve(*server, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "jobs: server:", err)
			os.Exit(1)
		}
		return
	}
	p := program.New()
	defer p.End()
	fmt.Println(loadAverage())
	fmt.Println()
	printHeader()
	for _, s := range scenarios() {
		if strings.Contains(s.name, *only) {
			f, err := s.run(context.Background(), p)
			if err != nil {
				p.Fatal(err)
			}
			printFigures(s, f)
		}
	}
	fmt.Println()
	fmt.Println(loadAverage())
}

// loadAverage says how busy the machine is; figures of a busy one tell little.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "load average unknown"
	}
	return "load average " + strings.Join(strings.Fields(string(text))[:3], " ")
}
