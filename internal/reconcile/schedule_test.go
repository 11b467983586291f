package reconcile

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/robfig/cron/v3"
	"pgregory.net/rapid"
)

func TestConfig(t *testing.T) {
	tests := map[string]struct {
		cfg  Config
		want string // part of the error; empty: none
	}{
		"defaults":                  {Config{}, ""},
		"seconds":                   {Config{Schedule: "@every 1s", Lookahead: 2 * time.Second}, ""},
		"every minute":              {Config{Schedule: "* * * * *"}, ""},
		"every five":                {Config{Schedule: "*/5 * * * *", Lookahead: 10 * time.Minute}, ""},
		"a descriptor":              {Config{Schedule: "@hourly", Lookahead: 2 * time.Hour}, ""},
		"a zone":                    {Config{Schedule: "TZ=Europe/Berlin */10 * * * *", Lookahead: 20 * time.Minute}, ""},
		"a zone and an interval":    {Config{Schedule: "CRON_TZ=UTC @every 1m"}, ""},
		"days of 25 hours":          {Config{Schedule: "TZ=Europe/Berlin 0 12 * * *", Lookahead: 50 * time.Hour}, ""},
		"twice a day":               {Config{Schedule: "0 9,17 * * *", Lookahead: 32 * time.Hour}, ""},
		"no expression":             {Config{Schedule: "often"}, "fields"},
		"blanks":                    {Config{Schedule: " \n "}, "fields"},
		"one interval":              {Config{Schedule: "@every 1m", Lookahead: time.Minute}, "less than twice 1m0s"},
		"an interval of centuries":  {Config{Schedule: "@every 2000000h"}, "less than twice"},
		"no interval":               {Config{Schedule: "@every 0s"}, "at least 1s"},
		"a negative interval":       {Config{Schedule: "@every -5s"}, "at least 1s"},
		"less than a second":        {Config{Schedule: "TZ=UTC @every 999ms"}, "at least 1s"},
		"an interval of letters":    {Config{Schedule: "@every soon"}, "duration"},
		"rare hours":                {Config{Schedule: "0 9,17 * * *", Lookahead: 16 * time.Hour}, "less than twice 16h0m0s"},
		"a day of 25 hours":         {Config{Schedule: "TZ=Europe/Berlin 0 12 * * *", Lookahead: 48 * time.Hour}, "less than twice 25h0m0s"},
		"one day of the month":      {Config{Schedule: "* * 1 * *"}, "less than twice"},
		"working days":              {Config{Schedule: "* * * * 1-5"}, "less than twice"},
		"working hours":             {Config{Schedule: "*/1 9-17 * * *"}, "less than twice"},
		"one month":                 {Config{Schedule: "* * * 6 *"}, "less than twice"},
		"a day that never comes":    {Config{Schedule: "0 0 30 2 *", Lookahead: math.MaxInt64}, "never"},
		"no minute":                 {Config{Schedule: ", * * * *"}, "never"},
		"a zone alone":              {Config{Schedule: "TZ=UTC"}, "time zone and then an expression"},
		"a zone alone, for cron":    {Config{Schedule: "CRON_TZ=UTC"}, "time zone and then an expression"},
		"a zone without a name":     {Config{Schedule: "TZ= * * * * *"}, "time zone and then an expression"},
		"an unknown zone":           {Config{Schedule: "TZ=Mars/Olympus * * * * *"}, "time zone and then an expression"},
		"a zone of two lines":       {Config{Schedule: "TZ=UTC\n* * * * *"}, "time zone and then an expression"},
		"an interval of two lines":  {Config{Schedule: "@every 1\ns"}, "duration"},
		"a negative look-ahead":     {Config{Lookahead: -1}, "must not be negative"},
		"the smallest look-ahead":   {Config{Lookahead: math.MinInt64}, "must not be negative"},
		"a negative grace":          {Config{Grace: -1}, "must not be negative"},
		"a negative time to probes": {Config{Probe: -1}, "must not be negative"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := New(nil, &fakeTable{}, newQueue(t, nil), test.cfg, slog.New(slog.DiscardHandler), nil)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got the error %v, want none", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("got the error %v, want an error of one line that contains %q", err, test.want)
			}
		})
	}
}

