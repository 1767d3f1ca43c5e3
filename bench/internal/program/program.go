// Package program lets a program start the servers that tests start.
package program

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"testing"
)

// A Program is as much of a testing.TB as redistest needs to start its servers outside of a test: what would fail or
// skip a test ends the program.
type Program struct {
	testing.TB // nil: a method that is missing below panics

	mu       sync.Mutex
	cleanups []func()
}

// New makes a Program, which an interrupt ends.
func New() *Program {
	p := &Program{}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	go func() { p.Fatal(<-interrupted) }()
	return p
}

// End undoes what was begun, the last thing first.
func (p *Program) End() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.cleanups) - 1; i >= 0; i-- {
		p.cleanups[i]()
	}
	p.cleanups = nil
}

// Cleanup implements testing.TB.
func (p *Program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

// TempDir implements testing.TB.
func (p *Program) TempDir() string {
	dir, err := os.MkdirTemp("", "headgate-bench-")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Helper implements testing.TB.
func (p *Program) Helper() {}

// Fatal implements testing.TB: it ends the program.
func (p *Program) Fatal(args ...any) {
	p.End()
	fmt.Fprintln(os.Stderr, append([]any{"bench:"}, args...)...)
	os.Exit(1)
}

// Fatalf implements testing.TB.
func (p *Program) Fatalf(format string, args ...any) { p.Fatal(fmt.Sprintf(format, args...)) }

// Skipf implements testing.TB: what must be skipped cannot be measured.
func (p *Program) Skipf(format string, args ...any) { p.Fatal(fmt.Sprintf(format, args...)) }
