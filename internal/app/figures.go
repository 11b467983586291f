package app

import (
	_ "embed"
	"strings"
)

var (
	//go:embed backlog.sql
	backlogSQL string
	//go:embed lateness.sql
	latenessSQL string
)

// BacklogOf returns the statement of a figure of [Part.Figures]: how many rows of a table are pending, and how long the
// earliest is overdue. Its arguments are Table and Due of [timeout.Rows].
func BacklogOf(table, due string) string {
	return strings.NewReplacer("{table}", table, "{due}", due).Replace(backlogSQL)
}

// LatenessOf returns the statement of a figure of [Part.Figures]: how late rows were timed out. The argument timeouts
// selects the rows that have ever been timed out, as actor (a [timeout.Caller]), due_at and ended_at. Rows with a
// later ended_at are read first, so there should be an index on it.
func LatenessOf(timeouts string) string {
	return strings.ReplaceAll(latenessSQL, "{timeouts}", timeouts)
}
