.PHONY: screenshots

screenshots: ## Make the pictures in docs of the pages
	TEST_ALL=1 go test ./e2e -count=1 -run 'TestPageDemo' -screenshots ../docs
	rm -f docs/*-dark.png docs/*-phone.png
