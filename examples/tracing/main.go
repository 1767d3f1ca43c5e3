// Tracing shows what a limiter's spans and metrics look like.
//
//	go -C examples run ./tracing
//
// needs nothing else: a Redis is embedded, and each trace is printed as a waterfall, a bar for each span against time, so
// that one sees what of a request was waiting for its slot, what was Redis, and what was the work. The metrics follow at
// the end. -redis takes a real Redis instead, and
//
//	OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 go -C examples run ./tracing
//
// sends both to a collector, by OTLP over HTTP, instead of printing them.
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

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "tracing:", err)
		os.Exit(1)
	}
}

// run is the program.
func run(ctx context.Context, args []string, stdout io.Writer) (err error) {
	f := flag.NewFlagSet("tracing", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is told once, by the caller
	addr := f.String("redis", "", "the Redis at this `address`; by default one is embedded")
	keys := f.Bool("keys", false, "show the users' keys on spans")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		f.SetOutput(stdout)
		f.Usage()
		return nil
	case err != nil:
		return err
	case f.NArg() > 0:
		return fmt.Errorf("%q is no flag", f.Arg(0))
	}

	if *addr == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return err
		}
		defer embedded.Close()
		*addr = embedded.Addr()
	}
	rdb := redis.NewClient(&redis.Options{Addr: *addr})
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil {
		return err
	}

	t, err := newTelemetry(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close(context.WithoutCancel(ctx), stdout)) }()
	s, err := newService(headgate.Redis(rdb), t, *keys)
	if err != nil {
		return err
	}
	return s.serve(ctx)
}
