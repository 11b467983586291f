package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"

	"example.com/shop/internal/app"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/programtest"
)

// TestInviteDocs checks that the files exist that the module's README names. In a copy it is that of this program.
func TestInviteDocs(t *testing.T) {
	const module = "../.."
	docs := programtest.Read(t, module+"/README.md")
	programtest.Links(t, docs)
	programtest.NamedFiles(t, docs, module)
}

// TestInviteOptions checks the names of the options, and those that hold secrets.
func TestInviteOptions(t *testing.T) {
	options := programtest.Options(t, &commands{})
	programtest.VariableNames(t, options)
	programtest.SecretFiles(t, options)
	programtest.Secrets(t, func() any { return &commands{} })
}

// TestInviteRoutes checks that each path answers HEAD as it answers GET.
func TestInviteRoutes(t *testing.T) {
	p := newProcess(t.Context(), t, testenv.Redis(t), 0)
	defer p.Close()
	programtest.HeadMatchesGet(t, p, opsToken)
}

// TestInviteDemo runs the demo, and waits until an invitation has expired.
func TestInviteDemo(t *testing.T) {
	t.Parallel() // it waits for a deadline most of the time
	port, err := devstack.FreePort()
	testenv.Must(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	demo := program()
	demo.Out, demo.Err = io.Discard, io.Discard
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx, demo, &commands{}, []string{"demo", "--timeout=2s", "--http-addr=" + address}) }()
	defer func() {
		stop()
		testenv.Must(t, <-ended)
		http.DefaultClient.CloseIdleConnections()
	}()
	s := &service{url: "http://" + address}
	testenv.Eventually(t, "the demo is ready", func() bool {
		resp, err := http.Get(s.url + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	s.waitForExpiry(t, s.create(t))
}
