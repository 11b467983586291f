package programtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv"
)

// Secrets checks each secret of each command, set as a value and in a file, by flags and by the environment. commands
// returns a new pointer to the struct of commands, which holds what a command line sets.
func Secrets(t *testing.T, commands func() any) {
	const secret = "a value with spaces inside"
	files := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(files, name)
		testenv.Must(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	mounted, padded := file("mounted", secret+"\n"), file("padded", " \t\r\n"+secret+"\r\n\n")
	empty, blank, missing := file("empty", ""), file("blank", " \n"), filepath.Join(files, "missing")
	tests := []struct {
		name        string
		value, file string
		want        string
		wantErr     []string // parts of the error
	}{
		{"neither", "", "", "", nil},
		{"a value", secret, "", secret, nil},
		{"a value in white space", " \t\r\n" + secret + "\n ", "", secret, nil},
		{"a file", "", mounted, secret, nil},
		{"a file with white space around the value", "", padded, secret, nil},
		{"a blank value", " \t\n", "", "", nil}, // the command that needs it reports it as missing
		{"a blank value and a file", " ", mounted, secret, nil},
		{"both", secret, mounted, "", []string{"OPTION", "OPTION_FILE", "not both"}},
		{"a missing file", "", missing, "", []string{"OPTION_FILE", missing, "no such file"}},
		{"a directory", "", files, "", []string{"OPTION_FILE", files, "is a directory"}},
		{"an empty file", "", empty, "", []string{"OPTION_FILE", empty, "empty", "OPTION"}},
		{"a blank file", "", blank, "", []string{"OPTION_FILE", blank, "empty", "OPTION"}},
	}
	options := Options(t, commands())
	flags := secretFlags(options)
	if len(flags) < 3 {
		t.Errorf("the secrets are %q, want at least 3", flags)
	}
	for i, flag := range flags {
		secretOption, fileOption := optionOf(t, options, flag), optionOf(t, options, flag+"-file")
		for j, command := range secretOption.Commands {
			for _, tt := range tests {
				if (i > 0 || j > 0) && tt.name != "a value" && tt.name != "a file" && tt.name != "both" {
					continue // app.ReadSecrets reads all secrets, so one option of one command is tried in all ways
				}
				for _, source := range []string{"flags", "environment"} {
					t.Run(fmt.Sprintf("%s of %s by %s/%s", flag, command.Command, source, tt.name), func(t *testing.T) {
						args := strings.Fields(command.Command)
						if source == "flags" {
							args = append(args, "--"+flag, tt.value, "--"+flag+"-file", tt.file)
						} else {
							t.Setenv(secretOption.Variable, tt.value)
							t.Setenv(fileOption.Variable, tt.file)
						}
						got, err := parsedSecret(t, commands(), flag, args)
						if tt.wantErr == nil {
							if err != nil || got != tt.want {
								t.Errorf("got %q, %v; want %q", got, err, tt.want)
							}
							return
						}
						names := strings.NewReplacer("OPTION_FILE", app.OptionName(flag+"-file"),
							"OPTION", app.OptionName(flag))
						var want []string
						for _, part := range tt.wantErr {
							want = append(want, names.Replace(part))
						}
						CheckError(t, err, want)
						if strings.Contains(err.Error(), secret) {
							t.Errorf("got %q, want it without the secret", err)
						}
					})
				}
			}
		}
	}
}

// SecretFiles checks that each secret and the option of its file belong to the same commands.
func SecretFiles(t testing.TB, options []Option) {
	t.Helper()
	for _, flag := range secretFlags(options) {
		secret, file := optionOf(t, options, flag), optionOf(t, options, flag+"-file")
		if !slices.Equal(file.Commands, secret.Commands) {
			t.Errorf("--%s is an option of %v, but --%s of %v", flag, secret.Commands, file.Flag, file.Commands)
		}
	}
}

// secretFlags returns the names of the options that hold a secret. Each has another option for the file with its value.
func secretFlags(options []Option) (flags []string) {
	for _, o := range options {
		if flag, ok := strings.CutSuffix(o.Flag, "-file"); ok {
			flags = append(flags, flag)
		}
	}
	return flags
}

func optionOf(t testing.TB, options []Option, flag string) Option {
	t.Helper()
	i := slices.IndexFunc(options, func(o Option) bool { return o.Flag == flag })
	if i < 0 {
		t.Fatalf("no command has the option --%s", flag)
	}
	return options[i]
}

// parsedSecret parses a command line, and returns the value of a secret.
func parsedSecret(t testing.TB, commands any, flag string, args []string) (string, error) {
	t.Helper()
	command, err := app.Parse(newParser(t, commands), args)
	if err != nil {
		return "", err
	}
	flags := command.Selected().Flags
	i := slices.IndexFunc(flags, func(f *kong.Flag) bool { return f.Name == flag })
	return flags[i].Target.String(), nil
}
