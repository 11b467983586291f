.PHONY: help check test test-all mutants demo

# tools.mod pins the tools apart from the service's own modules. Go builds a tool when it is first used. Building the
# linter takes some minutes.
LINT = go tool -modfile=$(CURDIR)/tools.mod golangci-lint
# Each checkout has its own cache. The linter finds a result by the contents of the files, but the result names them by
# their path, which may have been that of a checkout that no longer exists.
export GOLANGCI_LINT_CACHE = $(CURDIR)/.lint-cache
TESTSUM = go tool -modfile=$(CURDIR)/tools.mod gotestsum

# The folders of all modules, and of those whose tests test and test-all run.
MODULES = $(sort $(dir $(shell git ls-files -co --exclude-standard '*go.mod')))
TESTED = $(dir $(wildcard go.mod payments/go.mod))
# The documents with a table that names tests.
DOCUMENTS = $(shell grep -lsE '[|] Tests? [|]$$' $(TESTED:%=%README.md) $(TESTED:%=%docs/*.md))

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /	/'

check: ## Check format, go.mod, vet and lint of all modules, the allowed imports and the lists of mutants
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	set -e; for module in $(MODULES); do cd $(CURDIR)/$$module; echo "checking $$module"; \
		go mod tidy -diff; go vet ./...; $(LINT) run --allow-parallel-runners --config $(CURDIR)/.golangci.yml; done
	scripts/mutants -n # each mutant of the lists can be applied
	go test -run TestAllowedImports ./internal/testenv/programtest

test: ## Run the tests of a minute or two; list the skipped tests and the reasons
	set -e; for module in $(TESTED); do cd $(CURDIR)/$$module; $(TESTSUM) -- ./...; done
	@echo 'make test-all runs the tests that are skipped as slow, too.'

# The packages e2e start the service's processes, which are no race builds. So -race would watch only the code of their
# tests. They measure, too: one package at a time has the machine.
test-all: export TEST_ALL = 1
test-all: ## Run all tests: the packages with the race detector, then the end-to-end tests
	set -e; for module in $(TESTED); do cd $(CURDIR)/$$module; \
		$(TESTSUM) --jsonfile test-race.json -- -count=1 -race -timeout 30m $$(go list ./... | grep -v '/e2e$$'); \
		$(TESTSUM) --jsonfile test-e2e.json -- -count=1 -p 1 -timeout 40m $$(go list ./... | grep '/e2e$$'); done
	# each fault that the documents name
	$(if $(DOCUMENTS),scripts/ran $(DOCUMENTS) $(TESTED:%=%test-race.json) $(TESTED:%=%test-e2e.json))

mutants: ## Break rules on purpose, one after the other, and check that the tests notice; it takes some minutes
	scripts/mutants

demo: ## Run the service in one process, with its own PostgreSQL and Redis
	go run ./cmd/shop demo

# A folder that a copy may lack has its targets in a file of its own.
include $(wildcard */*.mk)
