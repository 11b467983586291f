package main

import (
	"regexp"
	"strings"
	"testing"
)

// TestImagesAreTheSameEverywhere checks that each default image has a version, and that the tests run on the same images
// as the deployment.
func TestImagesAreTheSameEverywhere(t *testing.T) {
	image := regexp.MustCompile(`(?m)^ +image: +(\S+)$`)
	imageDefault := regexp.MustCompile(`\$\{(\w+_IMAGE):-([^}]+)\}`)
	versioned := regexp.MustCompile(`:v?\d+\.\d+`)
	others := readRepositoryFile(t, "Dockerfile") + readRepositoryFile(t, "internal/devstack/container.go")
	shared := 0
	for _, file := range repositoryFiles(t, composeFiles) {
		text := readRepositoryFile(t, file)
		for _, name := range submatches(image, text) {
			if !imageDefault.MatchString(name) && name != ownImage {
				t.Errorf("%s has the image %s, want %s or a variable with a default", file, name, ownImage)
			}
		}
		for _, d := range imageDefault.FindAllStringSubmatch(text, -1) {
			name, image := d[1], d[2]
			if !versioned.MatchString(image) {
				t.Errorf("the default of %s is %s, want an image with a version", name, image)
			}
			if !strings.Contains(others, name) {
				continue
			}
			shared++
			if !strings.Contains(others, image) {
				t.Errorf("the default of %s is %s in %s, but another image in the Dockerfile or in devstack", name, image, file)
			}
		}
	}
	if shared == 0 {
		t.Errorf("neither the Dockerfile nor devstack uses an image of %s", composeFiles)
	}
}
