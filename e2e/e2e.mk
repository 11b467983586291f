.PHONY: screenshots

screenshots: ## Make the README's pictures of the pages
	TEST_ALL=1 go test ./e2e -count=1 -run 'TestPageDemo|TestPageFilm' -screenshots ../docs
	rm -f docs/*-dark.png docs/*-phone.png
