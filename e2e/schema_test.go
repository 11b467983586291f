package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// fails runs a command that must fail with an exit code and one line on standard error, and returns the line.
func fails(t *testing.T, env []string, code int, args ...string) string {
	t.Helper()
	cmd := orders.Command(t, env, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err := cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != code {
		t.Errorf("%s %v: %v, want exit code %d; its standard error: %s", orders.Program, args, err, code,
			stderr.String())
	}
	text := strings.TrimSuffix(stderr.String(), "\n")
	if strings.Contains(text, "\n") || !strings.HasPrefix(text, orders.Program+": ") {
		t.Errorf("%s %v printed %q, want one line that begins with %q", orders.Program, args, text, orders.Program+": ")
	}
	return text
}

// TestAnotherSchema checks that a process serves with a schema that is newer than its own, and logs a warning. Rolling
// updates and rollbacks need that. A process does not start without a schema, and does not migrate a newer schema.
func TestAnotherSchema(t *testing.T) {
	t.Parallel()
	site := orders.NewSite(t, testenv.Redis(t))
	db := faulttest.OpenDatabase(t, site.Database)
	_, err := db.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`)
	testenv.Must(t, err)
	p := site.Serve(t)
	faulttest.Contains(t, p.Text(), "schema is newer", `"level":"WARN"`, "9999")
	c := p.SignUp()
	c.WaitForTimeout(c.Create().ID)
	faulttest.Contains(t, site.Run(t, "doctor"), "schema is newer", "9999")
	faulttest.Contains(t, fails(t, site.Env, 1, "migrate"), "9999", "newer")
	_, err = db.ExecContext(t.Context(), `DROP TABLE goose_db_version`)
	testenv.Must(t, err)
	faulttest.Contains(t, fails(t, site.Env, 1, "serve"), orders.Program+" migrate")
}
