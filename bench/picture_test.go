package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestPictureIsWellFormedAndShowsItsCurves(t *testing.T) {
	p := picture{"A <title>", []panel{
		{title: "a & b", x: "callers", ticks: []int{1, 8, 64}, curves: []curve{
			{name: "one", xs: []int{1, 8, 64}, rounds: []series{{1, 2}, {30}, {400}}},
			{name: "<two>", xs: []int{1, 64}, rounds: []series{{5}, {6}}},
		}},
		{title: "nothing was measured", x: "keys", ticks: []int{1, 100}},
	}}
	drawn := p.svg()
	texts := make(map[string]bool)
	for decoder := xml.NewDecoder(bytes.NewReader(drawn)); ; {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in %s", err, drawn)
		}
		if text, ok := token.(xml.CharData); ok {
			texts[string(text)] = true
		}
	}
	for _, want := range []string{"A <title>", "a & b", "callers", "one", "<two>", "64", "1,000", "nothing was measured"} {
		if !texts[want] {
			t.Errorf("there is no %q", want)
		}
	}
	if text := string(drawn); strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
		t.Errorf("a place is no number: %s", text)
	}
	if !bytes.Contains(drawn, []byte("prefers-color-scheme:dark")) {
		t.Error("it has one set of colours")
	}
}
