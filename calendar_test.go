package headgate_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate"
	"github.com/headgate-go/headgate/algos"
	"github.com/headgate-go/headgate/internal/redistest"
)

// The bubble's clock shows the year 2000 and Redis's the present: a client whose clock could not be more wrong. The
// server's picks the day; the client is told once, and remembers.
func TestAClientWithAWrongClockAgreesWithTheOthers(t *testing.T) {
	server := redistest.Start(t)
	month := algos.CalendarWindow{Limit: 3, Every: algos.Month, Location: time.UTC}
	right := newLimiter(t, headgate.Redis(server.Client()), month)
	if d := allowN(t, right, 1); !d.Allowed || d.Remaining != 2 {
		t.Fatalf("%+v", d)
	}
	synctest.Test(t, func(t *testing.T) {
		if time.Now().Year() > 2001 {
			t.Fatal("the bubble's clock is right")
		}
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: -1, WriteTimeout: -1, PoolTimeout: time.Hour})
		defer rdb.Close()
		wrong := newLimiter(t, headgate.Redis(rdb), month)
		before := server.Calls("evalsha")
		for i, want := range []bool{true, true, false} {
			d := allowN(t, wrong, 1)
			if d.Allowed != want {
				t.Errorf("call %d: %+v", i, d)
			}
			if d.ResetAfter <= 0 || d.ResetAfter > 31*24*time.Hour {
				t.Errorf("call %d: the month ends in %v", i, d.ResetAfter)
			}
		}
		if calls := server.Calls("evalsha") - before; calls != 4 {
			t.Errorf("%d calls for three decisions and one lesson", calls)
		}
	})
	if d := allowN(t, right, 1); d.Allowed {
		t.Errorf("the fourth of three: %+v", d)
	}
	next := time.Now().UTC().AddDate(0, 0, 1-time.Now().UTC().Day()).AddDate(0, 1, 0).Truncate(24 * time.Hour)
	if d := allowN(t, right, 1); time.Until(next.Add(-d.RetryAfter)).Abs() > time.Minute {
		t.Errorf("the next month is said to begin in %v", d.RetryAfter)
	}
}

// A batch job with a daily quota sleeps to the next window when the permit that it got was the last.
func TestAJobSleepsToTheNextWindow(t *testing.T) {
	paris, err := time.LoadLocation("Europe/Paris")
	if err != nil {
		t.Fatal(err)
	}
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, algos.CalendarWindow{Limit: 5, Every: algos.Day, Location: paris})
		days := make(map[string]int)
		for range 23 {
			d := allowN(t, l, 1)
			if !d.Allowed {
				t.Fatalf("%v: %+v", time.Now(), d)
			}
			days[time.Now().In(paris).Format(time.DateOnly)]++
			if d.Remaining == 0 {
				time.Sleep(d.ResetAfter)
			}
		}
		if len(days) != 5 {
			t.Errorf("%v", days)
		}
		for day, n := range days {
			if n > 5 {
				t.Errorf("%d on %s", n, day)
			}
		}
	})
}

// Wait goes through midnight by itself.
func TestWaitGoesToTheNextDay(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, store headgate.Store) {
		l := newLimiter(t, store, algos.CalendarWindow{Limit: 2, Every: algos.Day})
		day := time.Now().UTC().Truncate(24 * time.Hour)
		for i := range 7 {
			if err := l.Wait(context.Background()); err != nil {
				t.Fatal(err)
			}
			if want := day.AddDate(0, 0, i/2); i >= 2 && !time.Now().Equal(want) {
				t.Errorf("permit %d at %v, want %v", i, time.Now().UTC(), want)
			}
		}
	})
}
