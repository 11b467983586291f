package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// TestPaymentsReconcile runs `shop payments reconcile` with a provider that has no movements, then with one that
// fails, and without one.
func TestPaymentsReconcile(t *testing.T) {
	t.Setenv("SHOP_DEPLOYMENT", "test")
	status, first := http.StatusOK, "" // first: the time from which the books are read
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if since := r.FormValue("created[gte]"); first == "" {
			first = since
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if r.URL.Path == "/v1/account" {
			_, _ = io.WriteString(w, `{"object":"account","id":"acct_1"}`)
			return
		}
		_, _ = io.WriteString(w, `{"object":"list","url":"`+r.URL.Path+`","data":[],"has_more":false}`)
	}))
	defer provider.Close()
	tool := []string{"payments", "reconcile", "--database-url", testenv.Postgres(t), "--redis-url", testenv.Redis(t)}
	from := time.Now().Add(-50 * time.Hour).Truncate(time.Second)
	withKey := slices.Concat(tool, []string{"--stripe-url", provider.URL, "--stripe-key", "sk_test_1"})
	for _, test := range []struct {
		name   string
		args   []string
		status int
		code   int
		want   string
	}{
		{"no movements", withKey, http.StatusOK, 0, `"balanced": true`},
		{"from a time", slices.Concat(withKey, []string{"--from", from.Format(time.RFC3339)}), http.StatusOK, 0, `"balanced": true`},
		{"a provider that rejects the key", withKey, http.StatusUnauthorized, 1, "read the provider's books"},
		{"no provider", tool, http.StatusOK, 2, "SHOP_STRIPE_KEY (--stripe-key)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			status, first = test.status, ""
			var out strings.Builder
			if code := runCommand(t.Context(), test.args, &out); code != test.code || !strings.Contains(out.String(), test.want) {
				t.Errorf("the command ends with %d and prints %s, want %d and %q", code, out.String(), test.code, test.want)
			}
			if want := strconv.FormatInt(from.Add(-15*time.Minute).Unix(), 10); test.name == "from a time" && first != want {
				t.Errorf("the books are read from %s, want %s", first, want)
			}
		})
	}
}
