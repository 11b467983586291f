.PHONY: help check test race bench demo

help: ## List the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /	/'

check: ## Format, vet, lint, and who may import whom
	@unformatted=$$(gofmt -l $$(git ls-files -co --exclude-standard '*.go')); \
	if [ -n "$$unformatted" ]; then echo "not gofmt-ed:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go tool -modfile=tools.mod staticcheck ./...
	go test -run TestArrows ./cmd/shop

test: ## All tests
	go test ./...

race: ## All tests with the race detector
	go test -race -timeout 20m ./...

bench: ## Benchmarks, the figures of the README
	go test -run '^$$' -bench . -benchtime 1x -timeout 30m ./e2e ./internal/...

demo: ## Everything in one process
	go run ./cmd/shop demo
