.PHONY: kubernetes up observe traces standby down

COMPOSE = VERSION=$$(git describe --always --dirty) docker compose

kubernetes: ## Write the alert rules for Kubernetes from those of Prometheus, and check all manifests
	cd deploy/kubernetes/check && go test -count=1 . -update

up: .env ## Run the service in containers, at http://127.0.0.1:8080
	$(COMPOSE) up --wait

observe: .env ## Also run Prometheus, and Grafana at http://127.0.0.1:3000
	$(COMPOSE) --profile observability up --wait

traces: .env ## Also run Jaeger, which shows traces, at http://127.0.0.1:16686
	OTEL_EXPORTER_OTLP_ENDPOINT=http://jaeger:4318 $(COMPOSE) --profile tracing up --wait

standby: .env ## Also run a synchronous standby of PostgreSQL
	POSTGRES_HOSTS=postgres:5432,standby:5432 $(COMPOSE) --profile standby up --wait

down: .env ## Stop the containers; keep their data in volumes
	$(COMPOSE) --profile '*' down

.env: # the compose file, and random secrets
	@umask 077; scripts/env >$@
