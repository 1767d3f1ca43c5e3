package main

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// An api stands for the vendor's. Only its limit is real.
type api struct {
	url    string
	meter  *meter
	server *http.Server
}

// startAPI serves POST /messages at the address of -listen until it is closed.
func startAPI(o options) (*api, error) {
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return nil, err
	}
	m := newMeter(o.rate, o.burst, o.tolerance)
	a := &api{
		url:    "http://" + listener.Addr().String(),
		meter:  m,
		server: &http.Server{Handler: messages(m), ReadHeaderTimeout: 10 * time.Second},
	}
	go a.server.Serve(listener) // returns when the server is closed
	return a, nil
}

func (a *api) close() { _ = a.server.Close() }

// messages answers 202 to what the meter admits, and 429 to the rest.
func messages(m *meter) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /messages", func(w http.ResponseWriter, _ *http.Request) {
		if !m.admit() {
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	return mux
}

// A meter is the API's own limit: the generic cell rate algorithm, by the arrival of requests, without a word of
// Headgate. In any stretch of time w it admits at most burst + rate × w requests, w being taken longer by the tolerance.
//
// The tolerance is there because a limiter can be exact about slots, but not about arrivals. A request arrives as much
// later than its slot as the scheduler and the network take. If one is held up and the next is not, the two come closer
// together than their slots were, and to a meter without tolerance that looks like a request too many. (The algorithm
// has the term from ATM networks, where it is the cell delay variation tolerance.) Towards an API that has none, give
// the limiter a smaller burst than the API's: each permit less makes up for 1/rate of jitter.
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

func newMeter(rate, burst int, tolerance time.Duration) *meter {
	interval := time.Second / time.Duration(rate)
	return &meter{interval: interval, burst: time.Duration(burst-1) * interval, tolerance: tolerance}
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
	return fmt.Sprintf("the API admitted %d in %.2fs and refused %d; jitter %v, of %v that it tolerates",
		m.admitted, m.last.Sub(m.first).Seconds(), m.refused, m.jitter.Round(10*time.Microsecond), m.tolerance)
}
