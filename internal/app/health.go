package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// HealthCommand is `health`. It is the health check of a container that has neither a shell nor curl.
type HealthCommand struct {
	HTTPAddr string `name:"http-addr" placeholder:"HOST:PORT" help:"The address that the process listens on."`
}

const healthTimeout = 2 * time.Second // for the answer of /readyz, which waits up to half a second for Redis

// Run prints the body of the answer of /readyz. It returns an error if the process is not ready.
func (c *HealthCommand) Run(ctx context.Context, program Program) error {
	err := JoinErrors(RequireOptions(map[string]string{"http-addr": c.HTTPAddr}),
		CheckHostPort("http-addr", c.HTTPAddr))
	if err != nil {
		return Usage(err)
	}
	host, port, _ := net.SplitHostPort(c.HTTPAddr)                 // CheckHostPort has accepted it
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() { // listens on all addresses
		host = "localhost"
	}
	url := "http://" + net.JoinHostPort(host, port) + "/readyz"
	// Unlike the default client, this client ignores HTTP_PROXY.
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: healthTimeout}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := direct.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("read %s: %w", url, err)
	}
	text := bytes.TrimSpace(body)
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: want status 200, got %d: %s", url, resp.StatusCode, text)
	}
	_, err = fmt.Fprintf(program.Out, "%s\n", text)
	return err
}
