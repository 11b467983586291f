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
	"strings"
	"time"
)

// ErrMissing means that the machine does not have pgbench.
var ErrMissing = errors.New("no pgbench in PATH or in /usr/lib/postgresql: install PostgreSQL's server package " +
	"(Debian and Ubuntu: apt-get install postgresql; macOS: brew install postgresql)")

// ID is the format of the id of the n-th product, from 1. pgbench can compute it.
const ID = "00000000-0000-7000-8000-%012d"

// Options say what pgbench does.
type Options struct {
	Database string        // the URL of the database, which has the products
	Module   string        // the directory of the module, for its statements
	Clients  int           // connections
	Products int           // products that the orders are spread over
	For      time.Duration // at least a second
}

// Measurement is what pgbench measured.
type Measurement struct {
	Rate   float64 // orders per second
	Orders int
	CPU    time.Duration // processor time of pgbench itself
}

var (
	rate   = regexp.MustCompile(`tps = ([0-9.]+) \(without`)
	orders = regexp.MustCompile(`number of transactions actually processed: (\d+)`)
)

// Place places orders of one item each. It uses prepared statements.
func Place(ctx context.Context, o Options) (m Measurement, err error) {
	pgbench, err := find()
	if err != nil {
		return m, err
	}
	script, err := placeScript(filepath.Join(o.Module, "internal", "order"), o.Products)
	if err != nil {
		return m, err
	}
	dir, err := os.MkdirTemp("", "pgbench-")
	if err != nil {
		return m, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // it holds nothing but the script
	file := filepath.Join(dir, "place.sql")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		return m, err
	}
	cmd := exec.CommandContext(ctx, pgbench, "-n", "-M", "prepared", "-c", strconv.Itoa(o.Clients), "-j", "2",
		"-T", strconv.Itoa(max(1, int(o.For.Seconds()))), "-f", file, o.Database)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return m, fmt.Errorf("pgbench: %w: %s", err, out)
	}
	m.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	n, err := number(orders, out)
	if err != nil {
		return m, err
	}
	if m.Orders = int(n); m.Orders == 0 {
		return m, nil // pgbench prints no rate
	}
	m.Rate, err = number(rate, out)
	return m, err
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
	var statements []string
	for _, file := range []struct {
		name       string
		parameters map[string]string
	}{
		{"lock.sql", map[string]string{"$1": one(id("product"))}},
		{"lock_customers.sql", map[string]string{"$1": one(id("customer"))}},
		{"place.sql", map[string]string{
			"$1": one(id("order")), "$2": one(id("customer")), "$3": one("100"), "$4": one("'EUR'"),
			"$5": one("NULL"), "$6": one("NULL"), "$7": one("NULL"),
			"$8": "clock_timestamp()", "$9": "(clock_timestamp() + interval '30 min')", "$10": "'bench'",
			"$11": one(id("order")), "$12": one(id("product")), "$13": one("1"), "$14": one("100"),
			"$15": one("'product'"),
		}},
	} {
		text, err := statement(filepath.Join(dir, file.name), file.parameters)
		if err != nil {
			return "", err
		}
		statements = append(statements, text)
	}
	statements = append(statements, "UPDATE products SET available = available - 1 WHERE id = "+id("product"))
	return fmt.Sprintf("\\set customer random(1, 2000)\n\\set product random(1, %d)\n\\set order random(1, "+
		"999999999999)\n", products) +
		"\\startpipeline\n" + strings.Join(statements, ";\n") + ";\n\\endpipeline\n" +
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
