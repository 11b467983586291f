package testenv

import (
	"database/sql"
	"strings"
	"testing"
)

// Plan is a statement, and how PostgreSQL must plan it.
type Plan struct {
	Statement string
	Params    string   // as for [Explain]
	Uses      []string // what the plan for large tables has, such as the names of indexes
	Never     []string // what no plan has, besides a scan of a whole table
}

// CheckPlans checks the plans of statements, by their names, with the statistics of the tables as they are, which are
// new, and again after fill has made the tables large. Both must be good, because a table can grow before its next
// statistics. db must be a pool of the service, whose session settings influence the plans.
func CheckPlans(t *testing.T, db *sql.DB, tables []string, plans map[string]Plan, fill func(t testing.TB)) {
	check := func(size string, large bool) {
		Exec(t, db, `VACUUM ANALYZE `+strings.Join(tables, ", "))
		for name, p := range plans {
			t.Run(size+"/"+name, func(t *testing.T) {
				plan := Explain(t, db, p.Statement, p.Params)
				uses := p.Uses
				if !large { // several indexes may suit a table without rows
					uses = nil
				}
				CheckPlan(t, plan, uses, tables...)
				for _, text := range p.Never {
					if strings.Contains(plan, text) {
						t.Errorf("the plan has %q:\n%s", text, plan)
					}
				}
			})
		}
	}
	check("new tables", false)
	fill(t)
	check("large tables", true)
}

// CheckPlan checks that a plan has all texts in uses, such as the names of indexes, and reads none of the tables as a
// whole.
func CheckPlan(t testing.TB, plan string, uses []string, tables ...string) {
	t.Helper()
	for _, text := range uses {
		if !strings.Contains(plan, text) {
			t.Errorf("the plan lacks %q:\n%s", text, plan)
		}
	}
	for _, table := range tables {
		if strings.Contains(plan, "Seq Scan on "+table) {
			t.Errorf("the plan reads the whole table %s:\n%s", table, plan)
		}
	}
}
