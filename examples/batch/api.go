package main

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// An api stands for the vendor's. Only its limit is real.
type api struct {
	url    string       // where messages are posted
	meter  *meter       // nil if another copy of the program runs it
	server *http.Server // likewise
}

// openAPI finds the API of another copy, or starts one.
func openAPI(o options) (*api, error) {
	if o.api == "" {
		return startAPI(o.listen, newMeter(o))
	}
	target, err := url.JoinPath(o.api, path)
	return &api{url: target}, err
}

// startAPI serves an API at a TCP address until it is closed.
func startAPI(addr string, m *meter) (*api, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: messages(m), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(listener) }() // its error is that it was closed
	return &api{url: "http://" + listener.Addr().String() + path, meter: m, server: server}, nil
}

func (a *api) close() {
	if a.server != nil {
		_ = a.server.Close()
	}
}

const path = "/messages"

// messages answers 202 to what the meter admits, and 429 to the rest.
func messages(m *meter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+path, func(w http.ResponseWriter, _ *http.Request) {
		if !m.admit() {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	return mux
}

// A meter is the API's own limit: the generic cell rate algorithm, by the arrival of requests, without a word of
// Headgate. In any stretch of time w it admits at most burst + rate × (w + tolerance) requests.
//
// The tolerance is there because slots can be exact and arrivals cannot. A request arrives later than its slot by what
// the scheduler and the network take. Where one is held up and the next is not, they come closer together than their
// slots were, and a meter without tolerance sees one too many. (ATM networks, where the algorithm is from, call it the
// cell delay variation tolerance.) Toward an API that has none, give the limiter a smaller burst than the API's: each
// permit less makes up for 1/rate of jitter.
type meter struct {
	interval  time.Duration // from one request to the next, at the rate
	burst     time.Duration // how far ahead of the rate a request may be
	tolerance time.Duration // and how much further it is still admitted

	mu                sync.Mutex
	due               time.Time // when the next request is due at the rate
	first, last       time.Time // of those admitted
	admitted, refused int
	jitter            time.Duration // the most of the tolerance that was used
}

func newMeter(o options) *meter {
	interval := time.Second / time.Duration(o.rate)
	return &meter{interval: interval, burst: time.Duration(o.burst-1) * interval, tolerance: o.tolerance}
}

// admit counts a request that arrives now, and reports whether it is within the limit.
func (m *meter) admit() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	due := m.due
	if due.Before(now) {
		due = now
	}
	beyond := due.Sub(now) - m.burst
	if beyond > m.tolerance {
		m.refused++
		return false
	}
	m.due = due.Add(m.interval)
	if m.admitted == 0 {
		m.first = now
	}
	m.last = now
	m.admitted++
	m.jitter = max(m.jitter, beyond)
	return true
}

// summary says what came in, and how close to the limit it was.
func (m *meter) summary() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	fastest := max(time.Duration(m.admitted-1)*m.interval-m.burst, 0)
	return fmt.Sprintf("admitted %d in %.2fs (ideal %.2fs), refused %d; jitter up to %v, of %v tolerated",
		m.admitted, m.last.Sub(m.first).Seconds(), fastest.Seconds(), m.refused,
		m.jitter.Round(100*time.Microsecond), m.tolerance)
}
