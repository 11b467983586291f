package main

import (
	"testing"

	"example.com/shop/internal/testenv/programtest"
)

// TestSecretsHaveFileOptions checks that each secret and the option of its file belong to the same commands.
func TestSecretsHaveFileOptions(t *testing.T) {
	programtest.SecretFiles(t, programtest.Options(t, &commands{}))
}

// TestVariableNames checks that each variable is named after its flag.
func TestVariableNames(t *testing.T) {
	programtest.VariableNames(t, programtest.Options(t, &commands{}))
}

// TestHeadMatchesGet checks that each path that answers GET answers HEAD alike.
func TestHeadMatchesGet(t *testing.T) {
	process, opsToken := openFull(t)
	programtest.HeadMatchesGet(t, process, opsToken)
}
