// Package migrations holds the database schema of payments as numbered SQL files. It stands on the schema of the core.
package migrations

import (
	"embed"

	"example.com/shop/migrations"
)

//go:embed *.sql
var files embed.FS

// Set is the migrations of payments, which are applied after those of the core.
var Set = migrations.Set{Name: "payments", Files: files}
