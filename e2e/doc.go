// Package e2e drives the real binary as a child process: over HTTP, with every answer checked against
// openapi.yaml, and by killing it and its servers.
package e2e
