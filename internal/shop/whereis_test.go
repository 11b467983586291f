package shop_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/timeout"
)

// TestWhereIsOrder asks where an order is, over the operators' API.
func TestWhereIsOrder(t *testing.T) {
	contract, err := parttest.LoadContract(repositoryRoot)
	testenv.Must(t, err)
	database, redis := testenv.Postgres(t), testenv.Redis(t)
	a, o := openApp(t, database, redis, 1), validOptions()
	p := withKind(t, a, secondKind, timeout.Rows{})
	handler := p.Handler()
	pending, overdue := pendingOrders(t, a, 1, time.Hour)[0], pendingOrders(t, a, 2, -2*time.Hour) // the longest first
	type row struct {
		name, path, token string
		status            int
		body              string // a part of it
	}
	rows := []row{
		{"a pending order", "where?id=" + pending, o.Ops.OpsToken, http.StatusOK, "it times out at"},
		{"the overdue orders", "where", o.Ops.OpsToken, http.StatusOK, `{"items":[{"id":"` + overdue[0]},
		{"an unknown id", "where?id=cs_test_1", o.Ops.OpsToken, http.StatusNotFound, "No row has the id cs_test_1"},
		{"no id", "where?id=%00", o.Ops.OpsToken, http.StatusBadRequest, "printable ASCII"},
		{"an empty id", "where?id=", o.Ops.OpsToken, http.StatusBadRequest, "printable ASCII"},
		{"unauthorized", "where?id=" + pending, "x", http.StatusUnauthorized, ""},
	}
	for _, k := range p.Kinds {
		testenv.Must(t, k.Queue.Schedule(t.Context(), delay.In(pending, time.Hour)))
		rows = append(rows, row{"a task of the kind " + k.Name, "where?id=" + pending, o.Ops.OpsToken, http.StatusOK,
			`{"kind":"` + k.Name + `","state":"scheduled"`})
	}
	for _, test := range rows {
		answer := contract.Send(t, handler, http.MethodGet, "/ops/api/"+test.path, "",
			"Authorization: Bearer "+test.token)
		if answer.Code != test.status || !strings.Contains(answer.Body.String(), test.body) {
			t.Errorf("%s: the answer is %d %s, want %d and %q", test.name, answer.Code, answer.Body, test.status,
				test.body)
		}
	}
}
