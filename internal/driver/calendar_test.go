package driver_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // wherever the tests run

	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/driver"
	"github.com/headgate-go/headgate/internal/redistest"
)

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	location, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return location
}

// Windows end when the calendar says so. apiman #1541, ai-dial-core #1951, and go-zero's Align, whose days end an hour off
// where the clock changes (84,600 s for each of the first three).
func TestACalendarWindowEndsWithTheCalendar(t *testing.T) {
	rdb := redistest.Start(t).Client()
	for _, test := range []struct {
		zone, at string // local; an offset where the local time is not unique
		every    algos.Every
		ends     time.Duration
	}{
		{"Europe/Paris", "2021-10-31 00:30:00 +0200", algos.Day, 88_200 * time.Second},
		{"Europe/Paris", "2021-03-28 00:30:00 +0100", algos.Day, 81_000 * time.Second},
		{"America/New_York", "2025-11-02 00:30:00 -0400", algos.Day, 88_200 * time.Second},
		{"Asia/Kolkata", "2025-11-02 00:30:00 +0530", algos.Day, 84_600 * time.Second},
		{"Asia/Kathmandu", "2025-11-02 00:30:00 +0545", algos.Hour, 30 * time.Minute},
		{"Europe/Paris", "2021-10-31 02:30:00 +0200", algos.Hour, 30 * time.Minute}, // the first time
		{"Europe/Paris", "2021-10-31 02:30:00 +0100", algos.Hour, 30 * time.Minute}, // and the second
		{"Europe/Paris", "2021-10-31 00:30:00 +0200", algos.Every(6 * time.Hour), 6*time.Hour + 30*time.Minute},
		{"UTC", "2024-02-10 12:00:00 +0000", algos.Month, 19*24*time.Hour + 12*time.Hour},
		{"UTC", "2025-02-10 12:00:00 +0000", algos.Month, 18*24*time.Hour + 12*time.Hour},
		{"UTC", "2024-01-01 00:00:00 +0000", algos.Year, 366 * 24 * time.Hour},
		{"Europe/Paris", "2025-10-25 12:00:00 +0200", algos.Week(time.Monday), 37 * time.Hour},
		{"Europe/Paris", "2025-10-25 12:00:00 +0200", algos.Week(time.Sunday), 12 * time.Hour},
		{"America/Sao_Paulo", "2017-10-14 23:59:59 -0300", algos.Day, time.Second}, // midnight is skipped
		{"UTC", "2025-01-01 00:00:59 +0000", algos.Minute, time.Second},
	} {
		t.Run(fmt.Sprintf("%s in %s at %s", test.every, strings.ReplaceAll(test.zone, "/", " "), test.at), func(t *testing.T) {
			at, err := time.Parse("2006-01-02 15:04:05 -0700", test.at)
			if err != nil {
				t.Fatal(err)
			}
			now := at.UnixMicro()
			r := rule(t, algos.CalendarWindow{Limit: 2, Every: test.every, Location: zone(t, test.zone)})
			b := newBoth(t, server{rdb: rdb, key: t.Name()})
			b.ask(r, now, 2, 0)
			ends := test.ends.Microseconds()
			if reply := b.ask(r, now, 1, 0); reply.Wait != -ends || reply.Reset != ends {
				t.Fatalf("retry-after %v, want %v", time.Duration(-reply.Wait)*time.Microsecond, test.ends)
			}
			if reply := b.ask(r, now+ends-1, 1, 0); reply.Wait != -1 {
				t.Errorf("a microsecond before the end: %+v", reply)
			}
			if reply := b.ask(r, now+ends, 1, 0); reply.Wait != 0 || reply.Remaining != 1 {
				t.Errorf("at the end: %+v", reply)
			}
		})
	}
}

// The repeated hour is never "over for good" (apiman #1541): each of its two windows has the whole limit.
func TestTheRepeatedHourIsTwoWindows(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.CalendarWindow{Limit: 1, Every: algos.Hour, Location: zone(t, "Europe/Paris")})
	b := newBoth(t, server{rdb: rdb, key: "hour"})
	midnight := time.Date(2021, 10, 31, 0, 0, 0, 0, zone(t, "Europe/Paris")).UnixMicro()
	for hour := range int64(25) {
		first := b.ask(r, midnight+hour*3600*second, 1, 0)
		if again := b.ask(r, midnight+hour*3600*second+1, 1, 0); first.Wait != 0 || again.Wait >= 0 {
			t.Errorf("hour %d: %+v, %+v", hour, first, again)
		}
	}
}

