// Package pgbench places orders with PostgreSQL's pgbench, for benchmarks: with the statements of the service, but one
// by one and without a service.
package pgbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// ErrMissing means that the machine does not have pgbench.
var ErrMissing = errors.New("no pgbench in PATH or in /usr/lib/postgresql: install PostgreSQL's server package " +
	"(Debian and Ubuntu: apt-get install postgresql; macOS: brew install postgresql)")

// ID is the format of the id of the n-th product, from 1. pgbench can compute it.
const ID = "00000000-0000-7000-8000-%012d"

// Load describes what pgbench does.
type Load struct {
	Database string        // the URL of the database, which has the products
	Module   string        // the directory of the module, for its statements
	Clients  int           // connections
	Products int           // products that the orders are spread over
	For      time.Duration // at least a second
}

// Result is the result of a load.
type Result struct {
	Rate   float64 // orders per second
	Orders int
	CPU    time.Duration // processor time of pgbench itself
}

var (
	rate   = regexp.MustCompile(`tps = ([0-9.]+) \(without`)
	orders = regexp.MustCompile(`number of transactions actually processed: (\d+)`)
)

// Place places orders of one item each. It uses prepared statements.
func Place(ctx context.Context, l Load) (r Result, err error) {
	pgbench, err := find()
	if err != nil {
		return r, err
	}
	script, err := placeScript(filepath.Join(l.Module, "internal", "order"), l.Products)
	if err != nil {
		return r, err
	}
	dir, err := os.MkdirTemp("", "pgbench-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it holds nothing but the script
	file := filepath.Join(dir, "place.sql")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		return r, err
	}
	cmd := exec.CommandContext(ctx, pgbench, "-n", "-M", "prepared", "-c", strconv.Itoa(l.Clients), "-j", "2",
		"-T", strconv.Itoa(max(1, int(l.For.Seconds()))), "-f", file, l.Database)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return r, fmt.Errorf("pgbench: %w: %s", err, out)
	}
	r.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	n, err := number(orders, out)
	if err != nil {
		return r, err
	}
	if r.Orders = int(n); r.Orders == 0 {
		return r, nil // pgbench prints no rate
	}
	r.Rate, err = number(rate, out)
	return r, err
}

// find returns the path of pgbench. Of Debian's packages it prefers the newest.
func find() (string, error) {
	if path, err := exec.LookPath("pgbench"); err == nil {
		return path, nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench")
	if err != nil || len(found) == 0 {
		return "", ErrMissing
	}
	return found[len(found)-1], nil
}

// number returns the number in the output of pgbench that the expression's group matches.
func number(expression *regexp.Regexp, out []byte) (float64, error) {
	m := expression.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("the output of pgbench does not match %s: %s", expression, out)
	}
	return strconv.ParseFloat(string(m[1]), 64)
}

// placeScript returns a script for pgbench. It places an order of a random one of 2,000 customers for a random
// product, and deletes the outbox row, as the publisher does. dir holds the statements.
func placeScript(dir string, products int) (string, error) {
	id := func(variable string) string {
		return "('00000000-0000-7000-8000-' || lpad(:" + variable + "::text, 12, '0'))::uuid"
	}
	one := func(value string) string { return "ARRAY[" + value + "]" }
	lock, err := statement(filepath.Join(dir, "lock.sql"), map[string]string{
		"$1": one(id("product")), "$2": one(id("customer")), "$3": "'200'",
	})
	if err != nil {
		return "", err
	}
	place, err := statement(filepath.Join(dir, "place.sql"), map[string]string{
		"@ids": one(id("order")), "@customers": one(id("customer")), "@nth": one("1"),
		"@keys": one("NULL"), "@fingerprints": one("NULL"), "@spans": one("NULL"),
		"@line_placements": one("1"), "@line_products": one(id("product")), "@line_quantities": one("1"),
		"@line_earlier": one("0"), "@line_own_earlier": one("0"),
		"@time_to_pay": "1800000000", "@kind": "'bench'", "@max_open_orders": "NULL", "@max_open_units": "NULL",
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("\\set customer random(1, 2000)\n\\set product random(1, %d)\n\\set order random(1, "+
		"999999999999)\n", products) +
		"\\startpipeline\n" + lock + ";\n" + place + ";\n\\endpipeline\n" +
		"DELETE FROM outbox WHERE kind = 'bench' AND task_id = " + id("order") + "::text;\n", nil
}

var comment = regexp.MustCompile(`(?m)--.*$`)

// statement returns the statement in a file, with values in place of its parameters, and without comments.
func statement(file string, parameters map[string]string) (string, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	text := comment.ReplaceAllString(string(content), "")
	for parameter, value := range parameters {
		text = regexp.MustCompile(regexp.QuoteMeta(parameter)+`\b`).ReplaceAllLiteralString(text, value)
	}
	return text, nil
}
