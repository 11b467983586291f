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

// TestInvalidConfiguration runs commands with an invalid configuration. Each error names what is wrong and what is
// expected.
func TestInvalidConfiguration(t *testing.T) {
	needsOrders(t)
	t.Parallel()
	complete := []string{
		envDatabaseURL + "=postgres://user:hidden@127.0.0.1:1/name", envRedisURL + "=redis://127.0.0.1:1",
		envHTTPAddr + "=127.0.0.1:0",
		envTokenKey + "=" + tokenKey, envOpsToken + "=" + opsToken,
	}
	with := func(change ...string) []string { return append(append([]string{}, complete...), change...) }
	for name, test := range map[string]struct {
		env  []string
		code int
		args []string
		says []string
	}{
		"no configuration":     {nil, 2, []string{"serve"}, []string{envDatabaseURL, envRedisURL, envHTTPAddr, envTokenKey, envOpsToken}},
		"short secret":         {with(envTokenKey + "=short"), 2, []string{"serve"}, []string{envTokenKey, "32", "openssl rand"}},
		"default secret":       {with(envOpsToken + "=changeme-changeme"), 2, []string{"serve"}, []string{envOpsToken, "changeme"}},
		"blank secret":         {with(envTokenKey + "= \t" + strings.Repeat(" ", 32) + "\n"), 2, []string{"serve"}, []string{"missing", envTokenKey}},
		"repetitive secret":    {with(envOpsToken + "=" + strings.Repeat("xy", 16)), 2, []string{"serve"}, []string{envOpsToken, "2 different bytes"}},
		"one secret for both":  {with(envOpsToken + "=" + tokenKey), 2, []string{"serve"}, []string{envOpsToken, "same", envTokenKey}},
		"secret given twice":   {with(envOpsToken + "_FILE=/dev/null"), 2, []string{"serve"}, []string{envOpsToken + "_FILE", "not both"}},
		"empty secret file":    {nil, 2, []string{"migrate", "--database-url-file=/dev/null"}, []string{envDatabaseURL + "_FILE", "/dev/null is empty"}},
		"missing secret file":  {nil, 2, []string{"doctor", "--redis-url-file=/nowhere"}, []string{envRedisURL + "_FILE", "/nowhere"}},
		"no look-ahead":        {complete, 2, []string{"doctor", "--reconcile-lookahead", "0"}, []string{envLookahead, "0s"}},
		"unknown role":         {complete, 2, []string{"serve", "--roles=api,cook"}, []string{"--roles", "cook"}},
		"no role":              {complete, 2, []string{"serve", "--roles="}, []string{envRoles}},
		"timeout of 0":         {with(envTimeout + "=0s"), 2, []string{"serve"}, []string{envTimeout, "1s"}},
		"address without port": {with(envHTTPAddr + "=8080"), 2, []string{"serve"}, []string{envHTTPAddr, "host:port"}},
		"unreachable database": {complete, 1, []string{"serve"}, []string{"PostgreSQL", "127.0.0.1:1"}},
		"unknown command":      {nil, 2, []string{"sell"}, []string{"sell"}},
		"unknown flag":         {nil, 2, []string{"serve", "--fast"}, []string{"--fast"}},
		"migrate, no database": {nil, 2, []string{"migrate"}, []string{envDatabaseURL}},
		"doctor, no servers":   {nil, 2, []string{"doctor"}, []string{envDatabaseURL, envRedisURL}},
	} {
		t.Run(name, func(t *testing.T) {
			text := fails(t, test.env, test.code, test.args...)
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

// TestInvalidSchedulesAndRedisURLs runs commands with an invalid schedule or an invalid Redis URL. The rest of the
// configuration is valid.
func TestInvalidSchedulesAndRedisURLs(t *testing.T) {
	t.Parallel()
	site := newSite(t, testenv.Redis(t))
	contains(t, fails(t, append(site.env, envSchedule+"=often"), 2, "serve"), "often", "@every")
	contains(t, fails(t, append(site.env, envSchedule+"=@every 1h"), 2, "serve"), "look-ahead")
	contains(t, fails(t, append(site.env, envSchedule+"=@every 0s"), 2, "serve"), "@every 0s", "at least 1s")
	contains(t, fails(t, append(site.env, envSchedule+"=@every -5s"), 2, "reconcile"), "@every -5s", "at least 1s")
	contains(t, fails(t, append(site.env, envRedisURL+"=http://nowhere"), 2, "serve"), "redis://")
	contains(t, fails(t, append(site.env, envRedisURL+"=redis://127.0.0.1:1/-1"), 2, "doctor"), "database is -1")
}
