// Package migrations holds the database schema of bookings as numbered SQL files.
package migrations

import (
	"embed"

	"example.com/shop/migrations"
)

//go:embed *.sql
var files embed.FS

// Set is the migrations of bookings, which are applied after those of the core.
var Set = migrations.Set{Name: "booking", Files: files}
