package e2e

import (
	"database/sql"
	"errors"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"

	"example.com/shop/internal/testenv"
)

// refused runs a command that must fail with one line on standard error.
func refused(t *testing.T, env []string, code int, args ...string) string {
	t.Helper()
	cmd := command(t, env, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err := cmd.Run()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != code {
		t.Errorf("shop %v: %v, want exit code %d; it said %s", args, err, code, stderr.String())
	}
	text := strings.TrimSuffix(stderr.String(), "\n")
	if strings.Contains(text, "\n") || !strings.HasPrefix(text, "shop: ") {
		t.Errorf("shop %v said %q, want one line", args, text)
	}
	return text
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q does not mention %s", text, part)
		}
	}
}

// TestRefusesToStart gives the program what it cannot run with: it says what is wrong and what is right.
func TestRefusesToStart(t *testing.T) {
	t.Parallel()
	complete := []string{
		"SHOP_DATABASE_URL=postgres://shop:hidden@127.0.0.1:1/shop", "SHOP_REDIS_URL=redis://127.0.0.1:1", "SHOP_HTTP_ADDR=127.0.0.1:0",
		"SHOP_TOKEN_KEY=" + tokenKey, "SHOP_OPS_TOKEN=" + opsToken,
	}
	with := func(change ...string) []string { return append(append([]string{}, complete...), change...) }
	for name, test := range map[string]struct {
		env  []string
		code int
		args []string
		says []string
	}{
		"nothing given":        {nil, 2, []string{"serve"}, []string{"SHOP_DATABASE_URL", "SHOP_REDIS_URL", "SHOP_HTTP_ADDR", "SHOP_TOKEN_KEY", "SHOP_OPS_TOKEN"}},
		"short secret":         {with("SHOP_TOKEN_KEY=short"), 2, []string{"serve"}, []string{"SHOP_TOKEN_KEY", "32", "openssl rand"}},
		"default secret":       {with("SHOP_OPS_TOKEN=changeme-changeme"), 2, []string{"serve"}, []string{"SHOP_OPS_TOKEN", "changeme"}},
		"blank secret":         {with("SHOP_TOKEN_KEY= \t" + strings.Repeat(" ", 32) + "\n"), 2, []string{"serve"}, []string{"missing", "SHOP_TOKEN_KEY"}},
		"repeated secret":      {with("SHOP_OPS_TOKEN=" + strings.Repeat("xy", 16)), 2, []string{"serve"}, []string{"SHOP_OPS_TOKEN", "2 different bytes"}},
		"one secret for both":  {with("SHOP_OPS_TOKEN=" + tokenKey), 2, []string{"serve"}, []string{"SHOP_OPS_TOKEN", "same", "SHOP_TOKEN_KEY"}},
		"secret given twice":   {with("SHOP_OPS_TOKEN_FILE=/dev/null"), 2, []string{"serve"}, []string{"SHOP_OPS_TOKEN_FILE", "not both"}},
		"empty secret file":    {nil, 2, []string{"migrate", "--database-url-file=/dev/null"}, []string{"SHOP_DATABASE_URL_FILE", "/dev/null is empty"}},
		"no secret file":       {nil, 2, []string{"doctor", "--redis-url-file=/nowhere"}, []string{"SHOP_REDIS_URL_FILE", "/nowhere"}},
		"no look-ahead":        {complete, 2, []string{"doctor", "--reconcile-lookahead", "0"}, []string{"SHOP_RECONCILE_LOOKAHEAD", "0s"}},
		"role that is none":    {complete, 2, []string{"serve", "--roles=api,cook"}, []string{"--roles", "cook"}},
		"no role":              {complete, 2, []string{"serve", "--roles="}, []string{"SHOP_ROLES"}},
		"timeout of nothing":   {with("SHOP_ORDER_TIMEOUT=0s"), 2, []string{"serve"}, []string{"SHOP_ORDER_TIMEOUT", "1s"}},
		"address that is none": {with("SHOP_HTTP_ADDR=8080"), 2, []string{"serve"}, []string{"SHOP_HTTP_ADDR", "host:port"}},
		"database that is not": {complete, 1, []string{"serve"}, []string{"PostgreSQL", "127.0.0.1:1"}},
		"unknown command":      {nil, 2, []string{"sell"}, []string{"sell"}},
		"unknown flag":         {nil, 2, []string{"serve", "--fast"}, []string{"--fast"}},
		"migrate nowhere":      {nil, 2, []string{"migrate"}, []string{"SHOP_DATABASE_URL"}},
		"doctor of nothing":    {nil, 2, []string{"doctor"}, []string{"SHOP_DATABASE_URL", "SHOP_REDIS_URL"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := refused(t, test.env, test.code, test.args...)
			contains(t, text, test.says...)
			if strings.Contains(text, "hidden") {
				t.Errorf("the password is told: %s", text)
			}
		})
	}
}

