package faulttest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"example.com/shop/internal/testenv"
)

// This file looks at every row that has ended, and at every call near a deadline. It trusts neither the constraints of
// the tables nor the statements of the service.

// recordEnds makes the database record each end of each row, and the time at which it was stored, so that a load finds
// rows that have ended twice.
func (d *Deployment) recordEnds() {
	d.T.Helper()
	d.Exec(`CREATE TABLE row_ends (id text, status text, ended_at timestamptz, stored_at timestamptz)`)
	d.Exec(`CREATE INDEX ON row_ends (id)`)
	d.Exec(`CREATE FUNCTION record_end() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			INSERT INTO row_ends SELECT r.id::text, r.status, r.ended_at, clock_timestamp()
			FROM (` + d.Service.rows() + `) AS r
			WHERE r.id = NEW.id AND NOT EXISTS (
				SELECT FROM row_ends e
				WHERE e.id = r.id::text AND (e.status, e.ended_at) IS NOT DISTINCT FROM (r.status, r.ended_at));
			RETURN NULL;
		END $$`)
	// The statement may change a row that has ended in other ways.
	d.Exec(`CREATE TRIGGER record_end AFTER UPDATE ON ` + d.Service.Table + ` FOR EACH ROW
		WHEN (OLD.status <> 'pending' OR NEW.status <> 'pending') EXECUTE FUNCTION record_end()`)
}

// wrongEnds selects the rows that did not end once, in time, and with the time of their end, each with what is wrong.
// A row that was held may be cancelled at any time: its customer may have asked for it before its deadline.
const wrongEnds = `
	SELECT rows.key, rows.status || ' at ' || coalesce(rows.ended_at::text, 'no time') || ': ' || wrong.what
	FROM (%s) AS rows
	LEFT JOIN LATERAL (
		SELECT count(*) AS n, min(stored_at) AS first, coalesce(string_agg(format('%%s at %%s, stored at %%s', status,
			ended_at, stored_at), '; ' ORDER BY stored_at), 'no end was stored') AS all
		FROM row_ends WHERE row_ends.id = rows.id::text
	) AS ends ON true
	CROSS JOIN LATERAL (VALUES
		(rows.status NOT IN ('pending', 'confirmed', 'cancelled', 'timed out'), 'an unknown status'),
		((rows.status = 'pending') <> (rows.ended_at IS NULL), 'a row has the time of its end if it has ended'),
		(ends.n <> CASE rows.status WHEN 'pending' THEN 0 ELSE 1 END, 'it ended ' || ends.n || ' times: ' || ends.all),
		(rows.status = 'timed out' AND least(rows.ended_at, ends.first) < rows.due,
			'its timeout is earlier than it was due, at ' || rows.due || ': ' || ends.all),
		(rows.status = 'confirmed' AND rows.ended_at >= rows.due, 'confirmed when it was due, at ' || rows.due),
		(rows.status = 'cancelled' AND NOT rows.held AND rows.ended_at >= rows.deadline,
			'cancelled by its customer when it was due, at ' || rows.deadline),
		(rows.ended_at > ends.first, 'the time of its end is later than its end: ' || ends.all)
	) AS wrong (found, what)
	WHERE wrong.found AND rows.id::text <> ALL ($1)`

// checkEnds reports each row of the load's time that has ended too early or too late, twice, or without a time.
func (l *Load) checkEnds() {
	t := l.d.T
	t.Helper()
	rows, err := l.d.DB.QueryContext(t.Context(), fmt.Sprintf(wrongEnds, l.d.Service.rows()), l.earlier)
	testenv.Must(t, err)
	defer rows.Close()
	for rows.Next() {
		var key *string
		var wrong string
		testenv.Must(t, rows.Scan(&key, &wrong))
		if key == nil {
			key = new("a row without a key")
		}
		l.Violated("%s: %s", *key, wrong)
	}
	testenv.Must(t, rows.Err())
}

// side tells where a call is in the life of its row.
type side int

// The sides.
const (
	beforeDeadline side = iota // it began within the last second before the deadline
	afterDeadline              // it began within a second after the deadline, and the row had not ended before
	afterEnd                   // it began after an answer had told that the row has ended
	sides
)

// nearCalls counts the answered calls of each decision by their sides.
type nearCalls map[Operation]*[sides]int

// enough is how many calls of each side a load must have, so that it proves something about deadlines.
const enough = 20

// add counts the calls of a visit.
func (n nearCalls) add(v *Visit) {
	for _, e := range v.History {
		if e.Unknown || !slices.Contains(decisions, e.Operation) {
			continue
		}
		at := v.Since.Sub(v.Load.Began) + v.Load.d.Timeout
		ended := false
		for _, other := range v.History {
			switch {
			case other.Unknown || other.Ended > e.Began:
			case other.Operation == Extend && other.Rejected == "":
				at += v.Load.d.Extension
			case other.endsRow():
				ended = true
			}
		}
		if n[e.Operation] == nil {
			n[e.Operation] = new([sides]int)
		}
		count := n[e.Operation]
		switch past := e.Began - at; {
		case ended:
			count[afterEnd]++
		case past < 0 && past >= -near:
			count[beforeDeadline]++
		case past >= 0 && past <= near && e.Rejected != RejectedConfirmed && e.Rejected != RejectedCancelled:
			count[afterDeadline]++
		}
	}
}

// total adds the calls of all operations up.
func (n nearCalls) total() (total [sides]int) {
	for _, counts := range n {
		for i := range total {
			total[i] += counts[i]
		}
	}
	return total
}

// tooFew returns a message if there were too few calls of a side. On a busy machine, slack times fewer are enough.
func (n nearCalls) tooFew(slack int) []string {
	if total := n.total(); slices.Min(total[:]) >= enough/slack {
		return nil
	}
	return []string{fmt.Sprintf(unproven+"want at least %d of each: %v", enough/slack, n)}
}

func (n nearCalls) String() string {
	var parts []string
	for _, o := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%s %d/%d/%d", o, n[o][beforeDeadline], n[o][afterDeadline], n[o][afterEnd]))
	}
	total := n.total()
	return fmt.Sprintf("calls within %v before a deadline, after it, and after the end: %d/%d/%d (%s)", near,
		total[beforeDeadline], total[afterDeadline], total[afterEnd], strings.Join(parts, ", "))
}