// TestGapsAtAnyTime computes gaps from each hour of a week. A schedule must not be valid at one hour and invalid at
// another.
func TestGapsAtAnyTime(t *testing.T) {
	monday := time.Date(2026, 6, 1, 0, 0, 30, 0, time.UTC)
	for _, expression := range []string{"* * 1 * *", "* * * * 1-5", "*/1 9-17 * * *", "* 9 * * *", "* * * 6 *"} {
		schedule, err := parseSchedule(expression)
		if err != nil {
			t.Fatal(err)
		}
		for hour := range 7 * 24 {
			if gap := longestInterval(schedule, monday.Add(time.Duration(hour)*time.Hour), time.Minute); gap <= time.Minute {
				t.Fatalf("the longest gap of %q from hour %d on is %v, want more than a minute", expression, hour, gap)
			}
		}
	}
}

// expression is a cron expression and the values that match each field. The test computes them without cron.
type expression struct {
	text                          string
	minute, hour, dom, month, dow []bool
	anyDayOfMonth, anyDayOfWeek   bool
}

// drawField draws a field of a cron expression and its values.
func drawField(t *rapid.T, label string, low, high int) (text string, has []bool, star bool) {
	has = make([]bool, high+1)
	var parts []string
	for range rapid.IntRange(1, 2).Draw(t, label+" parts") {
		from, to, step := low, high, 1
		var part string
		switch rapid.SampledFrom([]string{"*", "*", "*/n", "n", "n-m", "n-m/n"}).Draw(t, label+" form") {
		case "*":
			part, star = "*", true
		case "*/n":
			step = rapid.IntRange(1, high).Draw(t, label+" step")
			part, star = fmt.Sprintf("*/%d", step), star || step == 1
		case "n":
			from = rapid.IntRange(low, high).Draw(t, label)
			part, to = fmt.Sprint(from), from
		case "n-m":
			from = rapid.IntRange(low, high).Draw(t, label+" from")
			to = rapid.IntRange(from, high).Draw(t, label+" to")
			part = fmt.Sprintf("%d-%d", from, to)
		default:
			from = rapid.IntRange(low, high).Draw(t, label+" from")
			to = rapid.IntRange(from, high).Draw(t, label+" to")
			step = rapid.IntRange(1, high).Draw(t, label+" step")
			part = fmt.Sprintf("%d-%d/%d", from, to, step)
		}
		for v := from; v <= to; v += step {
			has[v] = true
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ","), has, star
}

func drawExpression(t *rapid.T) (e expression) {
	var minute, hour, dom, month, dow string
	minute, e.minute, _ = drawField(t, "minute", 0, 59)
	hour, e.hour, _ = drawField(t, "hour", 0, 23)
	dom, e.dom, e.anyDayOfMonth = drawField(t, "day of month", 1, 31)
	month, e.month, _ = drawField(t, "month", 1, 12)
	dow, e.dow, e.anyDayOfWeek = drawField(t, "day of week", 0, 6)
	e.text = strings.Join([]string{minute, hour, dom, month, dow}, " ")
	return e
}

// matchesDay reports whether the expression has activations on a day. If neither the day of month nor the day of week
// is a star, one of the two must match.
func (e expression) matchesDay(day time.Time) bool {
	dom, dow := e.dom[day.Day()], e.dow[day.Weekday()]
	if e.anyDayOfMonth || e.anyDayOfWeek {
		return e.month[day.Month()] && dom && dow
	}
	return e.month[day.Month()] && (dom || dow)
}

// longestInterval looks at each minute of a year in UTC, and at later minutes until the last gap has ended.
func (e expression) longestInterval(now time.Time) (longest time.Duration) {
	var last, end time.Time
	for day := now.Truncate(24 * time.Hour); day.Before(now.AddDate(12, 0, 0)); day = day.AddDate(0, 0, 1) {
		if !e.matchesDay(day) {
			continue
		}
		for i := range 24 * 60 {
			at := day.Add(time.Duration(i) * time.Minute)
			if !e.hour[i/60] || !e.minute[i%60] || !at.After(now) {
				continue
			}
			if last.IsZero() {
				last, end = at, at.AddDate(1, 0, 0)
			}
			longest = max(longest, at.Sub(last))
			if last = at; !last.Before(end) {
				return longest
			}
		}
	}
	return math.MaxInt64
}

// TestLongestInterval compares the result with a search through each minute of a year.
func TestLongestInterval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawExpression(t)
		now := time.Unix(rapid.Int64Range(1_780_000_000, 1_900_000_000).Draw(t, "now"), 0).UTC()
		schedule, err := cron.ParseStandard(e.text)
		if err != nil {
			t.Fatalf("%q: %v", e.text, err)
		}
		want := e.longestInterval(now)
		if want == math.MaxInt64 {
			if !schedule.Next(now).IsZero() {
				t.Fatalf("%q has an activation at %v, want none", e.text, schedule.Next(now))
			}
			return
		}
		if got := longestInterval(schedule, now, math.MaxInt64); got != want {
			t.Fatalf("the longest gap of %q is %v, want %v", e.text, got, want)
		}
		enough := time.Duration(rapid.Int64Range(1, int64(100*time.Hour)).Draw(t, "enough"))
		if got := longestInterval(schedule, now, enough); got > enough != (want > enough) {
			t.Fatalf("longestInterval of %q with enough %v is %v, but the longest gap is %v", e.text, enough, got, want)
		}
	})
}

