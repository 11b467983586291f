package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// EnvPrefix is the prefix of all environment variables of the program, without the underscore.
const EnvPrefix = "SHOP"

// OptionName returns the variable and the flag of an option: "SHOP_HTTP_ADDR (--http-addr)".
func OptionName(flag string) string {
	return fmt.Sprintf("%s_%s (--%s)", EnvPrefix, strings.ToUpper(strings.ReplaceAll(flag, "-", "_")), flag)
}

// UsageError is an error in an option: the user must change the command line or the environment.
type UsageError struct{ error }

func (e UsageError) Unwrap() error { return e.error }

// Usage returns err as a [UsageError].
func Usage(err error) error { return UsageError{err} }

// JoinErrors joins errors into an error of one line. It returns nil if all of errs are nil.
func JoinErrors(errs ...error) error {
	var texts []string
	for _, err := range errs {
		if err != nil {
			texts = append(texts, err.Error())
		}
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

// RequireOptions returns an error that names the options without a value. The keys of options are the names of flags.
func RequireOptions(options map[string]string) error {
	var missing []string
	for flag, value := range options {
		if value == "" {
			missing = append(missing, OptionName(flag))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return fmt.Errorf("missing %s", strings.Join(missing, ", "))
}

// CheckHostPort returns an error unless the address is empty or has the form HOST:PORT.
func CheckHostPort(flag, address string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("%s is not of the form host:port: %w", OptionName(flag), err)
	}
	return nil
}

// minDifferentBytes is the minimum number of different bytes in a secret. It rejects secrets that repeat a few
// characters. It almost never rejects a random secret: one in 10^35 from `openssl rand -hex 32`, and one in two million
// from `openssl rand -hex 8`, which has the minimum length of the operators' token.
const minDifferentBytes = 5

// CheckSecret rejects secrets that are easy to guess: short ones, ones that repeat a few characters, and ones that
// contain a word from an example. It accepts an empty secret, because [RequireOptions] reports it.
func CheckSecret(flag, secret string, minBytes int) error {
	if secret == "" {
		return nil
	}
	words := []string{"changeme", "change-me", "secret", "password", "default", "example"}
	lower := strings.ToLower(secret)
	guessed := slices.IndexFunc(words, func(word string) bool { return strings.Contains(lower, word) })
	different := map[byte]bool{}
	for _, b := range []byte(secret) {
		different[b] = true
	}
	var problem string
	switch {
	case len(secret) < minBytes:
		problem = fmt.Sprintf("has %d bytes, want at least %d", len(secret), minBytes)
	case guessed >= 0:
		problem = fmt.Sprintf("contains the word %q", words[guessed])
	case len(different) < minDifferentBytes:
		problem = fmt.Sprintf("has %d different bytes, want at least %d", len(different), minDifferentBytes)
	default:
		return nil
	}
	return fmt.Errorf("%s %s: set a random value, for example from `openssl rand -hex 32`", OptionName(flag), problem)
}

// ReadSecrets sets the secrets of a command from their files, and trims them. The option NAME is a secret, or an
// address that may contain a password, if the command also has an option NAME-file. White space at the ends is not part
// of a secret: editors, `echo` and tools that mount secrets add a newline, which no Authorization header can carry.
func ReadSecrets(command *kong.Node) error {
	flags := map[string]*kong.Flag{}
	for _, flag := range command.Flags {
		flags[flag.Name] = flag
	}
	var errs []error
	for _, file := range command.Flags {
		name, isFile := strings.CutSuffix(file.Name, "-file")
		if secret := flags[name]; isFile && secret != nil {
			value, err := readSecret(name, secret.Target.String(), file.Target.String())
			secret.Target.SetString(value)
			errs = append(errs, err)
		}
	}
	return JoinErrors(errs...)
}

// rereader returns a function that reads a secret again from its file, or nil if it is in no file.
func rereader(flag, file string) func() (string, error) {
	if file == "" {
		return nil
	}
	return func() (string, error) { return readSecret(flag, "", file) }
}

// readSecret returns a secret that is set as a value or in a file. An unset secret is empty.
func readSecret(flag, value, file string) (string, error) {
	value = strings.TrimSpace(value)
	if file == "" {
		return value, nil
	}
	name, fileName := OptionName(flag), OptionName(flag+"-file")
	if value != "" {
		return "", fmt.Errorf("%s and %s are set: set one of them, not both", name, fileName)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", fileName, err)
	}
	if value = strings.TrimSpace(string(content)); value == "" {
		return "", fmt.Errorf("%s: the file %s is empty, want the value of %s in it", fileName, file, name)
	}
	return value, nil
}
