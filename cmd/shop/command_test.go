package main

import (
	"testing"

	"example.com/shop/internal/testenv/programtest"
)

// TestOptions checks the names of the options, and those that hold secrets.
func TestOptions(t *testing.T) { programtest.OptionNames(t, programtest.Options(t, &commands{})) }
