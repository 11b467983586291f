package stripesim

import (
	"fmt"
	"maps"
	"math"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// form holds the parameters of a request by their names in Stripe's bracket syntax, for instance
// line_items[0][quantity]. Its methods take parameters out, so [form.end] finds the unknown ones. The first error
// stays, and end returns it: Stripe reports one error at a time.
type form struct {
	values map[string]string
	err    error
}

var parameterName = regexp.MustCompile(`^\w+(\[[^\[\]]*\])*$`)

// parseForm reads parameters. A name that ends with [] is an element of a list, so it gets the next index.
func parseForm(encoded string) (*form, error) {
	query, err := url.ParseQuery(encoded)
	if err != nil {
		return nil, invalidRequest("", "", "Invalid request: the parameters are not form-encoded.")
	}
	f := &form{values: map[string]string{}}
	for name, values := range query {
		for i, value := range values {
			if !utf8.ValidString(value) || strings.ContainsRune(value, 0) {
				return nil, invalidRequest("", name, "Invalid string: want UTF-8 without NUL characters.")
			}
			if prefix, isList := strings.CutSuffix(name, "[]"); isList {
				f.values[fmt.Sprintf("%s[%d]", prefix, i)] = value
			} else {
				f.values[name] = value // Stripe takes the last one
			}
		}
		if !parameterName.MatchString(name) {
			return nil, invalidRequest("parameter_unknown", name, "Received unknown parameter: "+name)
		}
	}
	return f, nil
}

// canonical returns all parameters in one order, to compare two requests.
func (f *form) canonical() string {
	v := url.Values{}
	for name, value := range f.values {
		v.Set(name, value)
	}
	return v.Encode()
}

// end returns the first error, or an error for the parameters that no method has taken out.
func (f *form) end() error {
	if f.err != nil || len(f.values) == 0 {
		return f.err
	}
	names := slices.Sorted(maps.Keys(f.values))
	noun := "parameter"
	if len(names) > 1 {
		noun = "parameters"
	}
	return invalidRequest("parameter_unknown", names[0],
		fmt.Sprintf("Received unknown %s: %s", noun, strings.Join(names, ", ")))
}

// reject fails for a parameter, with a code and a text of Stripe's.
func (f *form) reject(code, name, format string, args ...any) {
	if f.err == nil {
		f.err = invalidRequest(code, name, fmt.Sprintf(format, args...))
	}
}

// optional takes a parameter out. It returns "" if the parameter is absent. A parameter with an empty value is an
// error: at Stripe that would unset a field, and nothing here can be unset.
func (f *form) optional(name string) string {
	value, ok := f.values[name]
	delete(f.values, name)
	if ok && value == "" {
		f.reject("parameter_invalid_empty", name, "You passed an empty string for '%s'.", name)
	}
	return value
}

// require fails if a parameter is absent. It does not take it out.
func (f *form) require(name string) {
	if _, ok := f.values[name]; !ok {
		f.reject("parameter_missing", name, "Missing required param: %s.", name)
	}
}

func (f *form) required(name string) string {
	f.require(name)
	return f.optional(name)
}

// oneOf takes an optional parameter out that must be one of the values.
func (f *form) oneOf(name string, values ...string) string {
	value := f.optional(name)
	if value != "" && !slices.Contains(values, value) {
		f.reject("", name, "Invalid %s: must be one of %s", name, strings.Join(values, ", "))
	}
	return value
}

// integer takes an optional number out. It returns otherwise if the parameter is absent.
func (f *form) integer(name string, otherwise, low, high int64) int64 {
	value := f.optional(name)
	if value == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		f.reject("parameter_invalid_integer", name, "Invalid integer: %s", value)
		return otherwise
	}
	switch {
	case n < low:
		f.reject("parameter_invalid_integer", name, "This value must be greater than or equal to %d.", low)
	case n > high:
		f.reject("parameter_invalid_integer", name, "This value must be less than or equal to %d.", high)
	}
	return n
}

func (f *form) boolean(name string) bool {
	return f.oneOf(name, "true", "false") == "true"
}

// url takes an optional address out. It accepts only addresses whose origin can stand in a Content-Security-Policy.
func (f *form) url(name string) string {
	value := f.optional(name)
	if value == "" {
		return ""
	}
	u, err := url.Parse(value)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || !hostName.MatchString(u.Host) {
		f.reject("url_invalid", name, "Not a valid URL")
	}
	return value
}

var hostName = regexp.MustCompile(`^[\w.-]+(:\d+)?$|^\[[0-9a-fA-F:]+\](:\d+)?$`)

// length returns the number of elements of a list. The indexes of a list start at 0 and have no gaps.
func (f *form) length(name string) int {
	used := map[int]bool{}
	for parameter := range f.values {
		rest, ok := strings.CutPrefix(parameter, name+"[")
		index, _, closed := strings.Cut(rest, "]")
		if !ok || !closed {
			continue
		}
		n, err := strconv.Atoi(index)
		if err != nil || n < 0 || n > math.MaxInt32 {
			f.reject("", name, "Invalid array")
			return 0
		}
		used[n] = true
	}
	for n := range len(used) {
		if !used[n] {
			f.reject("", name, "Invalid array")
			return 0
		}
	}
	return len(used)
}

// metadata takes an object of metadata out. The limits are Stripe's.
func (f *form) metadata(name string) map[string]string {
	all := map[string]string{}
	for parameter, value := range f.values {
		key, ok := strings.CutPrefix(parameter, name+"[")
		if key, closed := strings.CutSuffix(key, "]"); ok && closed && !strings.Contains(key, "[") {
			delete(f.values, parameter)
			if key == "" || utf8.RuneCountInString(key) > 40 || utf8.RuneCountInString(value) > 500 {
				f.reject("", parameter, "Metadata keys can have up to 40 characters, and values up to 500 characters.")
			}
			all[key] = value
		}
	}
	if len(all) > 50 {
		f.reject("", name, "Metadata can have up to 50 keys.")
	}
	return all
}

// created takes the range of times of creation out, in seconds since 1970: from is in the range, and until is not.
func (f *form) created() (from, until int64) {
	return f.integer("created[gte]", 0, 0, math.MaxInt32), f.integer("created[lt]", math.MaxInt32, 0, math.MaxInt32)
}

// expands takes the fields out that the answer contains as objects. It returns whether field is one of them, and
// accepts no other.
func (f *form) expands(field string) bool {
	found := false
	for i := range f.length("expand") {
		name := fmt.Sprintf("expand[%d]", i)
		if value := f.optional(name); value == field {
			found = true
		} else {
			f.reject("", name, "This property cannot be expanded (%s).", value)
		}
	}
	return found
}
