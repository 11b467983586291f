package programtest

import (
	"slices"
	"strings"
	"testing"
)

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
