package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A sender sends lines to the API, as many at a time as it has workers.
type sender struct {
	permit   func(context.Context) error // returns nil when one line may be sent
	client   *http.Client
	url      string
	workers  int
	progress progress

	sent    atomic.Int64
	refused atomic.Int64 // answers of 429
	failed  atomic.Int64 // lines that the API would not have, or that did not reach it
	once    sync.Once
	failure error // the first reason for one
}

// A result is what became of a batch.
type result struct {
	total, sent, refused, failed int
	elapsed                      time.Duration
	stopped                      error // why it ended early, if it did
	failure                      error // the first reason for a line to fail, if one did
}

// newClient keeps a connection for each worker. The default keeps two for each host, and so dials for most requests.
func newClient(workers int) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = workers, workers
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

// send sends the lines, and returns when all are sent, the context has ended, or the limiter cannot be asked.
func (s *sender) send(ctx context.Context, lines []string) result {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	queue := make(chan string, len(lines))
	for _, line := range lines {
		queue <- line
	}
	close(queue)

	start := time.Now()
	var workers sync.WaitGroup
	for range s.workers {
		workers.Go(func() {
			for line := range queue {
				// A line that fails is one line. Without the limiter nobody may send anything.
				if err := s.sendLine(ctx, line); err != nil {
					stop(err)
					return
				}
			}
		})
	}
	workers.Wait()

	return result{
		total: len(lines), sent: int(s.sent.Load()), refused: int(s.refused.Load()), failed: int(s.failed.Load()),
		elapsed: time.Since(start), stopped: context.Cause(ctx), failure: s.failure,
	}
}

// sendLine sends one line, as often as it takes. It returns an error only if no permit was had.
func (s *sender) sendLine(ctx context.Context, line string) error {
	for {
		if err := s.permit(ctx); err != nil {
			return err
		}
		refused, err := s.post(ctx, line)
		if !refused {
			s.count(err)
			return nil
		}
		s.refused.Add(1) // and again, by way of the limiter: each attempt is a request
	}
}

// count notes that a line was sent, or why it was not.
func (s *sender) count(err error) {
	if err != nil {
		s.failed.Add(1)
		s.once.Do(func() { s.failure = err })
		return
	}
	s.sent.Add(1)
	s.progress.step()
}

// post makes one request. Ctrl-C does not tear it off: its permit is spent, and a request cut short is one of which
// nobody can say whether it was carried out. The client's timeout bounds it.
func (s *sender) post(ctx context.Context, line string) (refused bool, err error) {
	request, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodPost, s.url, strings.NewReader(line))
	if err != nil {
		return false, err
	}
	request.Header.Set("Content-Type", "text/plain; charset=utf-8")
	response, err := s.client.Do(request)
	if err != nil {
		return false, err
	}
	_, _ = io.Copy(io.Discard, response.Body) // only a connection that was read to the end is used again
	_ = response.Body.Close()
	switch response.StatusCode {
	case http.StatusAccepted:
		return false, nil
	case http.StatusTooManyRequests:
		return true, nil
	default:
		return false, fmt.Errorf("the API answered %s", response.Status)
	}
}

// err tells what kept lines from being sent.
func (r result) err() error {
	unsent := r.total - r.sent
	switch {
	case unsent == 0:
		return nil
	case r.stopped != nil:
		return fmt.Errorf("%d of %d lines were not sent: %w", unsent, r.total, r.stopped)
	default:
		return fmt.Errorf("%d of %d lines were not sent: %w", unsent, r.total, r.failure)
	}
}
