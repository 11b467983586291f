.PHONY: copy

copy: ## Copy it all under another name: make copy MODULE=github.com/acme/seats DIR=../seats NAME=seats
copy: ## Copy one example alone: make copy MODULE=github.com/acme/seats DIR=../seats NAME=seats FROM=examples/invite
	@scripts/copy "$(MODULE)" "$(DIR)" "$(NAME)" "$(FROM)"
