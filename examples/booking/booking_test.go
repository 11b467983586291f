package main

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv/parttest"
)

// TestStepsInEachState takes each step in each state of a row, twice. The second time nothing changes, but for a wrong
// code.
func TestStepsInEachState(t *testing.T) {
	now := time.Now()
	inState := func(s status) row {
		b := row{Code: "the code", Status: s, ExpiresAt: now.Add(time.Minute), ServerTime: now}
		if s != pending && s != expired {
			b.EndedAt = &now
		}
		return b
	}
	overdue := inState(pending)
	overdue.ExpiresAt = now // it is too late at the deadline
	states := map[string]row{"overdue": overdue}
	for _, s := range []status{pending, confirmed, released, refused, expired} {
		states[string(s)] = inState(s)
	}
	type result struct {
		class string
		after status // "": as before
	}
	want := map[string]map[string]result{
		"confirm":                  {"pending": {"", confirmed}, "confirmed": {}},
		"release":                  {"pending": {"", released}, "released": {}},
		"send a wrong code":        {"pending": {wrongCode.Code, ""}},
		"send the last wrong code": {"pending": {wrongCode.Code, refused}},
	}
	ended := map[string]result{ // the other steps
		"overdue": {deadlinePassed.Code, ""}, "expired": {deadlinePassed.Code, ""},
		"confirmed": {alreadyConfirmed.Code, ""}, "released": {alreadyReleased.Code, ""},
		"refused": {tooManyCodes.Code, ""},
	}
	for state, before := range states {
		for name, step := range steps {
			expected, ok := want[name][state]
			if !ok {
				expected = ended[state]
			}
			b := before
			checkClass(t, name+" "+state, step(&b), expected.class)
			if after := b.Status; after != expected.after && (expected.after != "" || after != before.Status) {
				t.Errorf("%s %s: it is %s afterwards, want %q", name, state, after, expected.after)
			}
			if (b.EndedAt != nil) != (b.Status != pending && b.Status != expired) {
				t.Errorf("%s %s: it ended at %v, and is %s", name, state, b.EndedAt, b.Status)
			}
			if name == "confirm" || name == "release" {
				once := b
				checkClass(t, name+" "+state+" again", step(&b), expected.class)
				if b.Status != once.Status || b.EndedAt != once.EndedAt || b.WrongCodes != once.WrongCodes {
					t.Errorf("%s %s again: it was %+v, and is %+v", name, state, once, b)
				}
			}
		}
	}
}

// TestWrongCodesAreCounted sends wrong codes until none is left.
func TestWrongCodesAreCounted(t *testing.T) {
	b := row{Code: "the code", Status: pending, ExpiresAt: time.Now().Add(time.Minute), ServerTime: time.Now()}
	for left := int64(maxWrongCodes - 1); left >= 0; left-- {
		if b.Status != pending {
			t.Fatalf("with %d wrong codes it is %s, want it pending", b.WrongCodes, b.Status)
		}
		err := b.confirm("the Code")
		if got := rest.AsError(err).Extensions["attempts_left"]; got != left {
			t.Errorf("after %d wrong codes: error %v, %v attempts left, want %d", b.WrongCodes, err, got, left)
		}
	}
	if b.Status != refused {
		t.Errorf("it is %s, want it refused", b.Status)
	}
	checkClass(t, "the right code comes too late", b.confirm(b.Code), tooManyCodes.Code)
}

// TestCreationIsDecided decides wishes for two units, with a bound of ten.
func TestCreationIsDecided(t *testing.T) {
	now, shared := time.Now(), uuid.New()
	w := of(shared, 2)
	w.key = "key"
	open := func(units int64, left time.Duration) row {
		return row{ID: uuid.New(), Places: units, ExpiresAt: now.Add(left)}
	}
	free := func(units int64) []course { return []course{{shared, units, now.Add(time.Hour)}} }
	same, another := row{ID: uuid.New(), Fingerprint: w.fingerprint()}, row{ID: uuid.New(), Fingerprint: []byte("other")}
	two := func(units int64, left time.Duration) []row { return []row{open(3, time.Hour), open(units, left)} }
	for name, test := range map[string]struct {
		needs needs
		class string
	}{
		"free":                            {needs{course: free(2)}, ""},
		"too few are free":                {needs{course: free(1)}, soldOut.Code},
		"unknown":                         {needs{}, unknownCourse.Code},
		"it begins":                       {needs{course: []course{{shared, 5, now}}}, unknownCourse.Code},
		"up to the bound":                 {needs{course: free(2), open: two(5, 1)}, ""},
		"beyond the bound":                {needs{course: free(2), open: two(6, 1)}, tooManyPlaces.Code},
		"what is overdue does not count":  {needs{course: free(2), open: two(6, 0)}, ""},
		"the key of the same wish":        {needs{existing: []row{same}}, ""},
		"the key of another wish":         {needs{existing: []row{another}}, rest.KeyReused.Code},
		"a repetition meets no condition": {needs{course: free(0), existing: []row{same}, open: []row{open(10, 1)}}, ""},
	} {
		test.needs.now = now
		b, replayed, err := test.needs.decide(w, &options{Timeout: time.Minute, MaxOpenPlaces: 10})
		checkClass(t, name, err, test.class)
		switch {
		case err != nil:
			open, _ := rest.AsError(err).Extensions["open_bookings"].([]uuid.UUID)
			if n := test.needs; parttest.ClassOf(err) == tooManyPlaces &&
				!slices.Equal(open, []uuid.UUID{n.open[0].ID, n.open[1].ID}) {
				t.Errorf("%s: the rejection names %v, want the two open rows", name, open)
			}
		case replayed != (test.needs.existing != nil):
			t.Errorf("%s: replayed %v", name, replayed)
		case replayed && b.ID != same.ID:
			t.Errorf("%s: got %v, want the row that exists", name, b.ID)
		case !replayed && (b.Status != pending || !b.ExpiresAt.Equal(now.Add(time.Minute)) || len(b.Code) != 8):
			t.Errorf("%s: got %+v, want it pending for a minute, with a code", name, b)
		}
	}
}
