package main

import (
	"context"
	"crypto/rand"
	"fmt"
)

// demoOps gives the demo a token for the operators' API, and prints it.
var demoOps = demoPart{
	set: func(o *serveCommand) { o.Ops.OpsToken = rand.Text() },
	open: func(_ context.Context, d *demoRun) error {
		token := d.options.Ops.OpsToken
		d.welcome += fmt.Sprintf("  operations  %s/ops#token=%s\n  ops token   %[2]s\n", d.url, token)
		d.welcome += "  Order something. Then inject faults, at the bottom of the page of operations.\n"
		d.try += fmt.Sprintf("  curl -s -H \"Authorization: Bearer %s\" %s/ops/api/stats\n", token, d.url)
		return nil
	},
}
