// Compare sends the same bursty traffic through each algorithm, and shows what becomes of it.
//
//	go -C examples run ./compare -out ../docs
//
// prints a table and writes a picture, as docs/compare.png and docs/compare.svg. Each algorithm is to admit about 20
// requests in 2 s, and each caller takes a slot that is at most 2 s away, or none:
//
//	limiter.Reserve(ctx, headgate.Within(2*time.Second))
//
// The minute of traffic passes in virtual time. No clock is read and nobody sleeps, so the numbers are the same every
// time. A Memory store keeps virtual time in the bubbles of testing/synctest, but those exist only in tests. So the
// program goes one step deeper: it asks each algorithm by the driver that the Memory store uses, at instants of its own
// choosing. The program's test sends the same traffic through Limiters in bubbles, and they give the same slots to the
// microsecond. Copy that to try your own traffic.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/headgate-go/headgate/algos"
)

const (
	limit    = 20 // requests that each algorithm is to admit in a window, in its own way
	window   = 2 * time.Second
	patience = 2 * time.Second // how far ahead a slot may be
)

// contenders are the algorithms, in the order of the table. A Funnel is a TokenBucket, by other names.
var contenders = []algos.Algorithm{
	algos.TokenBucket{Rate: limit, Per: window, Burst: limit / 2},
	algos.LeakyBucket{Rate: limit, Per: window, Capacity: limit},
	algos.FixedWindow{Limit: limit, Window: window},
	algos.CalendarWindow{Limit: limit, Every: algos.Every(window), Location: time.UTC},
	algos.SlidingLog{Limit: limit, Window: window},
	algos.SlidingWindow{Limit: limit, Window: window, Cells: 10},
	algos.WarmUp{Rate: limit, Per: window, Period: 4 * time.Second, ColdFactor: 3},
}

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

// options are what the flags say.
type options struct {
	out  string
	seed uint64
}

// parseOptions reads the flags. Usage that was asked for goes to stdout; the error is then flag.ErrHelp.
func parseOptions(args []string, stdout io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("compare", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is told once, by the caller
	f.StringVar(&o.out, "out", ".", "write compare.png and compare.svg to this `directory`")
	f.Uint64Var(&o.seed, "seed", 1, "another `number` makes other traffic, with the same scenes")

	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(stdout)
		f.Usage()
	}
	switch {
	case err != nil:
		return options{}, err
	case f.NArg() > 0:
		return options{}, fmt.Errorf("%q is no flag", f.Arg(0))
	}
	return o, nil
}

// run is the program.
func run(args []string, stdout io.Writer) error {
	o, err := parseOptions(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	arrivals := traffic(o.seed)
	outcomes, err := replayAll(arrivals)
	if err != nil {
		return err
	}
	if err := printTable(stdout, arrivals, outcomes); err != nil {
		return err
	}
	if err := writePicture(o.out, arrivals, outcomes); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "\ncompare.png and compare.svg are in %s\n", o.out)
	return err
}
