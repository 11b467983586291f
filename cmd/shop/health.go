package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// healthCommand is `shop health`: what a container without a shell or curl checks itself with.
type healthCommand struct {
	HTTPAddr string `name:"http-addr" env:"SHOP_HTTP_ADDR" placeholder:"HOST:PORT" help:"Address that the process listens on."`
}

// healthTimeout is longer than readyz takes to find out that Redis is down.
const healthTimeout = 2 * time.Second

func (c *healthCommand) Run(ctx context.Context, to streams) error {
	if err := requireAll(map[string]string{"http-addr": c.HTTPAddr}); err != nil {
		return usageError{err}
	}
	host, port, err := net.SplitHostPort(c.HTTPAddr)
	if err != nil {
		return usageError{fmt.Errorf("%s is no host:port: %w", optionName("http-addr"), err)}
	}
	if ip := net.ParseIP(host); host == "" || ip.IsUnspecified() { // all of the machine's addresses
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	said, err := readiness(ctx, "http://"+net.JoinHostPort(host, port)+"/readyz")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(to.out, said)
	return err
}

// readiness returns what a process says of itself if it is ready.
func readiness(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	direct := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // whatever HTTP_PROXY says
	resp, err := direct.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", url, err)
	}
	said := strings.TrimSpace(string(body))
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %d: %s", url, resp.StatusCode, said)
	}
	return said, nil
}
