package reconcile

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // because the container image has no time zones

	"github.com/robfig/cron/v3"
)

// parseSchedule parses a cron expression, in UTC or in the time zone that it names, or @every with a duration.
func parseSchedule(text string) (cron.Schedule, error) {
	if err := checkZone(text); err != nil {
		return nil, err
	}
	schedule, err := cron.ParseStandard(text)
	if err != nil {
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " ")) // the text may contain line breaks
	}
	if _, every, ok := strings.Cut(text, "@every "); ok { // cron silently replaces a shorter interval by a second
		if d, err := time.ParseDuration(every); err != nil || d < time.Second {
			return nil, fmt.Errorf("the interval is %.20q, want at least 1s", every)
		}
	}
	if schedule.Next(time.Now().UTC()).IsZero() {
		return nil, errors.New("the expression never matches a time")
	}
	return schedule, nil
}

// checkZone returns an error if a time zone is unknown, or if no expression follows it. cron v3.0.1 panics on some of
// these texts. The zone Local is an error, because cron uses the same value for a schedule without a zone, which is in
// UTC here. Processes on machines with different zones would also sweep at different times.
func checkZone(text string) error {
	_, rest, named := strings.Cut(text, "TZ=")
	if !named {
		return nil
	}
	zone, _, expression := strings.Cut(rest, " ")
	_, err := time.LoadLocation(zone)
	switch {
	case zone == "" || strings.ContainsAny(zone, "\n\r") || !expression:
		return errors.New("want a time zone and then an expression, as in TZ=UTC */5 * * * *")
	case zone == "Local":
		return errors.New("TZ=Local is not a time zone: name one, as in TZ=Europe/Berlin, or leave it out for UTC")
	}
	return err
}
