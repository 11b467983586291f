package app

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"gorm.io/gorm"
)

// Violation is a row that breaks an invariant.
type Violation struct {
	Invariant int    `json:"invariant"` // the number of the invariant in the statement
	Subject   string `json:"subject"`   // the row, with its id
	Detail    string `json:"detail"`
}

// Invariants returns the violations of a part's invariants. bound is how long past its due time a row may be pending.
// If full is false, the check reads only rows that are open or ended lately, so that it stays fast; otherwise it
// reads every row, for `doctor --full`.
type Invariants func(ctx context.Context, bound time.Duration, full bool) ([]Violation, error)

// FindViolations returns the rows that break the invariants of a domain. A correct database has none. Only ctx limits
// the time of the check. If full is false, the statement checks few of many rows, so PostgreSQL must find them with
// indexes, whatever the statistics of the tables say.
//
// The statement returns the columns invariant, subject and detail, and limits the number of rows.
func FindViolations(ctx context.Context, db *gorm.DB, full bool, statement string, args ...any) ([]Violation, error) {
	violations := []Violation{}
	err := db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		// A plan for the values of the parameters skips what they exclude, so one statement can check few rows or all.
		err := tx.Exec(`SELECT set_config('statement_timeout', '0', true), set_config('enable_seqscan', $1, true),
			set_config('plan_cache_mode', 'force_custom_plan', true)`, strconv.FormatBool(full)).Error
		if err != nil {
			return err
		}
		return tx.Raw(statement, args...).Scan(&violations).Error
	})
	if err != nil {
		return nil, fmt.Errorf("check invariants: %w", err)
	}
	return violations, nil
}

// FoundRow is what a table says of one of its rows, for operators who ask where the row is.
type FoundRow struct {
	ID      string     `json:"id"`
	Kind    string     `json:"-"`        // of the task that times out the row
	Status  string     `json:"status"`   // as the table has it
	At      time.Time  `json:"at"`       // when the row was read, by the database's clock
	DueAt   time.Time  `json:"due_at"`   // when the row times out, or would have timed out
	Held    bool       `json:"held"`     // until its due time, a second party may confirm the row
	EndedAt *time.Time `json:"ended_at"` // nil: the row is pending
	EndedBy string     `json:"ended_by"` // who ended the row; "": it is pending
	Blocker string     `json:"blocker"`  // says which lock keeps an overdue row from timing out; "": none does
}
