package programtest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"

	"example.com/shop/internal/app"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// Demo runs the command demo of a program until the test ends, and returns its URL once it is ready. commands is a
// pointer to a struct, see [app.Main]. The program's output is discarded unless its Err is set.
func Demo(t testing.TB, program app.Program, commands any, flags ...string) (url string) {
	t.Helper()
	port, err := devstack.FreePort()
	testenv.Must(t, err)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	program.Out = io.Discard
	if program.Err == nil {
		program.Err = io.Discard
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() {
		ended <- app.Run(ctx, program, commands, append([]string{"demo", "--http-addr=" + address}, flags...))
	}()
	t.Cleanup(func() {
		stop()
		testenv.Must(t, <-ended)
		http.DefaultClient.CloseIdleConnections()
	})
	url = "http://" + address
	testenv.Eventually(t, "the demo is ready", func() bool {
		resp, err := http.Get(url + "/readyz")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return url
}
