package reconcile

import (
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

func TestConfig(t *testing.T) {
	tests := map[string]struct {
		cfg  Config
		want string // part of the error; empty: none
	}{
		"defaults":     {Config{}, ""},
		"seconds":      {Config{Schedule: "@every 1s", Lookahead: 2 * time.Second}, ""},
		"every minute": {Config{Schedule: "* * * * *"}, ""},
		"a descriptor": {Config{Schedule: "@hourly", Lookahead: 2 * time.Hour}, ""},
		"a zone": {Config{Schedule: "TZ=Europe/Berlin */10 * * * *", Lookahead: 20 * time.Minute},
			""},
		"a zone and an interval": {Config{Schedule: "CRON_TZ=UTC @every 1m"}, ""},
		"the zone of the machine": {Config{Schedule: "TZ=Local */10 * * * *", Lookahead: 20 * time.Minute},
			"TZ=Local is not a time zone"},
		"the machine's, for cron":  {Config{Schedule: "CRON_TZ=Local @every 1m"}, "TZ=Europe/Berlin"},
		"rarely":                   {Config{Schedule: "0 12 * * *"}, ""},
		"a short look-ahead":       {Config{Schedule: "* * * * *", Lookahead: time.Second}, "less than twice 1s"},
		"no expression":            {Config{Schedule: "often"}, "fields"},
		"blanks":                   {Config{Schedule: " \n "}, "fields"},
		"one interval":             {Config{Schedule: "@every 1m", Lookahead: time.Minute}, "less than twice 1m0s"},
		"an interval of centuries": {Config{Schedule: "@every 2000000h"}, "less than twice"},
		"a negative interval":      {Config{Schedule: "@every -5s"}, "at least 1s"},
		"less than a second":       {Config{Schedule: "TZ=UTC @every 999ms"}, "at least 1s"},
		"an interval of letters":   {Config{Schedule: "@every soon"}, "duration"},
		"a day that never comes":   {Config{Schedule: "0 0 30 2 *", Lookahead: math.MaxInt64}, "never"},
		"no minute":                {Config{Schedule: ", * * * *"}, "never"},
		"a zone alone":             {Config{Schedule: "TZ=UTC"}, "time zone and then an expression"},
		"a zone without a name":    {Config{Schedule: "TZ= * * * * *"}, "time zone and then an expression"},
		"an unknown zone":          {Config{Schedule: "TZ=Mars/Olympus * * * * *"}, "unknown time zone Mars/Olympus"},
		"a zone of two lines":      {Config{Schedule: "TZ=UTC\n* * * * *"}, "time zone and then an expression"},
		"an interval of two lines": {Config{Schedule: "@every 1\ns"}, "duration"},
		"a negative look-ahead":    {Config{Lookahead: -1}, "less than twice 30s"},
		"and a cron expression":    {Config{Schedule: "* * * * *", Lookahead: -1}, "less than twice 1s"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := New(nil, "kind", &fakeTable{}, newQueue(t, nil), test.cfg, slog.New(slog.DiscardHandler), nil)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got the error %v, want none", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) ||
				strings.Contains(err.Error(), "\n")):
				t.Errorf("got the error %v, want an error of one line that contains %q", err, test.want)
			}
		})
	}
}

// TestScheduleInTheZoneOfTheEnvironment names the zone that the environment has, too.
func TestScheduleInTheZoneOfTheEnvironment(t *testing.T) {
	environment := time.Local
	t.Cleanup(func() { time.Local = environment })
	for _, zone := range []string{"Europe/Berlin", "UTC"} {
		location, err := time.LoadLocation(zone)
		testenv.Must(t, err)
		time.Local = location
		schedule, err := parseSchedule("TZ=" + zone + " 30 12 * * *")
		testenv.Must(t, err)
		noon := time.Date(2030, 1, 1, 12, 0, 0, 0, location)
		if next := schedule.Next(noon.UTC()); !next.Equal(noon.Add(30 * time.Minute)) {
			t.Errorf("in %s: the next sweep after %v is at %v, want half an hour later", zone, noon, next)
		}
	}
}
