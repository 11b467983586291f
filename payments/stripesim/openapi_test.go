package stripesim

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
)

// The module github.com/stripe/stripe-mock ships Stripe's published OpenAPI document, and a server that checks requests
// against it. tools.mod pins it, so that it is not a dependency of the binary.
const mockModule = "github.com/stripe/stripe-mock"

// TestRequestsFollowStripesDocument sends the requests of the shop to stripe-mock, which rejects requests that Stripe's
// OpenAPI document does not allow.
func TestRequestsFollowStripesDocument(t *testing.T) {
	testenv.Slow(t, "reads Stripe's OpenAPI document, and builds stripe-mock")
	client := newClient(t, startMock(t), "sk_test_123") // stripe-mock demands a key of this form
	if _, err := client.V1CheckoutSessions.Create(t.Context(), &stripe.CheckoutSessionCreateParams{
		Mode: stripe.String("gift"),
	}); err == nil {
		t.Fatal("stripe-mock accepted an unknown mode, so it checks nothing")
	}
	for name, err := range sendAll(t.Context(), client, "cs_test_1", "pi_1") {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestSimulatorAcceptsTheSameRequests sends the requests of [TestRequestsFollowStripesDocument] to the simulator.
func TestSimulatorAcceptsTheSameRequests(t *testing.T) {
	f := newFixture(t)
	open, paid := f.create(t), f.paid(t)
	for name, err := range sendAll(t.Context(), f.stripe, open.ID, paid.PaymentIntent.ID) {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sendAll sends each request of the shop, and returns the errors by the requests' names.
func sendAll(ctx context.Context, c *stripe.Client, session, intent string) map[string]error {
	_, create := c.V1CheckoutSessions.Create(ctx, sessionParams())
	_, retrieve := c.V1CheckoutSessions.Retrieve(ctx, session, nil)
	_, expire := c.V1CheckoutSessions.Expire(ctx, session, nil)
	_, refund := c.V1Refunds.Create(ctx, &stripe.RefundCreateParams{
		PaymentIntent: stripe.String(intent), Amount: stripe.Int64(100), Metadata: map[string]string{"refund_id": "1"},
	})
	refunds := &stripe.RefundListParams{PaymentIntent: stripe.String(intent)}
	refunds.Limit = stripe.Int64(100)
	refunds.Single = true
	movements := &stripe.BalanceTransactionListParams{
		CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: 1, LesserThan: 2_000_000_000},
	}
	movements.AddExpand("data.source")
	movements.Limit = stripe.Int64(100)
	movements.Single = true
	sessions := &stripe.CheckoutSessionListParams{
		Status: stripe.String("open"), CreatedRange: &stripe.RangeQueryParams{GreaterThanOrEqual: 1},
	}
	sessions.Limit = stripe.Int64(100)
	sessions.Single = true
	endpoints := &stripe.WebhookEndpointListParams{}
	_, account := c.V1Accounts.Retrieve(ctx, nil)
	return map[string]error{
		"list balance transactions": listError(ctx, c.V1BalanceTransactions.List(ctx, movements)),
		"list sessions":             listError(ctx, c.V1CheckoutSessions.List(ctx, sessions)),
		"list webhook endpoints":    listError(ctx, c.V1WebhookEndpoints.List(ctx, endpoints)),
		"list refunds":              listError(ctx, c.V1Refunds.List(ctx, refunds)),
		"retrieve the account":      account,
		"create a session":          create,
		"retrieve a session":        retrieve,
		"expire a session":          expire,
		"create a refund":           refund,
	}
}

func listError[T any](ctx context.Context, list *stripe.V1List[T]) error {
	for _, err := range list.All(ctx) {
		if err != nil {
			return err
		}
	}
	return nil
}

// TestAnswersFollowStripesDocument checks the simulator's objects against the schemas of Stripe's OpenAPI document.
func TestAnswersFollowStripesDocument(t *testing.T) {
	testenv.Slow(t, "reads Stripe's OpenAPI document")
	f := newFixture(t, newReceiver(t).configure)
	module := strings.TrimSpace(goTool(t, "list", "-m", "-modfile=tools.mod", "-f", "{{.Dir}}", mockModule))
	document := filepath.Join(module, "embedded", "openapi", "spec3.json")
	text, err := os.ReadFile(document)
	testenv.Must(t, err)
	api, err := openapi3.NewLoader().LoadFromData(text)
	testenv.Must(t, err)
	check := func(schema, object string) {
		t.Helper()
		var value map[string]any
		testenv.Must(t, json.Unmarshal([]byte(object), &value))
		s := api.Components.Schemas[schema].Value
		if err := s.VisitJSON(value); err != nil {
			t.Errorf("%s: %v", object, err)
		}
		for name := range value { // the schemas allow unknown fields, but a wrong name is a mistake
			if s.Properties[name] == nil {
				t.Errorf("%s has the field %q, which Stripe's document does not have", schema, name)
			}
		}
	}
	get := func(path string) string {
		t.Helper()
		res, body := f.call(t, http.MethodGet, path, nil)
		if res.StatusCode != http.StatusOK {
			t.Fatalf("GET %s answered %d %s", path, res.StatusCode, body)
		}
		return body
	}
	open, paid := f.create(t), f.paid(t)
	check("checkout.session", get("/v1/checkout/sessions/"+open.ID))
	check("checkout.session", get("/v1/checkout/sessions/"+paid.ID))
	testenv.Must(t, f.expire(t.Context(), open.ID))
	check("checkout.session", get("/v1/checkout/sessions/"+open.ID))
	for _, result := range []string{"succeed", "pending", "fail", "cancel", "require_action"} {
		f.set(t, func(k *Knobs) { k.Refunds = result })
		_, err := f.refund(t, paid.PaymentIntent.ID, 100)
		testenv.Must(t, err)
		testenv.Must(t, f.sim.endPendingRefunds(t.Context()))
	}
	f.control(t, "/sim/payments/"+paid.PaymentIntent.ID+"/dispute", `{"state":"won"}`)
	lost := f.paid(t).PaymentIntent.ID
	f.control(t, "/sim/payments/"+lost+"/dispute", `{"state":"lost"}`)
	for _, body := range f.eventBodies(t) {
		check("event", body)
	}
	check("account", get("/v1/account"))
	sources := map[string]int{}
	checkList := func(schema, path string, count int) {
		t.Helper()
		var l struct{ Data []json.RawMessage }
		testenv.Must(t, json.Unmarshal([]byte(get(path)), &l))
		if len(l.Data) < count {
			t.Errorf("%s has %d objects, want at least %d", path, len(l.Data), count)
		}
		for _, object := range l.Data {
			check(schema, string(object))
			var b struct{ Source json.RawMessage }
			var source struct{ Object string } // charge, refund or dispute, if the request expands it
			testenv.Must(t, json.Unmarshal(object, &b))
			if json.Unmarshal(b.Source, &source) == nil && source.Object != "" {
				check(source.Object, string(b.Source))
				sources[source.Object]++
			}
		}
	}
	checkList("webhook_endpoint", "/v1/webhook_endpoints", 1)
	checkList("checkout.session", "/v1/checkout/sessions", 2)
	checkList("balance_transaction", "/v1/balance_transactions?limit=100", 10)
	checkList("balance_transaction", "/v1/balance_transactions?limit=100&expand[]=data.source", 10)
	if len(sources) != 3 {
		t.Errorf("the sources of the balance transactions are %v, want charges, refunds and disputes", sources)
	}
	checkList("refund", "/v1/refunds", 5)
	_, err = f.stripe.V1CheckoutSessions.Retrieve(t.Context(), "cs_test_none", nil)
	check("error", string(err.(*stripe.Error).LastResponse.RawJSON))
}

// startMock runs stripe-mock until the test ends, and returns its address.
func startMock(t *testing.T) string {
	t.Helper()
	path := strings.TrimSpace(goTool(t, "tool", "-modfile=tools.mod", "-n", "stripe-mock"))
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, path,
		"-http-addr", "127.0.0.1:0", "-https-addr", "127.0.0.1:0", "-strict-version-check=false")
	out, err := cmd.StdoutPipe()
	testenv.Must(t, err)
	testenv.Must(t, cmd.Start())
	t.Cleanup(func() {
		stop()
		_ = cmd.Wait() // it was killed
	})
	silent := time.AfterFunc(30*time.Second, stop) // ends the scan below
	defer silent.Stop()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if address, ok := strings.CutPrefix(lines.Text(), "Listening for HTTP at address: "); ok {
			return "http://" + address
		}
	}
	t.Fatal("stripe-mock did not print its address within 30 s")
	return ""
}

// goTool runs the go command at the root of the repository, and returns its output. It needs Go's module proxy, or a
// module cache that has the tool's modules.
func goTool(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = filepath.Join("..", "..")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v: %s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}
