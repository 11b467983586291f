.PHONY: payments

payments: .env ## From the next make up on, run the shop with payments
	@umask 077; scripts/env docker-compose.yml payments/docker-compose.yml | \
	awk -F= 'NR > FNR { if (!($$1 in old)) print } NR == FNR && $$1 != "COMPOSE_FILE" { print; old[$$1] }' \
	.env - >.env.new
	@mv .env.new .env
