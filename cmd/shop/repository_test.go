package main

import (
	"testing"

	"example.com/shop/internal/testenv/programtest"
)

// The tests of this file check that the documents, the alerts and the dashboards agree with the program.
const (
	repositoryRoot = "../.."
	bench          = repositoryRoot + "/bench"
	deployed       = repositoryRoot + "/examples/deploy" // what a copy of an example gets
	observability  = repositoryRoot + "/deploy/observability/"
	alerts         = observability + "alerts*.yml"
	dashboards     = observability + "grafana/dashboards/*.json"
)

// TestLinks checks the links of the documents and of the alerts.
func TestLinks(t *testing.T) {
	programtest.Links(t, programtest.Documents(t, repositoryRoot, bench))
	programtest.Runbooks(t, repositoryRoot, programtest.Read(t, alerts))
	programtest.Runbooks(t, deployed, programtest.Read(t, deployed+"/alerts.yml"))
}

// TestDocsNameRealTests checks that all tests that the documents name exist.
func TestDocsNameRealTests(t *testing.T) {
	programtest.NamedTests(t, programtest.Documents(t, repositoryRoot, bench), repositoryRoot, bench)
}

// TestDocsNameRealFiles checks that all files exist that the README names, and those of the examples, which become the
// README of a copy. The guide also names files that its reader will write.
func TestDocsNameRealFiles(t *testing.T) {
	docs := programtest.Read(t, repositoryRoot+"/README.md", repositoryRoot+"/examples/*/README.md")
	programtest.NamedFiles(t, docs, repositoryRoot)
}

// TestConfigurationTable compares the documents' tables of options with the options. The demo and the search for a
// row have documents of their own.
func TestConfigurationTable(t *testing.T) {
	docs := programtest.Documents(t, repositoryRoot, bench)
	options := programtest.Options(t, &commands{})
	programtest.ConfigurationTable(t, options, docs, nil, "demo")
}

// TestObservedMetricsExist checks that the alerts, the dashboards and the documents name only metrics that exist.
func TestObservedMetricsExist(t *testing.T) {
	docs := programtest.Documents(t, repositoryRoot, bench)
	observed := programtest.Read(t, alerts, dashboards, deployed+"/alerts.yml")
	programtest.ObservedMetrics(t, openFull(t).Registry, observed, docs)
}
