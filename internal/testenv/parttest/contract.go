package parttest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
)

// Contract is an OpenAPI document, which says what an HTTP API answers.
type Contract struct{ operations routers.Router }

// LoadContract reads, merges and validates the contract, examples included. Its pieces are those of the modules in the
// given directories.
func LoadContract(modules ...string) (*Contract, error) {
	files, err := FindPieces(modules...)
	if err != nil {
		return nil, err
	}
	return LoadPieces(files...)
}

// FindPieces returns the files with the pieces of the contract: the files *openapi.yaml in the folders of the commands
// and of the internal packages of some modules.
func FindPieces(modules ...string) (files []string, err error) {
	for _, module := range modules {
		for _, packages := range []string{"internal/*", "cmd/*"} {
			found, err := filepath.Glob(filepath.Join(module, packages, "*openapi.yaml"))
			if err != nil {
				return nil, err
			}
			files = append(files, found...)
		}
	}
	return files, nil
}

// LoadPieces is [LoadContract] with the files of the pieces.
func LoadPieces(files ...string) (*Contract, error) {
	var pieces [][]byte
	for _, file := range files {
		piece, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		pieces = append(pieces, piece)
	}
	text, err := rest.MergeContracts(pieces...)
	if err != nil {
		return nil, err
	}
	loader := openapi3.NewLoader()
	doc, err := loader.LoadFromData(text)
	if err != nil {
		return nil, fmt.Errorf("read the contract: %w", err)
	}
	if err := doc.Validate(loader.Context); err != nil {
		return nil, fmt.Errorf("validate the contract: %w", err)
	}
	operations, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("find the operations of the contract: %w", err)
	}
	return &Contract{operations}, nil
}

// Check returns an error if the answer to a request breaks the contract, lacks a request id, or is an error that
// discloses an internal detail of the service. A request that the contract does not list must be answered with 404 or
// 405.
func (c *Contract) Check(request *http.Request, status int, header http.Header, body []byte) error {
	if err := c.check(request, status, header, body); err != nil {
		return fmt.Errorf("%s %s is answered with %d %s: %w",
			request.Method, request.URL.RequestURI(), status, body, err)
	}
	return nil
}

func (c *Contract) check(request *http.Request, status int, header http.Header, body []byte) error {
	if header.Get("X-Request-Id") == "" {
		return fmt.Errorf("the answer has no X-Request-Id")
	}
	known := []byte(request.Host) // the client has sent it
	if part := testenv.FindLeak(bytes.ReplaceAll(body, known, nil)); status >= http.StatusBadRequest && part != "" {
		return fmt.Errorf("the answer discloses %q, which is internal", part)
	}
	// The operations are found by method and path. The contract does not name the host.
	bare, err := http.NewRequestWithContext(request.Context(), request.Method, request.URL.RequestURI(), http.NoBody)
	if err != nil {
		return err
	}
	route, params, err := c.operations.FindRoute(bare)
	if err != nil {
		return checkUnlisted(status, header, err)
	}
	return openapi3filter.ValidateResponse(request.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: bare, PathParams: params, Route: route},
		Status:                 status, Header: header, Body: io.NopCloser(bytes.NewReader(body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
}

// checkUnlisted checks the answer to a request for which the contract has no operation. cause says why it has none.
func checkUnlisted(status int, header http.Header, cause error) error {
	if status != http.StatusNotFound && status != http.StatusMethodNotAllowed {
		return fmt.Errorf("the contract does not list the request (%w), want 404 or 405", cause)
	}
	if got := header.Get("Content-Type"); got != problemType {
		return fmt.Errorf("the content type is %q, want %s", got, problemType)
	}
	return nil
}

// problemType is the content type of all errors.
const problemType = "application/problem+json"
