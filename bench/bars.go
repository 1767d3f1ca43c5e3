package main

import "fmt"

// bars are what Headgate aims at, beside what was measured. A row whose contenders were not measured is left out.
func (r results) bars() []row {
	var rows []row
	add := func(name, unit string, peer, ours series, b bar) {
		if len(peer) > 0 && len(ours) > 0 {
			rows = append(rows, row{name, unit, peer, ours, b})
		}
	}
	// beside compares Headgate with redis_rate.
	beside := func(name, unit string, q quantity, b bar) {
		add(name, unit, r[q][redisRateName], r[q][headgateName], b)
	}
	beside("Allow, one caller, p50", "µs", wait, bar{0.90, ratio})
	beside("allocations an Allow", "", allocations, bar{10, value})
	beside("bytes allocated an Allow", "B", allocatedB, bar{450, value})
	beside("server time a decision, alone", "µs", busyAllowed, bar{1.15, ratio})
	add("… refused, to redis_rate's allowed", "µs", r[busyBeside][redisRateName], r[busyRefused][headgateName], bar{0.75, ratio})
	beside("… merged, 64 callers of one key", "µs", busyCrowd, bar{0.15, ratio})
	beside("bytes a key, after one decision", "B", keyFirst, bar{112, value})
	beside("bytes a key, after 1,000 in a busy period", "B", keyBusy, bar{112, value})
	for _, of := range []struct {
		crowd crowd
		least float64
	}{
		{crowd{64, 1}, 8}, {crowd{256, 1}, 25}, {crowd{64, 10_000}, 2.7}, {crowd{256, 10_000}, 3.2},
	} {
		beside(of.crowd.String()+": decisions a second", "", at(perSecond, of.crowd.String()), bar{of.least, atLeast})
	}
	for _, of := range []struct {
		permits int
		least   float64
	}{{100, 25}, {1000, 150}} {
		q := at(perSecond, crowd{64, 1}.String())
		add(fmt.Sprintf("64 callers, 1 key, leases of %d: decisions a second", of.permits), "", r[q][redisRateName], r[q][leasing(of.permits).String()], bar{of.least, atLeast})
	}
	add("64 callers who are refused again and again, remembered: decisions a second", "", r[denied][redisRateName], r[denied][rememberName], bar{300, atLeast})
	beside("256 callers, 1 key: a caller's p99", "µs", at(callerP99, crowd{256, 1}.String()), bar{1500, value})
	add("500 waiters at once: script calls a permit, unbatched", "", r[callsAPermit][redisRateName], r[callsAPermit][unbatchedName], bar{1, value})
	beside("500 waiters at once: script calls a permit", "", callsAPermit, bar{0.05, value})
	add("one lone caller, p50, to Headgate unbatched", "µs", r[wait][unbatchedName], r[wait][headgateName], bar{1 / 0.97, ratio})
	for _, of := range []struct {
		name string
		q    quantity
	}{{"in process, to x/time/rate: Allow, 1 goroutine", localOne}, {"in process, to x/time/rate: Allow, 8 goroutines", localEight}} {
		add(of.name, "ns", r[of.q][timeRateName], r[of.q][localName], bar{0.5, ratio})
	}
	add("in process, to x/time/rate: allocations an Allow", "", r[localAllocs][timeRateName], r[localAllocs][localName], bar{0, value})
	return rows
}