// Reservations go through a year of days, months and weeks, each at the beginning of its window.
func TestReservationsFollowTheCalendar(t *testing.T) {
	rdb := redistest.Start(t).Client()
	newYork := zone(t, "America/New_York")
	start := time.Date(2025, 1, 31, 15, 0, 0, 0, newYork)
	for name, test := range map[string]struct {
		every algos.Every
		begin func(i int) time.Time
	}{
		"days":   {algos.Day, func(i int) time.Time { return time.Date(2025, 1, 31+i, 0, 0, 0, 0, newYork) }},
		"weeks":  {algos.Week(time.Wednesday), func(i int) time.Time { return time.Date(2025, 1, 29+7*i, 0, 0, 0, 0, newYork) }},
		"months": {algos.Month, func(i int) time.Time { return time.Date(2025, time.Month(1+i), 1, 0, 0, 0, 0, newYork) }},
		"years":  {algos.Year, func(i int) time.Time { return time.Date(2025+i, 1, 1, 0, 0, 0, 0, newYork) }},
	} {
		t.Run(name, func(t *testing.T) {
			r := rule(t, algos.CalendarWindow{Limit: 3, Every: test.every, Location: newYork})
			b := newBoth(t, server{rdb: rdb, key: name})
			b.ask(r, start.UnixMicro(), 2, 0)
			for i := 1; ; i++ {
				want := test.begin(i).UnixMicro() - start.UnixMicro()
				reply := b.ask(r, start.UnixMicro(), 2, r.Horizon(2))
				if want > r.Horizon(2) {
					if reply.Wait != r.Horizon(2)-want {
						t.Errorf("window %d lies beyond the horizon: %+v", i, reply)
					}
					return
				}
				if reply.Wait != want {
					t.Fatalf("window %d begins after %d µs, want %d", i, reply.Wait, want)
				}
			}
		})
	}
}

// A clock that goes back by half an hour, or a day, leaves what was used in the window that now is.
func TestACalendarSurvivesAClockThatGoesBack(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.CalendarWindow{Limit: 5, Every: algos.Hour, Location: time.UTC})
	tenToEleven := time.Date(2025, 6, 1, 10, 50, 0, 0, time.UTC).UnixMicro()
	for _, back := range []time.Duration{time.Microsecond, 30 * time.Minute, time.Hour, 24 * time.Hour} {
		b := newBoth(t, server{rdb: rdb, key: back.String()})
		b.ask(r, tenToEleven, 4, 0)
		reserved := b.ask(r, tenToEleven, 3, r.Horizon(3))
		now := tenToEleven - back.Microseconds()
		reply := b.ask(r, now, 1, driver.Ask)
		if reply.Remaining != 0 || reply.Wait >= 0 { // what was reserved is ahead
			t.Errorf("%v back: %+v", back, reply)
		}
		if slot := now + reserved.Wait; slot+3600*second < now-reply.Wait-1 {
			t.Errorf("%v back: the next slot is in %v", back, time.Duration(-reply.Wait)*time.Microsecond)
		}
		before, _ := b.s.stored()
		b.ask(r, now, 1, driver.Ask)
		if after, _ := b.s.stored(); before != after {
			t.Errorf("%v back: the second refusal wrote", back)
		}
	}
}

// A process whose zone is another, or whose calendar is: what was used stays used.
func TestChangingTheCalendarKeepsWhatWasUsed(t *testing.T) {
	rdb := redistest.Start(t).Client()
	noon := time.Date(2025, 6, 15, 12, 0, 0, 0, time.UTC).UnixMicro()
	calendar := func(limit int, every algos.Every, location string) algos.Rule {
		return rule(t, algos.CalendarWindow{Limit: limit, Every: every, Location: zone(t, location)})
	}
	for name, test := range map[string]struct {
		before, after algos.Rule
		pause         time.Duration
		remaining     int64
	}{
		"from a day to a month":      {calendar(10, algos.Day, "UTC"), calendar(10, algos.Month, "UTC"), 0, 6},
		"from a month to a day":      {calendar(10, algos.Month, "UTC"), calendar(10, algos.Day, "UTC"), 0, 6},
		"and on the day after":       {calendar(10, algos.Month, "UTC"), calendar(10, algos.Day, "UTC"), 24 * time.Hour, 10},
		"from one zone to another":   {calendar(10, algos.Day, "UTC"), calendar(10, algos.Day, "Asia/Tokyo"), 0, 6},
		"a raised limit":             {calendar(10, algos.Day, "UTC"), calendar(20, algos.Day, "UTC"), 0, 16},
		"a limit below what is used": {calendar(10, algos.Day, "UTC"), calendar(3, algos.Day, "UTC"), 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBoth(t, server{rdb: rdb, key: name})
			b.ask(test.before, noon, 4, 0)
			if reply := b.ask(test.after, noon+test.pause.Microseconds(), 1, driver.Ask); reply.Remaining != test.remaining {
				t.Errorf("%+v", reply)
			}
		})
	}
}

// A client whose clock is more than a year off sends dates of another year first: the answers are those of the server's
// clock all the same, as far ahead as slots are promised.
func TestDatesOfAWrongClockDecideNothing(t *testing.T) {
	rdb := redistest.Start(t).Client()
	r := rule(t, algos.CalendarWindow{Limit: 1, Every: algos.Month, Location: zone(t, "America/New_York")})
	now := time.Date(2025, 1, 31, 15, 0, 0, 0, zone(t, "America/New_York")).UnixMicro()
	for _, off := range []time.Duration{-500 * 24 * time.Hour, -380 * 24 * time.Hour, 20 * 24 * time.Hour, 500 * 24 * time.Hour} {
		b := newBoth(t, server{rdb: rdb, key: off.String(), off: off.Microseconds()})
		for range 14 { // newBoth compares each answer with that of a clock that is right
			b.ask(r, now, 1, r.Horizon(1))
		}
	}
}
