package faulttest

import (
	"context"
	"database/sql"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"example.com/shop/internal/testenv"
)

// This file has what the tests know about shared rows.

// rushes reports whether some shared row is scarce.
func (s *Service) rushes() bool { return s.Shared != nil && s.Shared.Rush != nil }

// needs returns the names of the shared rows that a row with this body needs.
func (r *SharedRows) needs(body string) []string { return slices.Sorted(maps.Keys(r.Units(body))) }

// independent returns the first body that needs none of the shared rows that the first body needs, or "".
func (s *Service) independent() string {
	first := s.Shared.needs(s.Bodies[0])
	for _, body := range s.Bodies {
		if !slices.ContainsFunc(s.Shared.needs(body), func(name string) bool { return slices.Contains(first, name) }) {
			return body
		}
	}
	return ""
}

// sharedTogether returns the names of two shared rows that a row needs, or nil if no row needs two.
func (s *Service) sharedTogether() []string {
	for _, body := range s.Bodies {
		if names := s.Shared.needs(body); len(names) > 1 {
			return names[:2]
		}
	}
	return nil
}

// lockShared locks the shared rows that a row with this body needs.
func (d *Deployment) lockShared(body string) (tx *sql.Tx, release func()) {
	d.T.Helper()
	return d.Lock(d.Service.Shared.Lock, d.Service.Shared.needs(body))
}

// querier is a pool of connections or a transaction.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// supplies returns how many units of each shared row are free, or nil if rows share no rows.
func (s *Service) supplies(ctx context.Context, db querier) (free map[string]int, err error) {
	if s.Shared == nil {
		return nil, nil
	}
	var text []byte
	err = db.QueryRowContext(ctx, `
		SELECT json_object_agg(name, units) FROM (`+s.Shared.Supplies+`) AS supply (name, units)`).Scan(&text)
	if err == nil {
		err = json.Unmarshal(text, &free)
	}
	return free, err
}

// supplies is [Service.supplies] of the deployment.
func (d *Deployment) supplies() map[string]int {
	d.T.Helper()
	free, err := d.Service.supplies(d.T.Context(), d.DB)
	testenv.Must(d.T, err)
	return free
}

// checkSupplies checks how many units are free after all rows have ended: the confirmed rows have theirs, and all
// other rows have given theirs back.
func (l *Load) checkSupplies(stored map[string]storedRow) {
	l.d.T.Helper()
	taken := map[string]int{}
	for _, v := range l.Visits {
		if stored[v.Key].Status == Confirmed && l.d.Service.Shared != nil {
			for name, units := range l.d.Service.Shared.Units(v.body) {
				taken[name] += units
			}
		}
	}
	for name, free := range l.d.supplies() {
		if want := l.supplies[name] - taken[name]; free != want {
			l.Violated("%d units of %s are free, want %d: there were %d, and confirmed rows have %d",
				free, name, want, l.supplies[name], taken[name])
		}
	}
}

// holder is a row that has taken units of a shared row.
type holder struct {
	from  time.Duration // when the first call began that may have created the row
	units int
}

// holders returns the rows that the load has created, by their shared rows.
func (l *Load) holders(stored map[string]storedRow) map[string][]holder {
	holders := map[string][]holder{}
	if l.d.Service.Shared == nil {
		return holders
	}
	for _, v := range l.Visits {
		if _, ok := stored[v.Key]; !ok {
			continue
		}
		from := never
		for _, e := range v.History {
			if e.Operation == Create {
				from = min(from, e.Began)
			}
		}
		for shared, units := range l.d.Service.Shared.Units(v.body) {
			holders[shared] = append(holders[shared], holder{from, units})
		}
	}
	return holders
}

// exhausted reports whether a shared row that a row with this body needs may have been exhausted at a time. It does
// not know when rows released their units. So its answer is exact only until the first row releases some: for a rush.
func (l *Load) exhausted(body string, at time.Duration, holders map[string][]holder) bool {
	for shared, needed := range l.d.Service.Shared.Units(body) {
		left := l.supplies[shared]
		for _, h := range holders[shared] {
			if h.from <= at {
				left -= h.units
			}
		}
		if left < needed {
			return true
		}
	}
	return false
}
