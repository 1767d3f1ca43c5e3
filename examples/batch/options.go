package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"
)

// options are what the flags say.
type options struct {
	in      string
	workers int
	rate    int
	burst   int
	redis   string
	naive   bool

	api       string
	serve     bool
	listen    string
	tolerance time.Duration
}

// parseOptions reads the flags. Usage that was asked for goes to stdout; the error is then flag.ErrHelp.
func parseOptions(args []string, stdout io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("batch", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is told once, by the caller
	f.StringVar(&o.in, "in", "", "send the lines of this `file`, - for standard input; by default 400 of the program's own")
	f.IntVar(&o.workers, "workers", 16, "send with this many workers")
	f.IntVar(&o.rate, "rate", 40, "requests a second that the API admits")
	f.IntVar(&o.burst, "burst", 10, "requests that it admits at once after a quiet time")
	f.StringVar(&o.redis, "redis", "", "share the limit through the Redis at this `address`; by default it is kept in memory")
	f.BoolVar(&o.naive, "naive", false, "ask and poll instead of waiting for a slot")
	f.StringVar(&o.api, "api", "", "use the API at this `URL`; by default the program starts its own")
	f.BoolVar(&o.serve, "serve", false, "send nothing, but run the API for other copies")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "`address` of the program's own API")
	f.DurationVar(&o.tolerance, "tolerance", 50*time.Millisecond, "jitter of arrivals that the program's own API allows for")

	err := f.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		f.SetOutput(stdout)
		f.Usage()
	}
	if err != nil {
		return options{}, err
	}
	switch {
	case f.NArg() > 0:
		return options{}, fmt.Errorf("%q is no flag; a file to send is given with -in", f.Arg(0))
	case o.workers < 1 || o.rate < 1 || o.burst < 1:
		return options{}, errors.New("-workers, -rate and -burst must be at least 1")
	case o.tolerance < 0:
		return options{}, errors.New("-tolerance must not be negative")
	case o.serve && o.api != "":
		return options{}, errors.New("-serve runs an API and -api uses another's: only one of them can be given")
	}
	return o, nil
}
