package app

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// newSmallProcess returns a process whose statements all use one connection.
func newSmallProcess(t *testing.T, parts ...Part) *Process {
	t.Helper()
	p, _ := newTestProcess(t, parts...)
	p.Pool.SetMaxOpenConns(1)
	return p
}

func TestCheckReady(t *testing.T) {
	p := newSmallProcess(t, Part{Relations: []string{"outbox_oldest", "outbox"}})
	if _, err := p.checkReady(t.Context()); err != nil {
		t.Errorf("checkReady returns %v, want nil", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if _, err := p.checkReady(stopped); err == nil {
		t.Error("after the end of its context checkReady returns nil")
	}
	p.Parts = append(p.Parts, Part{Relations: []string{"missing_index"}})
	_, err := p.checkReady(t.Context())
	if err == nil || !postgres.Unavailable(err) || !strings.Contains(err.Error(), "missing_index") {
		t.Errorf("without an index checkReady returns %v, want an error that names it and counts as unavailable", err)
	}
}

// TestFindViolations checks that a check of all rows may take longer than other statements, and may read whole tables.
// Afterwards the session has its settings again.
func TestFindViolations(t *testing.T) {
	p := newSmallProcess(t)
	const settings = `current_setting('statement_timeout') || ' ' || current_setting('enable_seqscan')`
	found, err := FindViolations(t.Context(), p.DB, true, `
		SELECT 3 AS invariant, 'loan 1' AS subject, `+settings+` || ' ' || $1::bigint AS detail`, 2_000_000)
	if want := (Violation{3, "loan 1", "0 on 2000000"}); err != nil || len(found) != 1 || found[0] != want {
		t.Errorf("the violations are %+v, %v; want %+v", found, err, want)
	}
	if after := testenv.Query[string](t, p.Pool, `SELECT `+settings); after != "5s off" {
		t.Errorf("afterwards the settings are %q, want 5s and off", after)
	}
	found, err = FindViolations(t.Context(), p.DB, false,
		`SELECT 1 AS invariant, '' AS subject, '' AS detail WHERE false`)
	if text, _ := json.Marshal(found); err != nil || string(text) != "[]" {
		t.Errorf("without a violation the answer is %s, %v; want an empty list", text, err)
	}
}
