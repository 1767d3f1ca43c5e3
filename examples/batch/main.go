// Batch sends the lines of a file through an HTTP API that admits only so many requests a second.
//
//	go -C examples run ./batch
//
// needs nothing else: the limit is kept in memory, and the API is one that the program starts itself, on loopback. That
// API knows nothing of Headgate. It enforces its limit on its own, with a 429 for what is beyond it, so the number of
// 429s tells how well the limit was kept, and the time beside the ideal how well it was used.
//
// With -redis several copies of the program share one limit. They then need one API too:
//
//	go -C examples run ./batch -serve -listen 127.0.0.1:7800
//	go -C examples run ./batch -api http://127.0.0.1:7800 -redis 127.0.0.1:6379   # in as many terminals as you like
//
// With -naive the workers do without slots: they ask, and ask again until they are let through.
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
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "batch:", err)
		os.Exit(1)
	}
}

// run is the program. It returns an error unless every line was sent.
func run(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	o, err := parseOptions(args, stdout)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if o.serve {
		return serve(ctx, o, stdout)
	}
	lines, err := readLines(ctx, o.in, stdin)
	if err != nil {
		return err
	}

	store, closeStore := openStore(o.redis)
	defer closeStore()
	var calls ledger
	limiter, err := newLimiter(store, o, &calls)
	if err != nil {
		return err
	}

	a, err := openAPI(o)
	if err != nil {
		return err
	}
	defer a.close()
	client := newClient(o.workers)
	defer client.CloseIdleConnections()

	s := &sender{permit: limiter.Wait, client: client, url: a.url, workers: o.workers}
	if o.naive {
		s.permit = poll(limiter)
	}
	s.progress = newProgress(stdout, len(lines))
	result := s.send(ctx, lines)
	s.progress.close()
	_, err = io.WriteString(stdout, report(o, result, &calls, a.meter))
	return errors.Join(result.err(), err)
}

// serve runs the API for other copies of the program, until the context ends.
func serve(ctx context.Context, o options, stdout io.Writer) error {
	a, err := startAPI(o.listen, newMeter(o))
	if err != nil {
		return err
	}
	defer a.close()
	_, err = fmt.Fprintf(stdout, "POST to %s: %d a second, up to %d at once, until Ctrl-C\n", a.url, o.rate, o.burst)
	if err != nil {
		return err
	}
	<-ctx.Done()
	_, err = fmt.Fprintf(stdout, "the API %s\n", a.meter.summary())
	return err
}
