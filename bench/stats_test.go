package main

import "testing"

func TestQuantiles(t *testing.T) {
	s := series{40, 10, 30, 20}
	for q, want := range map[float64]float64{0: 10, 0.25: 17.5, 0.5: 25, 1: 40} {
		if got := s.quantile(q); got != want {
			t.Errorf("quantile %v is %v; want %v", q, got, want)
		}
	}
	if got := (series{7}).median(); got != 7 {
		t.Errorf("the median of one value is %v", got)
	}
}

func TestInterleaveLetsEachBeginInTurn(t *testing.T) {
	order := ""
	work := func(name string) func() error { return func() error { order += name; return nil } }
	if err := interleave(3, work("a"), work("b")); err != nil || order != "abbaab" {
		t.Errorf("order %q, error %v", order, err)
	}
}
