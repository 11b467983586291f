// Package migrations holds the database schema of invitations as numbered SQL files.
package migrations

import (
	"embed"

	"example.com/shop/migrations"
)

//go:embed *.sql
var files embed.FS

// Set is the migrations of invitations, which are applied after those of the core.
var Set = migrations.Set{Name: "invite", Files: files}
