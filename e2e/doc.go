// Package e2e tests the program as a child process. The tests call the program's API over HTTP, check every response
// against the REST contract, and kill the program and its servers. Tests that need only HTTP can also run against a site
// that already runs: E2E_BASE_URL=http://… E2E_OPS_TOKEN=… go test ./e2e.
//
// The fault tests start several processes of each role (deployment_test.go), put them under load (load_test.go), inject
// one fault (fault_*_test.go) or many random ones (chaos_test.go), and end the faults. Then they compare the responses
// that each customer got with the database and with a model of one item (history_test.go).
//
// These fault tests know the service only by what domain_test.go describes. They call a thing that times out an item.
// E2E_DOMAIN selects the service by the name in its domainSpec. A team
// that times out other items adds a file like domain_order_test.go or domain_invite_test.go. To these files the payment
// provider is a second party.
//
// The names of the files tell which parts of the service their tests need: page_ops_payment_test.go needs the web pages,
// the operators' API and payments. To leave a part out, delete the files that name it.
package e2e
