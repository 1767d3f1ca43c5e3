package algos

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the zones, wherever the tests run

	"pgregory.net/rapid"
)

func zone(t interface{ Fatal(...any) }, name string) *time.Location {
	loc, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// boundaries are where windows begin, and the end of the last.
func (d dates) boundaries() []int64 {
	all := []int64{d.first}
	for _, r := range d.runs {
		for range r.count {
			all = append(all, all[len(all)-1]+r.length)
		}
	}
	return all
}

func TestWindowsBeginWhenTheLocalClockSaysSo(t *testing.T) {
	h, m, d := time.Hour, time.Minute, 24*time.Hour
	quarter, six, half := Every(15*m), Every(6*h), Every(12*h)
	for _, row := range []struct {
		what, zone string
		every      Every
		at, first  string // an instant, and when its window begins
		lengths    []time.Duration
	}{
		// apiman/apiman#1541, epam/ai-dial-core#1951: windows that are 24 hours long all year.
		{"autumn", "Europe/Paris", Day, "2021-10-31T00:30:00+02:00", "2021-10-31T00:00:00+02:00", []time.Duration{25 * h, d, d}},
		{"spring", "Europe/Paris", Day, "2021-03-28T00:30:00+01:00", "2021-03-28T00:00:00+01:00", []time.Duration{23 * h, d, d}},
		{"autumn", "America/New_York", Day, "2025-11-02T00:30:00-04:00", "2025-11-02T00:00:00-04:00", []time.Duration{25 * h, d, d}},
		{"no change", "Asia/Kolkata", Day, "2025-11-02T00:30:00+05:30", "2025-11-02T00:00:00+05:30", []time.Duration{d, d, d}},
		{"no change", "Asia/Kathmandu", Day, "2025-11-01T23:59:59+05:45", "2025-11-01T00:00:00+05:45", []time.Duration{d, d, d}},
		{"no change", "Asia/Kathmandu", Hour, "2025-11-02T00:30:00+05:45", "2025-11-02T00:00:00+05:45", []time.Duration{h, h, h}},
		{"the last day of a leap year", "America/New_York", Day, "2040-12-31T20:00:00-05:00", "2040-12-31T00:00:00-05:00", []time.Duration{d, d, d}},
		{"a zone of seconds", "Africa/Monrovia", Hour, "1970-06-01T01:30:00Z", "1970-06-01T00:44:30Z", []time.Duration{h, h}},
		{"its end", "Africa/Monrovia", Day, "1972-01-06T12:00:00Z", "1972-01-06T00:44:30Z", []time.Duration{d, d - (44*m + 30*time.Second), d}},

		// The clock skips midnight, or shows it twice, or goes back at midnight.
		{"no midnight", "America/Sao_Paulo", Day, "2017-10-14T12:00:00-03:00", "2017-10-14T00:00:00-03:00", []time.Duration{d, 23 * h, d}},
		{"no midnight", "Asia/Beirut", Day, "2022-03-26T12:00:00+02:00", "2022-03-26T00:00:00+02:00", []time.Duration{d, 23 * h, d}},
		{"no midnight", "America/Havana", Day, "2024-03-10T12:00:00-04:00", "2024-03-10T00:00:00-05:00", []time.Duration{23 * h, d}},
		{"back at midnight", "America/Sao_Paulo", Day, "2018-02-17T23:30:00-03:00", "2018-02-17T00:00:00-02:00", []time.Duration{25 * h, d}},
		{"back at midnight", "America/Sao_Paulo", Hour, "2018-02-17T22:30:00-02:00", "2018-02-17T22:00:00-02:00", []time.Duration{h, h, h, h}},
		{"back at midnight", "America/Sao_Paulo", six, "2018-02-17T22:30:00-02:00", "2018-02-17T18:00:00-02:00", []time.Duration{7 * h, 6 * h}},
		{"two midnights", "America/Havana", Day, "2024-11-03T00:30:00-05:00", "2024-11-03T00:00:00-04:00", []time.Duration{25 * h, d}},
		{"two midnights", "America/Havana", Hour, "2024-11-02T23:30:00-04:00", "2024-11-02T23:00:00-04:00", []time.Duration{h, h, h, h}},
		{"two midnights", "America/Havana", six, "2024-11-02T23:30:00-04:00", "2024-11-02T18:00:00-04:00", []time.Duration{6 * h, 7 * h, 6 * h}},
		{"two midnights", "Atlantic/Azores", half, "2024-10-26T13:00:00+00:00", "2024-10-26T12:00:00+00:00", []time.Duration{12 * h, 13 * h, 12 * h}},
		{"back to yesterday", "America/St_Johns", Day, "2009-10-31T12:00:00-02:30", "2009-10-31T00:00:00-02:30", []time.Duration{d, 25 * h, d}},
		{"back to yesterday", "America/St_Johns", Hour, "2009-10-31T23:30:00-02:30", "2009-10-31T23:00:00-02:30", []time.Duration{h, h, h}},
		{"a skipped date", "Pacific/Apia", Day, "2011-12-29T12:00:00-10:00", "2011-12-29T00:00:00-10:00", []time.Duration{d, d, d}},
		{"a skipped date", "Pacific/Apia", Hour, "2011-12-29T23:30:00-10:00", "2011-12-29T23:00:00-10:00", []time.Duration{h, h, h}},

		// Parts of a day.
		{"autumn", "Europe/Paris", six, "2021-10-31T00:30:00+02:00", "2021-10-31T00:00:00+02:00", []time.Duration{7 * h, 6 * h, 6 * h, 6 * h, 6 * h}},
		{"spring", "Europe/Paris", six, "2021-03-28T00:30:00+01:00", "2021-03-28T00:00:00+01:00", []time.Duration{5 * h, 6 * h}},
		{"the repeated hour", "Europe/Paris", Hour, "2021-10-31T01:30:00+02:00", "2021-10-31T01:00:00+02:00", []time.Duration{h, h, h, h}},
		{"the skipped hour", "Europe/Paris", Hour, "2021-03-28T01:30:00+01:00", "2021-03-28T01:00:00+01:00", []time.Duration{h, h, h}},
		{"40 minutes in autumn", "Europe/Paris", Every(40 * m), "2021-10-31T02:10:00+02:00", "2021-10-31T02:00:00+02:00", []time.Duration{40 * m, h, 40 * m}},
		{"40 minutes in spring", "Europe/Paris", Every(40 * m), "2021-03-28T01:30:00+01:00", "2021-03-28T01:20:00+01:00", []time.Duration{40 * m, 20 * m, 40 * m}},
		{"half an hour back", "Australia/Lord_Howe", Hour, "2024-04-07T00:30:00+11:00", "2024-04-07T00:00:00+11:00", []time.Duration{h, 90 * m, h}},
		{"half an hour back", "Australia/Lord_Howe", quarter, "2024-04-07T01:40:00+11:00", "2024-04-07T01:30:00+11:00", []time.Duration{15 * m, 15 * m, 15 * m, 15 * m}},
		{"half an hour on", "Australia/Lord_Howe", Hour, "2024-10-06T01:30:00+10:30", "2024-10-06T01:00:00+10:30", []time.Duration{h, 30 * m, h}},
		{"microseconds", "Europe/Paris", Every(time.Microsecond), "2021-10-31T01:59:59.999998+01:00", "2021-10-31T01:59:59.999998+01:00", []time.Duration{time.Microsecond, time.Microsecond}},

		// Longer ones.
		{"autumn", "Europe/Paris", Week(time.Monday), "2021-10-27T12:00:00+02:00", "2021-10-25T00:00:00+02:00", []time.Duration{7*d + h, 7 * d}},
		{"spring", "Europe/Paris", Week(time.Sunday), "2021-03-27T23:59:59+01:00", "2021-03-21T00:00:00+01:00", []time.Duration{7 * d, 7*d - h, 7 * d}},
		{"from the day itself", "UTC", Week(time.Saturday), "2026-01-03T00:00:00+00:00", "2026-01-03T00:00:00+00:00", []time.Duration{7 * d}},
		{"to the day before", "UTC", Week(time.Saturday), "2026-01-02T23:59:59+00:00", "2025-12-27T00:00:00+00:00", []time.Duration{7 * d}},
		{"a leap year", "Europe/Paris", Month, "2024-01-31T12:00:00+01:00", "2024-01-01T00:00:00+01:00",
			[]time.Duration{31 * d, 29 * d, 31*d - h, 30 * d, 31 * d, 30 * d, 31 * d, 31 * d, 30 * d, 31*d + h, 30 * d, 31 * d, 31 * d, 28 * d}},
		{"years", "America/New_York", Year, "2023-12-31T23:59:59-05:00", "2023-01-01T00:00:00-05:00", []time.Duration{365 * d, 366 * d, 365 * d}},
		{"a month that begins at one o'clock", "Asia/Beirut", Month, "1993-02-28T23:59:59+02:00", "1993-02-01T00:00:00+02:00", []time.Duration{28 * d, 31*d - h}},
	} {
		t.Run(strings.Join([]string{row.what, row.zone, row.every.String()}, " "), func(t *testing.T) {
			at, err := time.Parse(time.RFC3339, row.at)
			if err != nil {
				t.Fatal(err)
			}
			first, err := time.Parse(time.RFC3339, row.first)
			if err != nil {
				t.Fatal(err)
			}
			want := []int64{first.UnixMicro()}
			for _, length := range row.lengths {
				want = append(want, want[len(want)-1]+length.Microseconds())
			}
			got := row.every.windows(zone(t, row.zone), at.UnixMicro(), want[len(want)-1]).boundaries()
			if len(got) < len(want) || !slices.Equal(got[:len(want)], want) {
				for _, b := range got {
					t.Logf("got  %v", time.UnixMicro(b).In(zone(t, row.zone)))
				}
				for _, b := range want {
					t.Logf("want %v", time.UnixMicro(b).In(zone(t, row.zone)))
				}
				t.Fail()
			}
		})
	}
}

// A wall is a wall clock, read at one instant after the other. It knows no rule of the zone and no offset.
type wall struct {
	loc   *time.Location
	every Every
	most  int64 // what it has shown at the most: a reading, or the number of a week, month or year
	begun int64 // when the last window began
}

// shows is what the clock reads at the instant t: µs for the parts of a day, otherwise days, weeks, months or years.
func (w *wall) shows(t int64) int64 {
	at := time.UnixMicro(t).In(w.loc)
	year, month, dom := at.Date()
	days := time.Date(year, month, dom, 0, 0, 0, 0, time.UTC).Unix() / (24 * 60 * 60)
	switch {
	case w.every == Year:
		return int64(year)
	case w.every == Month:
		return int64(year)*12 + int64(month)
	case w.every < 0:
		for first := time.Sunday; ; first++ {
			if w.every == Week(first) {
				return (days + int64(time.Thursday+7-first)) / 7
			}
		}
	case w.every == Day:
		return days
	}
	hour, minute, second := at.Clock()
	return days*fullDay + (int64(hour)*3600+int64(minute)*60+int64(second))*1_000_000 + t%1_000_000
}

// begins tells whether a window begins at t.
func (w *wall) begins(t int64) bool {
	shown, before := w.shows(t), w.most
	w.most = max(shown, before)
	begins := shown > before
	if w.every > 0 && w.every < Day {
		length := int64(w.every) / 1000
		if begins {
			begins = shown/length > before/length
		} else {
			begins = shown%length == 0 && t-w.begun >= length
		}
	}
	if begins {
		w.begun = t
	}
	return begins
}

const fullDay = int64(24 * time.Hour / time.Microsecond)

// partsOfADay are all lengths that divide the day, in µs.
var partsOfADay = func() (parts []int64) {
	for n := int64(1); n*n <= fullDay; n++ {
		if fullDay%n == 0 {
			parts = append(parts, n, fullDay/n)
		}
	}
	slices.Sort(parts)
	return parts
}()

var zones = strings.Fields(`UTC Africa/Cairo Africa/Casablanca America/Argentina/San_Luis America/Asuncion
	America/Caracas America/Godthab America/Havana America/Los_Angeles America/New_York America/Santiago America/Sao_Paulo
	America/Scoresbysund America/St_Johns Antarctica/Casey Antarctica/Troll Asia/Amman Asia/Beirut Asia/Damascus Asia/Dhaka
	Asia/Gaza Asia/Kathmandu Asia/Kolkata Asia/Pyongyang Asia/Tehran Asia/Tokyo Atlantic/Azores Australia/Lord_Howe
	Australia/Sydney Europe/Dublin Europe/Lisbon Europe/Moscow Europe/Paris Europe/Volgograd Pacific/Apia Pacific/Chatham
	Pacific/Kiritimati Pacific/Kwajalein Pacific/Tongatapu`)

// The windows against a wall clock that is watched step by step.
func TestWindowsBeginAndEndAsTheWallClockIsSeenTo(t *testing.T) {
	const minute, five = 60 * 1_000_000, 5 * 60 * 1_000_000
	drawEvery := rapid.OneOf(
		rapid.SampledFrom([]Every{Minute, Hour, Every(6 * time.Hour), Every(12 * time.Hour), Day, Month, Year}),
		rapid.Map(rapid.IntRange(0, 6), func(first int) Every { return Week(time.Weekday(first)) }),
		rapid.Map(rapid.SampledFrom(partsOfADay), func(part int64) Every { return Every(part * 1000) }),
	)
	rapid.Check(t, func(t *rapid.T) {
		loc := zone(t, rapid.SampledFrom(zones).Draw(t, "zone"))
		every := drawEvery.Draw(t, "every")
		// No step passes over an instant at which a window might begin.
		length, step := 366*fullDay, int64(five)
		switch {
		case every == Month:
			length = 31 * fullDay
		case every < 0 && every != Year:
			length, step = 7*fullDay, minute
		case every > 0:
			length = int64(every) / 1000
			step = gcd(length, minute)
		}
		span := min(20*length, max(20_000*step, 2*length))
		near := rapid.Int64Range(unix("1978-01-01"), unix("2050-01-01")).Draw(t, "near")
		if _, change := time.UnixMicro(near).In(loc).ZoneBounds(); !change.IsZero() && rapid.Bool().Draw(t, "at a change") {
			near = change.UnixMicro()
		}
		from := near - rapid.Int64Range(0, span).Draw(t, "from")
		to := from + rapid.Int64Range(1, span).Draw(t, "to")

		windows := every.windows(loc, from, to)
		bounds := windows.boundaries()
		if len(bounds) < 2 || bounds[0] > from || from >= bounds[1] || to > windows.end || bounds[len(bounds)-1] != windows.end {
			t.Fatalf("%+v are not the windows from that of %d until %d", windows, from, to)
		}
		for i := range len(bounds) - 1 {
			if bounds[i] >= bounds[i+1] {
				t.Fatalf("%+v: window %d has no length", windows, i)
			}
		}

		since := bounds[0] - 2*length - 2*step
		since -= floorMod(since, step)
		clock := wall{loc: loc, every: every, begun: since}
		clock.most = clock.shows(since)
		var seen []int64
		for at := since + step; at <= windows.end; at += step {
			if clock.begins(at) && at >= bounds[0] {
				seen = append(seen, at)
			}
		}
		if !slices.Equal(bounds, seen) {
			t.Fatalf("windows begin at\n%v, the clock says\n%v", bounds, seen)
		}

		later := rapid.Int64Range(from, to).Draw(t, "later")
		i, _ := slices.BinarySearch(bounds, later+1)
		got, want := every.windows(loc, later, to+1).boundaries(), bounds[i-1:]
		n := min(len(got), len(want))
		if n < len(want)-1 || !slices.Equal(got[:n], want[:n]) {
			t.Fatalf("from %d on windows begin at\n%v, want\n%v", later, got, want)
		}
	})
}

// unix is the beginning of a date in UTC, in µs since 1970.
func unix(date string) int64 {
	at, err := time.Parse(time.DateOnly, date)
	if err != nil {
		panic(err)
	}
	return at.UnixMicro()
}

// A client sends them all: one run for each stretch between two changes, and one for each window that a change made
// longer or shorter.
func TestAYearOfWindowsIsAFewRuns(t *testing.T) {
	for every, most := range map[Every]int{Every(time.Microsecond): 1, Minute: 1, Hour: 1, Every(6 * time.Hour): 5, Day: 5, Week(time.Monday): 5, Month: 13} {
		if windows := every.windows(zone(t, "Europe/Paris"), unix("2026-01-01"), unix("2026-12-31")); len(windows.runs) > most {
			t.Errorf("%v: %+v", every, windows)
		}
	}
}

func TestEveryIsAPartOfTheDayOrLonger(t *testing.T) {
	for _, good := range []Every{1000, Minute, Hour, Every(6 * time.Hour), Every(12 * time.Hour), Day, Month, Year, Week(time.Sunday), Week(time.Saturday)} {
		if err := good.check("CalendarWindow.Every"); err != nil {
			t.Error(err)
		}
	}
	for _, row := range []struct {
		every Every
		shown string
	}{
		{0, "0s"}, {1, "1ns"}, {1500, "1.5µs"}, {7 * Hour, "7h0m0s"}, {2 * Day, "48h0m0s"}, {-3, "Every(-3)"},
		{Week(time.Sunday) + 1, "Every(-9)"}, {Week(time.Saturday) - 1, "Every(-17)"},
		{Week(-1), "0s"}, {Week(-8), "0s"}, {Week(7), "0s"}, {Week(-100_000), "0s"},
	} {
		err := row.every.check("CalendarWindow.Every")
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "CalendarWindow.Every is "+row.shown+";") {
			t.Errorf("%v, want one that shows %s", err, row.shown)
		}
	}
	for every, want := range map[Every]string{Month: "month", Year: "year", Week(time.Sunday): "week from Sunday", Week(time.Saturday): "week from Saturday", Hour: "1h0m0s", Day: "day"} {
		if got := every.String(); got != want {
			t.Errorf("%d is shown as %q, want %q", int64(every), got, want)
		}
	}
}

// States that are stored bear these names: they never change.
func TestACalendarKeepsItsName(t *testing.T) {
	for _, row := range []struct {
		every Every
		zone  string
		name  int64
	}{
		{Day, "UTC", 0x55d4f1dffb1cd},
		{Day, "Europe/Paris", 0x5ffce34febadf},
		{Month, "Europe/Paris", 0x54237b653d123},
		{Week(time.Monday), "Europe/Paris", 0x78ca086e3f104},
	} {
		if got := row.every.grid(zone(t, row.zone)); got != row.name {
			t.Errorf("%v in %s is called %#x, want %#x", row.every, row.zone, got, row.name)
		}
	}
	names := map[int64]string{}
	for _, name := range zones {
		for _, every := range []Every{1000, Hour, Day, Month, Year, Week(time.Sunday), Week(time.Monday)} {
			grid, calendar := every.grid(zone(t, name)), every.String()+" in "+name
			if other := names[grid]; other != "" || grid <= 366*fullDay || grid >= 1<<52 {
				t.Errorf("%s is called %d, as is %s", calendar, grid, other)
			}
			names[grid] = calendar
		}
	}
}
