package main

import (
	"fmt"
	"os"
	"os/signal"
	"sync"
	"testing"
)

// A program is as much of a testing.TB as redistest needs to start its servers outside of a test: what would fail or
// skip a test ends the program.
type program struct {
	testing.TB // nil: a method that is missing below panics

	mu       sync.Mutex
	cleanups []func()
}

func newProgram() *program {
	p := &program{}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt)
	go func() { p.Fatal(<-interrupted) }()
	return p
}

// end undoes what was begun, the last thing first.
func (p *program) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.cleanups) - 1; i >= 0; i-- {
		p.cleanups[i]()
	}
	p.cleanups = nil
}

func (p *program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *program) TempDir() string {
	dir, err := os.MkdirTemp("", "headgate-bench-")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (p *program) Helper() {}

func (p *program) Fatal(args ...any) {
	p.end()
	fmt.Fprintln(os.Stderr, append([]any{"bench:"}, args...)...)
	os.Exit(1)
}

func (p *program) Fatalf(format string, args ...any) { p.Fatal(fmt.Sprintf(format, args...)) }

func (p *program) Skipf(format string, args ...any) { p.Fatal(fmt.Sprintf(format, args...)) }
