package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// printTable says what became of the traffic, in a line for each algorithm.
func printTable(w io.Writer, arrivals []time.Duration, outcomes []outcome) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests in %v; the limit is %d in %v, and callers wait up to %v\n\n",
		len(arrivals), trafficLasts, limit, window, patience)
	b.WriteString("algorithm\tadmitted\trefused\tworst window\tmean wait\n")
	for _, o := range outcomes {
		fmt.Fprintf(&b, "%s\t%d\t%d\t%d\t%v\n",
			o.name, len(o.slots), o.refused, o.worstWindow(), o.meanWait().Round(time.Millisecond))
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if _, err := io.WriteString(table, b.String()); err != nil {
		return err
	}
	return table.Flush()
}