// TestLongestIntervalInZones compares the result with a search through all activations, in zones with daylight saving time.
func TestLongestIntervalInZones(t *testing.T) {
	minutes := []string{"0", "59", "30", "10,50", "0,45"}
	now := time.Unix(1_780_000_000, 0).UTC()
	for _, zone := range []string{"America/New_York", "Europe/London", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kathmandu", "Local"} {
		for i, hour := range []string{"0-4", "0", "1", "2", "23", "1,2"} {
			text := fmt.Sprintf("TZ=%s %s %s * * *", zone, minutes[i%len(minutes)], hour)
			schedule, err := parseSchedule(text)
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			now = now.AddDate(0, 0, 37) // another distance to the next change of the clocks
			var want time.Duration
			at := schedule.Next(now)
			for end := at.AddDate(1, 0, 0); at.Before(end); {
				next := schedule.Next(at)
				want = max(want, next.Sub(at))
				at = next
			}
			if got := longestInterval(schedule, now, math.MaxInt64); got != want {
				t.Errorf("after %v, the longest gap of %q is %v, want %v", now, text, got, want)
			}
		}
	}
}

// TestAnyScheduleIsAcceptedOrRejected parses random text. The result is an error of one line, or a schedule whose
// gaps are at most half of the look-ahead.
func TestAnyScheduleIsAcceptedOrRejected(t *testing.T) {
	pieces := []string{"TZ=", "CRON_TZ=", "UTC", "Europe/Berlin", " ", "  ", "\n", "\t", "@every", "@daily", "@", "1h", "-5s", "1ns", "9999999h",
		"*", "*/5", "?", "1-5", "5-1", "/", ",", "-", "0", "59", "60", "mon", "jan", "99999999999999999999", "\xff", "é", "../../etc/passwd"}
	text := rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.SampledFrom(pieces)), func(some []string) string { return strings.Join(some, "") }),
		rapid.Map(rapid.SliceOfN(rapid.SampledFrom(pieces), 5, 6), func(some []string) string { return strings.Join(some, " ") }),
	)
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			Schedule:  text.Draw(t, "schedule"),
			Lookahead: time.Duration(rapid.Int64().Draw(t, "look-ahead")),
		}
		filled, schedule, gap, err := cfg.withDefaults()
		switch {
		case err != nil && slices.ContainsFunc([]rune(err.Error()), func(r rune) bool { return r == '\n' || r == '\r' }):
			t.Fatalf("%q is rejected with more than one line: %v", cfg.Schedule, err)
		case err == nil && (gap <= 0 || gap > filled.Lookahead/2 || schedule.Next(time.Now()).IsZero()):
			t.Fatalf("%q is accepted, with a gap of %v and a look-ahead of %v", cfg.Schedule, gap, filled.Lookahead)
		}
	})
}
