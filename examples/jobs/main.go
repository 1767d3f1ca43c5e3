// Jobs runs a thousand asynq tasks of three tenants through a limit for each, on two servers.
//
//	go -C examples run ./jobs
//
// needs nothing else: a Redis is embedded. A table shows what each tenant's tasks do; at the end it says how well the limit
// was used and kept, how often tasks were sent away, and how late they came. -redis takes a real Redis instead, of which it
// uses the asynq queue "headgate-jobs". The embedded one does all of this too, but lives in this process: other processes
// cannot share it, it is gone at the end, and it says nothing about speed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "jobs:", err)
		os.Exit(1)
	}
}

// options are what the flags say.
type options struct {
	addr        string
	tasks       int
	rate, burst int // of each tenant, per second
}

func parseOptions(args []string, stdout io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("jobs", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is told once, by the caller
	f.StringVar(&o.addr, "redis", "", "the Redis at this `address`; by default one is embedded")
	f.IntVar(&o.tasks, "tasks", 1000, "tasks, half of them the first tenant's")
	f.IntVar(&o.rate, "rate", 25, "tasks a second of each tenant")
	f.IntVar(&o.burst, "burst", 5, "tasks of a tenant that may start at once after a quiet time")
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(stdout)
		f.Usage()
	case err != nil:
	case f.NArg() > 0:
		err = fmt.Errorf("%q is no flag", f.Arg(0))
	case o.tasks < len(tenants) || o.rate < 1 || o.burst < 1:
		err = fmt.Errorf("-tasks must be at least %d, -rate and -burst at least 1", len(tenants))
	}
	return o, err
}

// run is the program. It returns an error unless every task ran, once.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	o, err := parseOptions(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.addr == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer embedded.Close()
		o.addr = embedded.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: o.addr})
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return err
	}

	b := newBook(o)
	limiter, err := headgate.New(headgate.Redis(rdb), "examples:jobs",
		algos.TokenBucket{Rate: o.rate, Per: time.Second, Burst: o.burst}, headgate.WithHook(b.hook))
	if err != nil {
		return err
	}
	for range 2 {
		s, err := startServer(rdb, limiter, b)
		if err != nil {
			return err
		}
		defer s.stop()
	}
	enqueuer, err := newEnqueuer(rdb, b)
	if err != nil {
		return err
	}
	t := newTable(stdout, b)
	err = enqueuer.enqueue(ctx, o.tasks)
	if err == nil {
		err = b.wait(ctx, enqueuer.probe, t.print)
	}
	t.print()
	return errors.Join(err, b.report(stdout))
}
