# The targets of the containers.

.PHONY: up observe down

COMPOSE = VERSION=$$(git describe --always --dirty) docker compose

up: .env ## Run the service in containers, at http://127.0.0.1:8080
	$(COMPOSE) up --wait

observe: .env ## Also run Prometheus, and Grafana at http://127.0.0.1:3000
	$(COMPOSE) --profile observability up --wait

down: .env ## Stop the containers; keep their data in volumes
	$(COMPOSE) --profile observability down

.env: # the compose files, and random secrets
	@umask 077; scripts/env >$@
