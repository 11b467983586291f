// Package e2e drives the real binary as a child process: over HTTP, with every answer checked against
// openapi.yaml, and by killing it and its servers. What needs HTTP alone also runs against a site that is
// up already: E2E_BASE_URL=http://… E2E_OPS_TOKEN=… go test ./e2e.
package e2e
