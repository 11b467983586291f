package app

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestCheckSecret(t *testing.T) {
	tests := []struct {
		name, secret, want string
	}{
		{"random", "9f86d081884c7d65", ""},
		{"empty", "", ""},
		{"one byte too short", "9f86d081884c7d6", "has 15 bytes, want at least 16"},
		{"one character", strings.Repeat("a", 64), "has 1 different bytes, want at least 5"},
		{"two characters", strings.Repeat("ab", 32), "has 2 different bytes"},
		{"two characters, one of them once", strings.Repeat("a", 63) + "b", "has 2 different bytes"},
		{"four characters", strings.Repeat("1234", 8), "has 4 different bytes"},
		{"five characters", strings.Repeat("12345", 8), ""},
		{"a word from an example", "changeme-9f86d081884c7d65", `the word "changeme"`},
		{"a word from an example in capitals", "9f86d081-PassWord-884c7d65", `the word "password"`},
		{"the word example", "this-is-an-example-token", `the word "example"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if err := CheckSecret("some-token", tt.secret, 16); err != nil {
				got = err.Error()
			}
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
				t.Errorf("got the error %q, want %q", got, tt.want)
			}
			if tt.want != "" && !strings.HasPrefix(got, "SHOP_SOME_TOKEN (--some-token) ") {
				t.Errorf("got the error %q, want the name of the option at its start", got)
			}
			if tt.secret != "" && strings.Contains(got, tt.secret) {
				t.Errorf("got the error %q, want it without the secret", got)
			}
		})
	}
}

// TestExitCodeOutput checks that nothing is printed for ErrFailed, and any other error in one line.
func TestExitCodeOutput(t *testing.T) {
	var out strings.Builder
	program := Program{Name: "test", Err: &out}
	if code := ExitCode(fmt.Errorf("doctor: %w", ErrFailed), program); code != 1 || out.Len() > 0 {
		t.Errorf("got exit code %d and the output %q, want 1 and no output", code, out.String())
	}
	if code := ExitCode(errors.New("two\n  lines"), program); code != 1 || out.String() != "test: two lines\n" {
		t.Errorf("got exit code %d and the output %q, want 1 and one line", code, out.String())
	}
}
