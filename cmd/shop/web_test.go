package main

import (
	"testing"

	"example.com/shop/internal/testenv"
)

// TestHeadMatchesGetOfAssets is [TestHeadMatchesGet] for the files of the pages, whose path has a parameter.
func TestHeadMatchesGetOfAssets(t *testing.T) {
	checkHeadMatchesGet(t, newTestApp(t, testenv.Redis(t), 1), "", "/assets/shop.js")
}
