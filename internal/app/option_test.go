package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
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

// TestSecrets sets a secret as a value and in a file, by flags and by the environment.
func TestSecrets(t *testing.T) {
	const secret = "a value with spaces inside"
	files := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(files, name)
		testenv.Must(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	mounted, padded := file("mounted", secret+"\n"), file("padded", " \t\r\n"+secret+"\r\n\n")
	empty, blank, missing := file("empty", ""), file("blank", " \n"), filepath.Join(files, "missing")
	for name, test := range map[string]struct {
		value, file string
		want        string
		wantErr     []string // parts of the error
	}{
		"neither":                 {"", "", "", nil},
		"a value":                 {secret, "", secret, nil},
		"a value in white space":  {" \t\r\n" + secret + "\n ", "", secret, nil},
		"a file":                  {"", mounted, secret, nil},
		"a file with white space": {"", padded, secret, nil},
		"a blank value":           {" \t\n", "", "", nil}, // the command that needs it reports it as missing
		"a blank value, a file":   {" ", mounted, secret, nil},
		"both":                    {secret, mounted, "", []string{"SHOP_SOME_KEY", "SHOP_SOME_KEY_FILE", "not both"}},
		"a missing file":          {"", missing, "", []string{"SHOP_SOME_KEY_FILE", missing, "no such file"}},
		"a directory":             {"", files, "", []string{"SHOP_SOME_KEY_FILE", files, "is a directory"}},
		"an empty file":           {"", empty, "", []string{"SHOP_SOME_KEY_FILE", empty, "empty"}},
		"a blank file":            {"", blank, "", []string{"SHOP_SOME_KEY_FILE", blank, "empty"}},
	} {
		for _, source := range []string{"flags", "environment"} {
			t.Run(name+" by "+source, func(t *testing.T) {
				var commands struct {
					Serve struct{ SomeKey, SomeKeyFile string } `cmd:""`
				}
				args := []string{"serve"}
				if source == "flags" {
					args = append(args, "--some-key", test.value, "--some-key-file", test.file)
				} else {
					t.Setenv("SHOP_SOME_KEY", test.value)
					t.Setenv("SHOP_SOME_KEY_FILE", test.file)
				}
				parser, err := NewParser(Program{Name: "shop", Out: io.Discard, Err: io.Discard}, &commands)
				testenv.Must(t, err)
				_, err = Parse(parser, args)
				if got := commands.Serve.SomeKey; (err == nil) != (test.wantErr == nil) || err == nil && got != test.want {
					t.Fatalf("got %q, %v; want %q", got, err, test.want)
				}
				for _, part := range test.wantErr {
					if !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), secret) {
						t.Errorf("the error is %v, want %q in it, and not the secret", err, part)
					}
				}
			})
		}
	}
}
