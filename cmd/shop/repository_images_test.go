package main

import (
	"regexp"
	"strings"
	"testing"
)

// TestImagesAreTheSameEverywhere checks that each default image has a version, and that the tests run on the same images
// as the deployment.
func TestImagesAreTheSameEverywhere(t *testing.T) {
	imageDefault := regexp.MustCompile(`\$\{(\w+_IMAGE):-([^}]+)\}`)
	versioned := regexp.MustCompile(`:v?\d+\.\d+`)
	defaults := imageDefault.FindAllStringSubmatch(readRepositoryFile(t, composeFile), -1)
	others := readRepositoryFile(t, "Dockerfile") + readRepositoryFile(t, "internal/devstack/container.go")
	shared := 0
	for _, d := range defaults {
		name, image := d[1], d[2]
		if !versioned.MatchString(image) {
			t.Errorf("the default of %s is %s, want an image with a version", name, image)
		}
		if !strings.Contains(others, name) {
			continue
		}
		shared++
		if !strings.Contains(others, image) {
			t.Errorf("the default of %s is %s in %s, but another image in the Dockerfile or in devstack", name, image, composeFile)
		}
	}
	if len(defaults) != 6 {
		t.Errorf("%s has default images for %d variables, want 6", composeFile, len(defaults))
	}
	if shared == 0 {
		t.Errorf("neither the Dockerfile nor devstack uses an image of %s", composeFile)
	}
}
