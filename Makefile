.PHONY: help check test race bench screenshots demo up observe down

# Pinned apart from the app's modules; built from source the first time, the linter for some minutes.
LINT = go tool -modfile=tools.mod golangci-lint
TESTSUM = go tool -modfile=tools.mod gotestsum

help: ## List the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /	/'

check: ## Format, vet, lint, and who may import whom
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not gofmt-ed:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	$(LINT) run
	go test -count=1 -run TestArrows ./cmd/shop # go list looks at files that the test cache does not see

test: ## All tests; then lists those that were skipped, and why
	$(TESTSUM) -- ./...

race: ## All tests with the race detector
	$(TESTSUM) -- -race -timeout 20m ./...

bench: ## Benchmarks, the figures of the README
	go test -run '^$$' -bench . -benchtime 1x -timeout 30m ./e2e ./cmd/shop

screenshots: ## The README's pictures of the pages
	go test ./e2e -count=1 -run TestPageAccessible -screenshots ../docs
	rm -f docs/*-dark.png docs/*-phone.png

demo: ## Everything in one process
	go run ./cmd/shop demo

COMPOSE = VERSION=$$(git describe --always --dirty) docker compose

up: .env ## Everything in containers, at http://127.0.0.1:8080
	$(COMPOSE) up --wait

observe: .env ## The same with Prometheus, and Grafana at http://127.0.0.1:3000
	$(COMPOSE) --profile observability up --wait

down: .env ## Stop the containers; their data stay in volumes
	$(COMPOSE) --profile observability down

.env: # random secrets, for docker compose
	@umask 077; for name in POSTGRES_PASSWORD SHOP_TOKEN_KEY SHOP_OPS_TOKEN; do \
		echo "$$name=$$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')"; \
	done >$@
