package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"example.com/shop/internal/testenv"
)

// fails runs a command that must fail with an exit code and one line on standard error, and returns the line.
func fails(t *testing.T, env []string, code int, args ...string) string {
	t.Helper()
	cmd := command(t, env, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err := cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != code {
		t.Errorf("%s %v: %v, want exit code %d; its standard error: %s", program, args, err, code, stderr.String())
	}
	text := strings.TrimSuffix(stderr.String(), "\n")
	if strings.Contains(text, "\n") || !strings.HasPrefix(text, program+": ") {
		t.Errorf("%s %v printed %q, want one line that begins with %q", program, args, text, program+": ")
	}
	return text
}

// TestInvalidConfiguration starts the program without a configuration, with an invalid one, and with a database that
// does not answer. Each error names what is wrong and what is expected; only the last one may go away by itself, which
// the exit code tells. TestExitCodes and TestValidate of cmd/shop have the other mistakes.
func TestInvalidConfiguration(t *testing.T) {
	needsOrders(t)
	t.Parallel()
	unreachable := newSiteAt("postgres://user:hidden@127.0.0.1:1/name", "redis://127.0.0.1:1").env
	for name, test := range map[string]struct {
		env  []string
		code int
		says []string
	}{
		"no configuration":     {nil, 2, []string{envDatabaseURL, envRedisURL, envHTTPAddr, envTokenKey, envOpsToken}},
		"short secret":         {append(unreachable, envTokenKey+"=short"), 2, []string{envTokenKey, "32", "openssl rand"}},
		"unreachable database": {unreachable, 1, []string{"PostgreSQL", "127.0.0.1:1"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := fails(t, test.env, test.code, "serve")
			contains(t, text, test.says...)
			if strings.Contains(text, "hidden") {
				t.Errorf("the message shows the password: %s", text)
			}
		})
	}
}

// TestAnotherSchema checks that a process serves with a schema that is newer than its own, and logs a warning. Rolling
// updates and rollbacks need that. A process does not start without a schema, and does not migrate a newer schema.
func TestAnotherSchema(t *testing.T) {
	needsOrders(t) // the errors of package migrations name the program shop
	t.Parallel()
	site := newSite(t, testenv.Redis(t))
	db := openDatabase(t, site.database)
	_, err := db.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`)
	testenv.Must(t, err)
	p := site.serve(t)
	contains(t, p.text(), "schema is newer", `"level":"WARN"`, "9999")
	c := p.signUp()
	c.waitForTimeout(c.create().id)
	contains(t, site.run(t, "doctor"), "schema is version 9999, newer than")
	contains(t, fails(t, site.env, 1, "migrate"), "9999", "newer")
	_, err = db.ExecContext(t.Context(), `DROP TABLE goose_db_version`)
	testenv.Must(t, err)
	contains(t, fails(t, site.env, 1, "serve"), program+" migrate")
}
