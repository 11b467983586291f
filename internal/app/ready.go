package app

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// HealthCommand is `health`. It is the health check of a container that has neither a shell nor curl.
type HealthCommand struct {
	HTTPAddr string `name:"http-addr" placeholder:"HOST:PORT" help:"The address that the process listens on."`
}

// healthTimeout is the time limit for the answer of /readyz, which waits up to half a second for Redis.
const healthTimeout = 2 * time.Second

// Run prints the body of the answer of /readyz. It returns an error if the process is not ready.
func (c *HealthCommand) Run(ctx context.Context, program Program) error {
	err := JoinErrors(RequireOptions(map[string]string{"http-addr": c.HTTPAddr}), CheckHostPort("http-addr", c.HTTPAddr))
	if err != nil {
		return Usage(err)
	}
	host, port, err := net.SplitHostPort(c.HTTPAddr)
	if err != nil {
		return err // CheckHostPort has accepted it
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() { // listens on all addresses
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	body, err := readiness(ctx, "http://"+net.JoinHostPort(host, port)+"/readyz")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(program.Out, body)
	return err
}

// readiness returns the body of the answer of /readyz, or an error if the process is not ready.
func readiness(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // ignores HTTP_PROXY
	resp, err := direct.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", url, err)
	}
	body := strings.TrimSpace(string(text))
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("GET %s: want status 200, got %d: %s", url, resp.StatusCode, body)
	}
	return body, nil
}