// TestAnotherSchema: a process serves with a newer schema than its own and says so, as a rolling update and a rollback
// need it. It refuses to start without a schema, and to migrate a newer one.
func TestAnotherSchema(t *testing.T) {
	t.Parallel()
	site := newSite(t, testenv.Redis(t))
	db, err := sql.Open("pgx", site.database)
	must(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, true)`)
	must(t, err)
	p := site.serve(t)
	contains(t, p.text(), "schema is newer", `"level":"WARN"`, "9999")
	c := p.signUp()
	c.cancelledOnTime(c.place().ID)
	contains(t, site.run(t, "doctor"), "schema is version 9999, newer than")
	contains(t, refused(t, site.env, 1, "migrate"), "9999", "newer")
	_, err = db.ExecContext(t.Context(), `DROP TABLE goose_db_version`)
	must(t, err)
	contains(t, refused(t, site.env, 1, "serve"), "shop migrate")
}

func TestRefusesBadSchedules(t *testing.T) {
	t.Parallel()
	site := newSite(t, testenv.Redis(t))
	contains(t, refused(t, append(site.env, "SHOP_RECONCILE_SCHEDULE=often"), 2, "serve"), "often", "@every")
	contains(t, refused(t, append(site.env, "SHOP_RECONCILE_SCHEDULE=@every 1h"), 2, "serve"), "look-ahead")
	contains(t, refused(t, append(site.env, "SHOP_RECONCILE_SCHEDULE=@every 0s"), 2, "serve"), "@every 0s", "at least 1s")
	contains(t, refused(t, append(site.env, "SHOP_RECONCILE_SCHEDULE=@every -5s"), 2, "reconcile"), "@every -5s", "at least 1s")
	contains(t, refused(t, append(site.env, "SHOP_REDIS_URL=http://nowhere"), 2, "serve"), "redis://")
	contains(t, refused(t, append(site.env, "SHOP_REDIS_URL=redis://127.0.0.1:1/-1"), 2, "doctor"), "database is -1")
}

// TestServeHasNoFaults: what breaks the demo does not exist in production, and the operators' API is closed
// to everyone else.
func TestServeHasNoFaults(t *testing.T) {
	p := anywhere(t)
	ops, c := p.operator(), p.signUp()
	ops.post(http.StatusNotFound, "/ops/api/faults/redis-wipe")
	for _, r := range []request{
		{method: "GET", path: "/ops/api/stats"}, {method: "POST", path: "/ops/api/reconcile"},
		{method: "GET", path: "/ops/api/dead-letters"}, {method: "POST", path: "/ops/api/dead-letters/order.cancel/x/redrive"},
	} {
		c.expect(http.StatusUnauthorized, r)
	}
	eventually(t, "a sweep that is not in another's way", func() bool {
		return ops.send(request{method: "POST", path: "/ops/api/reconcile"}).status == http.StatusOK
	})
	ops.get("/ops/api/dead-letters")
	ops.post(http.StatusNotFound, "/ops/api/dead-letters/order.cancel/x/redrive")
	ops.expect(http.StatusBadRequest, request{method: "GET", path: "/ops/api/dead-letters?limit=0&cursor=x"})
	ops.get("/healthz")
	a := ops.expect(http.StatusNotFound, request{method: "GET", path: "/nothing/here"})
	for header, want := range map[string]string{
		"Content-Type": "application/problem+json", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
	} {
		if got := a.header.Get(header); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
	// A page of another site has the browser send the cookie, and may not act with it.
	c.expect(http.StatusForbidden, request{method: "POST", path: "/api/orders", body: oneOfBeans, headers: []string{"Sec-Fetch-Site: cross-site"}})
}
