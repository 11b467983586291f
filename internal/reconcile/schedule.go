package reconcile

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

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
	if _, err := time.LoadLocation(zone); err != nil || zone == "" || !expression {
		return errors.New("want a time zone and then an expression, as in TZ=UTC */5 * * * *")
	}
	if zone == time.Local.String() {
		return errors.New("TZ=Local is not a time zone: name one, as in TZ=Europe/Berlin, or leave it out for UTC")
	}
	return nil
}

// longestInterval returns the longest time between two activations of the schedule, in the year that begins with the first
// activation after now. To save time, it may stop at the first interval that is longer than enough, and return it.
func longestInterval(schedule cron.Schedule, now time.Time, enough time.Duration) time.Duration {
	switch schedule := schedule.(type) {
	case cron.ConstantDelaySchedule:
		return schedule.Delay
	case *cron.SpecSchedule:
		return longestIntervalOf(schedule, now.UTC(), enough)
	default:
		return math.MaxInt64 // parseSchedule returns no other type
	}
}

// longestIntervalOf computes only the first activation of each hour, because cron takes a second to compute all activations
// of a year. The other activations follow from the minutes, which are the same in every hour with activations.
func longestIntervalOf(spec *cron.SpecSchedule, now time.Time, enough time.Duration) time.Duration {
	last, longest := minutes(spec)
	next := spec.Next(now)
	for end := next.AddDate(1, 0, 0); next.Before(end) && longest <= enough; {
		lastInHour := next.Add(time.Duration(max(0, last-minuteOf(spec, next))) * time.Minute)
		if next = spec.Next(lastInHour); next.IsZero() { // there are no more activations
			return math.MaxInt64
		}
		longest = max(longest, next.Sub(lastInHour))
	}
	return longest
}

// minutes returns the last minute of an hour that has an activation, and the longest time between two activations in an
// hour.
func minutes(spec *cron.SpecSchedule) (last int, longest time.Duration) {
	first := true
	for minute := range 60 {
		if spec.Minute&(1<<minute) == 0 {
			continue
		}
		if !first {
			longest = max(longest, time.Duration(minute-last)*time.Minute)
		}
		first, last = false, minute
	}
	return last, longest
}

// minuteOf returns the minute of a time in the schedule's time zone, which is UTC unless the schedule names one.
func minuteOf(spec *cron.SpecSchedule, t time.Time) int {
	if spec.Location != time.Local {
		t = t.In(spec.Location)
	}
	return t.Minute()
}
