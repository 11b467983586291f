.PHONY: up down

COMPOSE = VERSION=$$(git describe --always --dirty) docker compose

up: .env ## Run the service in containers, at http://127.0.0.1:8080
	$(COMPOSE) up --wait

down: .env ## Stop the containers; keep their data in volumes
	$(COMPOSE) down

.env: # random secrets
	@umask 077; scripts/env >$@
