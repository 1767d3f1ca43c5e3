package main

import (
	"context"
	_ "embed"
	"io"
	"os"
	"strings"
)

//go:embed lines.txt
var sample string

// readLines returns the lines of a file, of standard input if it is called "-", or the sample if it has no name.
func readLines(ctx context.Context, name string, stdin io.Reader) ([]string, error) {
	switch name {
	case "":
		return split(sample), nil
	case "-":
		text, err := readAll(ctx, stdin)
		return split(text), err
	default:
		text, err := os.ReadFile(name)
		return split(string(text)), err
	}
}

// split leaves out blank lines: there is nothing in them to send.
func split(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, "\r\n"); strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// readAll is io.ReadAll that a context can end. Ctrl-C must work while somebody is typing, and a terminal's Read knows
// no context; one that is left behind ends with the program.
func readAll(ctx context.Context, r io.Reader) (string, error) {
	type answer struct {
		text []byte
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		text, err := io.ReadAll(r)
		answers <- answer{text, err}
	}()
	select {
	case a := <-answers:
		return string(a.text), a.err
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}
