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
		t.Errorf("%s %v: %v, want exit code %d; its standard error: %s", orders.Program, args, err, code, stderr.String())
	}
	text := strings.TrimSuffix(stderr.String(), "\n")
	if strings.Contains(text, "\n") || !strings.HasPrefix(text, orders.Program+": ") {
		t.Errorf("%s %v printed %q, want one line that begins with %q", orders.Program, args, text, orders.Program+": ")
	}
	return text
}

// TestInvalidConfiguration runs commands with an invalid configuration. Each error names what is wrong and what is
// expected.
func TestInvalidConfiguration(t *testing.T) {
	t.Parallel()
	complete := []string{
		faulttest.EnvDatabaseURL + "=postgres://user:hidden@127.0.0.1:1/name", faulttest.EnvRedisURL + "=redis://127.0.0.1:1",
		faulttest.EnvHTTPAddr + "=127.0.0.1:0",
		faulttest.EnvTokenKey + "=" + faulttest.TokenKey, faulttest.EnvOpsToken + "=" + faulttest.OpsToken,
	}
	with := func(change ...string) []string { return append(append([]string{}, complete...), change...) }
	for name, test := range map[string]struct {
		env  []string
		code int
		args []string
		says []string
	}{
		"no configuration":     {nil, 2, []string{"serve"}, []string{faulttest.EnvDatabaseURL, faulttest.EnvRedisURL, faulttest.EnvHTTPAddr, faulttest.EnvTokenKey, faulttest.EnvOpsToken}},
		"short secret":         {with(faulttest.EnvTokenKey + "=short"), 2, []string{"serve"}, []string{faulttest.EnvTokenKey, "32", "openssl rand"}},
		"default secret":       {with(faulttest.EnvOpsToken + "=changeme-changeme"), 2, []string{"serve"}, []string{faulttest.EnvOpsToken, "changeme"}},
		"blank secret":         {with(faulttest.EnvTokenKey + "= \t" + strings.Repeat(" ", 32) + "\n"), 2, []string{"serve"}, []string{"missing", faulttest.EnvTokenKey}},
		"repetitive secret":    {with(faulttest.EnvOpsToken + "=" + strings.Repeat("xy", 16)), 2, []string{"serve"}, []string{faulttest.EnvOpsToken, "2 different bytes"}},
		"one secret for both":  {with(faulttest.EnvOpsToken + "=" + faulttest.TokenKey), 2, []string{"serve"}, []string{faulttest.EnvOpsToken, "same", faulttest.EnvTokenKey}},
		"secret given twice":   {with(faulttest.EnvOpsToken + "_FILE=/dev/null"), 2, []string{"serve"}, []string{faulttest.EnvOpsToken + "_FILE", "not both"}},
		"empty secret file":    {nil, 2, []string{"migrate", "--database-url-file=/dev/null"}, []string{faulttest.EnvDatabaseURL + "_FILE", "/dev/null is empty"}},
		"missing secret file":  {nil, 2, []string{"doctor", "--redis-url-file=/nowhere"}, []string{faulttest.EnvRedisURL + "_FILE", "/nowhere"}},
		"no look-ahead":        {complete, 2, []string{"doctor", "--reconcile-lookahead", "0"}, []string{faulttest.EnvLookahead, "0s"}},
		"unknown role":         {complete, 2, []string{"serve", "--roles=api,cook"}, []string{"--roles", "cook"}},
		"no role":              {complete, 2, []string{"serve", "--roles="}, []string{faulttest.EnvRoles}},
		"timeout of 0":         {with(envTimeout + "=0s"), 2, []string{"serve"}, []string{envTimeout, "1s"}},
		"address without port": {with(faulttest.EnvHTTPAddr + "=8080"), 2, []string{"serve"}, []string{faulttest.EnvHTTPAddr, "host:port"}},
		"unreachable database": {complete, 1, []string{"serve"}, []string{"PostgreSQL", "127.0.0.1:1"}},
		"unknown command":      {nil, 2, []string{"sell"}, []string{"sell"}},
		"unknown flag":         {nil, 2, []string{"serve", "--fast"}, []string{"--fast"}},
		"migrate, no database": {nil, 2, []string{"migrate"}, []string{faulttest.EnvDatabaseURL}},
		"doctor, no servers":   {nil, 2, []string{"doctor"}, []string{faulttest.EnvDatabaseURL, faulttest.EnvRedisURL}},
	} {
		t.Run(name, func(t *testing.T) {
			text := fails(t, test.env, test.code, test.args...)
			faulttest.Contains(t, text, test.says...)
			if strings.Contains(text, "hidden") {
				t.Errorf("the message shows the password: %s", text)
			}
		})
	}
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
	faulttest.Contains(t, site.Run(t, "doctor"), "schema is version 9999, newer than")
	faulttest.Contains(t, fails(t, site.Env, 1, "migrate"), "9999", "newer")
	_, err = db.ExecContext(t.Context(), `DROP TABLE goose_db_version`)
	testenv.Must(t, err)
	faulttest.Contains(t, fails(t, site.Env, 1, "serve"), orders.Program+" migrate")
}

// TestInvalidSchedulesAndRedisURLs runs commands with an invalid schedule or an invalid Redis URL. The rest of the
// configuration is valid.
func TestInvalidSchedulesAndRedisURLs(t *testing.T) {
	t.Parallel()
	site := orders.NewSite(t, testenv.Redis(t))
	faulttest.Contains(t, fails(t, append(site.Env, faulttest.EnvSchedule+"=often"), 2, "serve"), "often", "@every")
	faulttest.Contains(t, fails(t, append(site.Env, faulttest.EnvSchedule+"=@every 1h"), 2, "serve"), "look-ahead")
	faulttest.Contains(t, fails(t, append(site.Env, faulttest.EnvSchedule+"=@every 0s"), 2, "serve"), "@every 0s", "at least 1s")
	faulttest.Contains(t, fails(t, append(site.Env, faulttest.EnvSchedule+"=@every -5s"), 2, "reconcile"), "@every -5s", "at least 1s")
	faulttest.Contains(t, fails(t, append(site.Env, faulttest.EnvRedisURL+"=http://nowhere"), 2, "serve"), "redis://")
	faulttest.Contains(t, fails(t, append(site.Env, faulttest.EnvRedisURL+"=redis://127.0.0.1:1/-1"), 2, "doctor"), "database is -1")
}
