// Package e2e tests the program as a child process. The tests call the program's API over HTTP, check every answer
// against the REST contract, and kill the program and its servers. The fault tests are those of package faulttest,
// with the description of the shop in package shoptest. Package browsertest drives the pages.
//
// A plain go test runs what shows the promise on the real program. TEST_ALL=1 runs the rest, too. Tests that need only
// HTTP can also run against a site that already runs: E2E_BASE_URL=http://… E2E_OPS_TOKEN=… go test ./e2e.
package e2e
