package main

import "fmt"

// Results are what was measured: a value for each round, of each quantity and each contender.
type results map[quantity]map[string]series

// A quantity is the name of what a row or a column shows.
type quantity string

// A reading is what one probe says at once.
type reading map[quantity]float64

// A probe measures one contender, once.
type probe struct {
	who  string
	take func() (reading, error)
}

// measure lets probes take turns, in rounds. A round's value is the median of its turns. A first round warms up.
func (r results) measure(rounds, turns int, probes []probe) error {
	for round := range rounds + 1 {
		readings := make([]map[quantity]series, len(probes))
		works := make([]func() error, len(probes))
		for i, p := range probes {
			readings[i] = make(map[quantity]series)
			works[i] = func() error {
				values, err := p.take()
				if err != nil {
					return fmt.Errorf("%s: %w", p.who, err)
				}
				for q, v := range values {
					readings[i][q] = append(readings[i][q], v)
				}
				return nil
			}
		}
		if err := interleaveFrom(round, turns, works...); err != nil {
			return err
		}
		if round == 0 {
			continue
		}
		for i, p := range probes {
			for q, values := range readings[i] {
				r.add(q, p.who, values.median())
			}
		}
	}
	return nil
}

func (r results) add(q quantity, who string, value float64) {
	if r[q] == nil {
		r[q] = make(map[string]series)
	}
	r[q][who] = append(r[q][who], value)
}

// at is a quantity of one of several places.
func at(q quantity, where string) quantity { return q + quantity(" @ "+where) }

// at has the probe say where it is.
func (p probe) at(where string) probe {
	take := p.take
	p.take = func() (reading, error) {
		values, err := take()
		placed := make(reading, len(values))
		for q, v := range values {
			placed[at(q, where)] = v
		}
		return placed, err
	}
	return p
}
