// Package e2e drives the real binary as a child process: over HTTP, with every answer checked against
// openapi.yaml, and by killing it and its servers. What needs HTTP alone also runs against a site that is
// up already: E2E_BASE_URL=http://… E2E_OPS_TOKEN=… go test ./e2e.
//
// The fault tests deploy several processes of each role (deployment_test.go), let customers in (load_test.go),
// break one thing (fault_*_test.go) or many at random (chaos_test.go), mend it, and compare what each customer was
// told with what there is and with a model of one order (history_test.go).
package e2e
