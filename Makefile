.PHONY: help check test test-all mutants bench kubernetes screenshots demo
.PHONY: up observe traces standby payments down copy

# tools.mod pins the tools apart from the service's own modules. Go builds a tool when it is first used. Building the
# linter takes some minutes.
LINT = go tool -modfile=$(CURDIR)/tools.mod golangci-lint
# Each checkout has its own cache. The linter finds a result by the contents of the files, but the result names them by
# their path, which may have been that of a checkout that no longer exists.
export GOLANGCI_LINT_CACHE = $(CURDIR)/.lint-cache
TESTSUM = go tool -modfile=$(CURDIR)/tools.mod gotestsum
COMPOSE = VERSION=$$(git describe --always --dirty) docker compose

# The folders of all modules, and of those whose tests test and test-all run.
MODULES = $(sort $(dir $(shell git ls-files -co --exclude-standard '*go.mod')))
TESTED = $(dir $(wildcard go.mod payments/go.mod))

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /	/'

check: ## Check format, go.mod, vet and lint of all modules, the allowed imports and the lists of mutants
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	set -e; for module in $(MODULES); do cd $(CURDIR)/$$module; echo "checking $$module"; \
		go mod tidy -diff; go vet ./...; $(LINT) run --allow-parallel-runners --config $(CURDIR)/.golangci.yml; done
	scripts/mutants -n # each mutant of the lists can be applied
	go test -run TestAllowedImports ./cmd/shop

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
	scripts/ran $(wildcard $(TESTED:%=%docs/*.md)) $(TESTED:%=%test-race.json) $(TESTED:%=%test-e2e.json)

mutants: ## Break rules on purpose, one after the other, and check that the tests notice; it takes some minutes
	scripts/mutants

bench: ## Run the benchmarks of the README
	go test -run '^$$' -bench . -benchtime 1x -timeout 30m ./e2e ./cmd/shop

kubernetes: ## Write the alert rules for Kubernetes from those of Prometheus, and check all manifests
	cd deploy/kubernetes/check && go test -count=1 . -update

screenshots: ## Make the README's pictures of the pages
	TEST_ALL=1 go test ./e2e -count=1 -run TestPageDemo -screenshots ../docs
	rm -f docs/*-dark.png docs/*-phone.png

demo: ## Run the service in one process, with its own PostgreSQL and Redis
	go run ./cmd/shop demo

up: .env ## Run the service in containers, at http://127.0.0.1:8080
	$(COMPOSE) up --wait

observe: .env ## Also run Prometheus, and Grafana at http://127.0.0.1:3000
	$(COMPOSE) --profile observability up --wait

traces: .env ## Also run Jaeger, which shows traces, at http://127.0.0.1:16686
	OTEL_EXPORTER_OTLP_ENDPOINT=http://jaeger:4318 $(COMPOSE) --profile tracing up --wait

standby: .env ## Also run a synchronous standby of PostgreSQL
	POSTGRES_HOSTS=postgres:5432,standby:5432 $(COMPOSE) --profile standby up --wait

payments: .env ## From the next make up on, run the shop with payments
	@umask 077; scripts/env docker-compose.yml payments/docker-compose.yml | \
	awk -F= 'NR > FNR { if (!($$1 in old)) print } NR == FNR && $$1 != "COMPOSE_FILE" { print; old[$$1] }' \
	.env - >.env.new
	@mv .env.new .env

down: .env ## Stop the containers; keep their data in volumes
	$(COMPOSE) --profile '*' down

.env: # the compose file, and random secrets
	@umask 077; scripts/env >$@

copy: ## Copy the repository under another name: make copy MODULE=github.com/acme/seats DIR=../seats NAME=seats
	@scripts/copy "$(MODULE)" "$(DIR)" "$(NAME)"
