package reconcile

import (
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

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
		"a descriptor":              {Config{Schedule: "@hourly", Lookahead: 2 * time.Hour}, ""},
		"a zone":                    {Config{Schedule: "TZ=Europe/Berlin */10 * * * *", Lookahead: 20 * time.Minute}, ""},
		"a zone and an interval":    {Config{Schedule: "CRON_TZ=UTC @every 1m"}, ""},
		"the zone of the machine":   {Config{Schedule: "TZ=Local */10 * * * *", Lookahead: 20 * time.Minute}, "TZ=Local is not a time zone"},
		"the machine's, for cron":   {Config{Schedule: "CRON_TZ=Local @every 1m"}, "TZ=Europe/Berlin"},
		"days of 25 hours":          {Config{Schedule: "TZ=Europe/Berlin 0 12 * * *", Lookahead: 50 * time.Hour}, ""},
		"no expression":             {Config{Schedule: "often"}, "fields"},
		"blanks":                    {Config{Schedule: " \n "}, "fields"},
		"one interval":              {Config{Schedule: "@every 1m", Lookahead: time.Minute}, "less than twice 1m0s"},
		"a gap within the hour":     {Config{Schedule: "0,45 * * * *", Lookahead: time.Hour}, "less than twice 45m0s"},
		"an interval of centuries":  {Config{Schedule: "@every 2000000h"}, "less than twice"},
		"a negative interval":       {Config{Schedule: "@every -5s"}, "at least 1s"},
		"less than a second":        {Config{Schedule: "TZ=UTC @every 999ms"}, "at least 1s"},
		"an interval of letters":    {Config{Schedule: "@every soon"}, "duration"},
		"rare hours":                {Config{Schedule: "0 9,17 * * *", Lookahead: 16 * time.Hour}, "less than twice 16h0m0s"},
		"a day of 25 hours":         {Config{Schedule: "TZ=Europe/Berlin 0 12 * * *", Lookahead: 48 * time.Hour}, "less than twice 25h0m0s"},
		"one day of the month":      {Config{Schedule: "* * 1 * *"}, "less than twice"},
		"a day that never comes":    {Config{Schedule: "0 0 30 2 *", Lookahead: math.MaxInt64}, "never"},
		"no minute":                 {Config{Schedule: ", * * * *"}, "never"},
		"a zone alone":              {Config{Schedule: "TZ=UTC"}, "time zone and then an expression"},
		"a zone without a name":     {Config{Schedule: "TZ= * * * * *"}, "time zone and then an expression"},
		"an unknown zone":           {Config{Schedule: "TZ=Mars/Olympus * * * * *"}, "time zone and then an expression"},
		"a zone of two lines":       {Config{Schedule: "TZ=UTC\n* * * * *"}, "time zone and then an expression"},
		"an interval of two lines":  {Config{Schedule: "@every 1\ns"}, "duration"},
		"a negative look-ahead":     {Config{Lookahead: -1}, "must not be negative"},
		"a negative grace":          {Config{Grace: -1}, "must not be negative"},
		"a negative time to probes": {Config{Probe: -1}, "must not be negative"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := newReconciler(nil, "kind", &fakeTable{}, newQueue(t, nil), test.cfg, slog.New(slog.DiscardHandler), nil)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got the error %v, want none", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("got the error %v, want an error of one line that contains %q", err, test.want)
			}
		})
	}
}

// TestLongestInterval compares the result with a search through all activations of a year, in UTC and in zones with
// daylight saving time. Whether a schedule is valid must not depend on the time at which it is checked.
func TestLongestInterval(t *testing.T) {
	zone := rapid.SampledFrom([]string{
		"", "TZ=UTC ", "TZ=America/New_York ", "TZ=Europe/London ", "TZ=Australia/Lord_Howe ", "TZ=Africa/Cairo ", "TZ=Asia/Kathmandu ",
	})
	minute := rapid.SampledFrom([]string{"0", "59", "30", "10,50", "0,45", "5-50/9", "*/7", "*"})
	hour := rapid.SampledFrom([]string{"0", "1", "2", "23", "1,2", "0-4", "9-17", "*/5", "*"})
	dayOfMonth := rapid.SampledFrom([]string{"*", "*", "*/10", "1", "13,31", "*/1"})
	month := rapid.SampledFrom([]string{"*", "*", "2", "6-8", "*/5"})
	dayOfWeek := rapid.SampledFrom([]string{"*", "*", "1-5", "0", "6,2"})
	rapid.Check(t, func(t *rapid.T) {
		text := fmt.Sprintf("%s%s %s %s %s %s",
			zone.Draw(t, "zone"), minute.Draw(t, "minute"), hour.Draw(t, "hour"),
			dayOfMonth.Draw(t, "day of month"), month.Draw(t, "month"), dayOfWeek.Draw(t, "day of week"))
		now := time.Unix(rapid.Int64Range(1_780_000_000, 1_900_000_000).Draw(t, "now"), 0).UTC()
		schedule, err := parseSchedule(text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		var want time.Duration
		at := schedule.Next(now)
		for end := at.AddDate(1, 0, 0); at.Before(end); {
			next := schedule.Next(at)
			want = max(want, next.Sub(at))
			at = next
		}
		if got := longestInterval(schedule, now, math.MaxInt64); got != want {
			t.Fatalf("after %v, the longest gap of %q is %v, want %v", now, text, got, want)
		}
		enough := time.Duration(rapid.Int64Range(1, int64(100*time.Hour)).Draw(t, "enough"))
		if got := longestInterval(schedule, now, enough); got > enough != (want > enough) {
			t.Fatalf("longestInterval of %q with enough %v is %v, but the longest gap is %v", text, enough, got, want)
		}
	})
}

// TestAnyScheduleIsAcceptedOrRejected parses random text. The result is an error of one line, or a schedule whose
// gaps are at most half of the look-ahead.
func TestAnyScheduleIsAcceptedOrRejected(t *testing.T) {
	pieces := []string{"TZ=", "CRON_TZ=", "UTC", "Local", "Europe/Berlin", " ", "  ", "\n", "\t", "@every", "@daily", "@", "1h", "-5s", "1ns", "9999999h",
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
