package main

import (
	"log/slog"
	"testing"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/programtest"
)

// The tests of this file check that the documents, the alerts and the dashboard of this module agree with the program.
const (
	moduleRoot    = "../.."
	core          = "../../.."
	observability = moduleRoot + "/deploy/observability/"
	alerts        = observability + "alerts*.yml"
)

// TestLinksOfPayments checks the links of the documents and of the alerts.
func TestLinksOfPayments(t *testing.T) {
	programtest.Links(t, programtest.Documents(t, moduleRoot))
	programtest.Runbooks(t, core, programtest.Read(t, alerts))
}

// TestDocsOfPaymentsNameRealTests checks that all tests that the documents name exist.
func TestDocsOfPaymentsNameRealTests(t *testing.T) {
	programtest.NamedTests(t, programtest.Documents(t, moduleRoot), moduleRoot, core)
}

// TestConfigurationTableOfPayments compares the documents' tables of options with the options. The core's documents
// have those of the program without payments.
func TestConfigurationTableOfPayments(t *testing.T) {
	programtest.ConfigurationTable(t, programtest.Options(t, &commands{}), programtest.Documents(t, moduleRoot),
		programtest.Documents(t, core), "demo", "payments", "provider")
}

// TestOptionsOfPayments checks the names of the options, and those that hold secrets.
func TestOptionsOfPayments(t *testing.T) {
	programtest.OptionNames(t, programtest.Options(t, &commands{}))
}

// TestMetricsOfPayments checks that the alerts, the dashboard and the documents name only metrics that exist.
func TestMetricsOfPayments(t *testing.T) {
	o := validOptions()
	withProvider(&o)
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	a := openApp(t, &o, o.Config(program()), slog.DiscardHandler)
	programtest.ObservedMetrics(t, a.Registry, programtest.Read(t, alerts, observability+"dashboards/*.json"),
		programtest.Documents(t, moduleRoot))
}
