package headgate_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
)

// What no algorithm can hold is refused by New with the field's name; what it can is held.
func TestNewRefusesWhatNoAlgorithmCanHold(t *testing.T) {
	const month = 30 * 24 * time.Hour
	for name, test := range map[string]struct {
		algorithm algos.Algorithm
		field     string // that the error names; none if the parameters are good
	}{
		"a funnel without capacity":         {algos.Funnel{Rate: 1, Per: time.Second}, "Funnel.Capacity"},
		"a funnel without rate":             {algos.Funnel{Capacity: 1, Per: time.Second}, "Funnel.Rate"},
		"a funnel that takes years to leak": {algos.Funnel{Capacity: math.MaxInt, Rate: 1, Per: time.Second}, "Funnel.Capacity"},
		"a good funnel":                     {algos.Funnel{Capacity: 1, Rate: 1, Per: time.Second}, ""},

		"a leaky bucket without rate":        {algos.LeakyBucket{Per: time.Second}, "LeakyBucket.Rate"},
		"a leaky bucket without period":      {algos.LeakyBucket{Rate: 1}, "LeakyBucket.Per"},
		"a queue of negative length":         {algos.LeakyBucket{Rate: 1, Per: time.Second, Capacity: -1}, "LeakyBucket.Capacity"},
		"a queue of endless length":          {algos.LeakyBucket{Rate: 1, Per: time.Second, Capacity: math.MaxInt}, "LeakyBucket.Capacity"},
		"a queue in which nobody waits":      {algos.LeakyBucket{Rate: 1, Per: time.Second}, ""},
		"a queue at a prime near 10,000,000": {algos.LeakyBucket{Rate: 9_999_991, Per: time.Second, Capacity: 1 << 40}, ""},

		"a fixed window without limit":   {algos.FixedWindow{Window: time.Second}, "FixedWindow.Limit"},
		"a fixed window without length":  {algos.FixedWindow{Limit: 1}, "FixedWindow.Window"},
		"a window of a nanosecond":       {algos.FixedWindow{Limit: 1, Window: time.Nanosecond}, "FixedWindow.Window"},
		"a window of two years":          {algos.FixedWindow{Limit: 1, Window: 25 * month}, "FixedWindow.Window"},
		"a limit of 2^41":                {algos.FixedWindow{Limit: 1 << 41, Window: time.Second}, "FixedWindow.Limit"},
		"a window of a microsecond":      {algos.FixedWindow{Limit: 1, Window: time.Microsecond}, ""},
		"a window of 13 months":          {algos.FixedWindow{Limit: 1 << 40, Window: 13 * month}, ""},
		"aligned windows of 7 h":         {algos.FixedWindow{Limit: 1, Window: 7 * time.Hour, Location: time.UTC}, "FixedWindow.Window"},
		"aligned windows of -1 ns":       {algos.FixedWindow{Limit: 1, Window: -1, Location: time.UTC}, "FixedWindow.Window"},
		"windows aligned to this place":  {algos.FixedWindow{Limit: 1, Window: time.Hour, Location: time.Local}, "FixedWindow.Location"},
		"aligned windows without limit":  {algos.FixedWindow{Window: time.Hour, Location: time.UTC}, "FixedWindow.Limit"},
		"aligned windows of 10 minutes":  {algos.FixedWindow{Limit: 1, Window: 10 * time.Minute, Location: time.UTC}, ""},
		"a calendar without windows":     {algos.CalendarWindow{Limit: 1}, "CalendarWindow.Every"},
		"a calendar of 7 h":              {algos.CalendarWindow{Limit: 1, Every: algos.Every(7 * time.Hour)}, "CalendarWindow.Every"},
		"a calendar of two days":         {algos.CalendarWindow{Limit: 1, Every: 2 * algos.Day}, "CalendarWindow.Every"},
		"a calendar of nanoseconds":      {algos.CalendarWindow{Limit: 1, Every: 1}, "CalendarWindow.Every"},
		"a week that begins on no day":   {algos.CalendarWindow{Limit: 1, Every: algos.Week(7)}, "CalendarWindow.Every"},
		"a calendar of no kind":          {algos.CalendarWindow{Limit: 1, Every: -3}, "CalendarWindow.Every"},
		"a calendar of minus nine weeks": {algos.CalendarWindow{Limit: 1, Every: -17}, "CalendarWindow.Every"},
		"a calendar of this place":       {algos.CalendarWindow{Limit: 1, Every: algos.Day, Location: time.Local}, "CalendarWindow.Location"},
		"a calendar without limit":       {algos.CalendarWindow{Every: algos.Day}, "CalendarWindow.Limit"},
		"a week from Saturday":           {algos.CalendarWindow{Limit: 1, Every: algos.Week(time.Saturday)}, ""},
		"a calendar of microseconds":     {algos.CalendarWindow{Limit: 1, Every: algos.Every(time.Microsecond)}, ""},

		"a sliding window without limit":  {algos.SlidingWindow{Window: time.Second, Cells: 1}, "SlidingWindow.Limit"},
		"a sliding window without length": {algos.SlidingWindow{Limit: 1, Cells: 1}, "SlidingWindow.Window"},
		"a sliding window without cells":  {algos.SlidingWindow{Limit: 1, Window: time.Second}, "SlidingWindow.Cells"},
		"more cells than microseconds":    {algos.SlidingWindow{Limit: 1, Window: time.Microsecond, Cells: 2}, "SlidingWindow.Cells"},
		"a million cells":                 {algos.SlidingWindow{Limit: 1, Window: time.Hour, Cells: 1_000_000}, "SlidingWindow.Cells"},
		"250 cells":                       {algos.SlidingWindow{Limit: 1, Window: 13 * month, Cells: 250}, ""},

		"a log without limit":            {algos.SlidingLog{Window: time.Second}, "SlidingLog.Limit"},
		"a log without window":           {algos.SlidingLog{Limit: 1}, "SlidingLog.Window"},
		"a log of an endless limit":      {algos.SlidingLog{Limit: math.MaxInt, Window: time.Second}, "SlidingLog.Limit"},
		"a log of a hundred thousand":    {algos.SlidingLog{Limit: 100_000, Window: time.Second}, ""},
		"a log of one in a microsecond":  {algos.SlidingLog{Limit: 1, Window: time.Microsecond}, ""},
		"a log of part of a microsecond": {algos.SlidingLog{Limit: 1, Window: 1500 * time.Nanosecond}, "SlidingLog.Window"},

		"a warm-up without rate":          {algos.WarmUp{Per: time.Second}, "WarmUp.Rate"},
		"a warm-up without period":        {algos.WarmUp{Rate: 1}, "WarmUp.Per"},
		"a warm-up that has ended before": {algos.WarmUp{Rate: 1, Per: time.Second, Period: -1}, "WarmUp.Period"},
		"a warm-up of years":              {algos.WarmUp{Rate: 1, Per: time.Second, Period: math.MaxInt64}, "WarmUp.Period"},
		"a negative cold factor":          {algos.WarmUp{Rate: 1, Per: time.Second, ColdFactor: -1}, "WarmUp.ColdFactor"},
		"a warm-up without warming up":    {algos.WarmUp{Rate: 1, Per: time.Second}, ""},
		"a warm-up of a microsecond":      {algos.WarmUp{Rate: 5, Per: time.Second, Period: time.Microsecond}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := headgate.New(headgate.Memory(), "k", test.algorithm)
			switch {
			case test.field == "" && err != nil:
				t.Error(err)
			case test.field == "":
				if d := allowN(t, l, 1); !d.Allowed || d.Limit < 1 {
					t.Errorf("%+v", d)
				}
			case !errors.Is(err, headgate.ErrInvalid) || !strings.Contains(err.Error(), test.field):
				t.Errorf("%v", err)
			}
		})
	}
}
