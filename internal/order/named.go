package order

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// namedStatement is a statement whose parameters have names in its source. pgx could replace the names in each call,
// but that takes a tenth of the time of a batch of one placement. A statement that gorm runs has no @ in its comments,
// because gorm looks for names there, too.
type namedStatement struct {
	text  string   // with $1, $2 and so on in place of the names
	names []string // in the order of the numbers
}

// named returns a statement whose parameters have the keys of arguments as their names. It ignores the values. It
// panics if the source has other names, because PostgreSQL would take NULL for an argument that is missing.
func named(source string, arguments map[string]any) (s namedStatement) {
	names := make(pgx.StrictNamedArgs, len(arguments))
	for name := range arguments {
		names[name] = name
	}
	text, values, err := names.RewriteQuery(context.Background(), nil, source, nil)
	if err != nil {
		panic(fmt.Sprintf("the parameters of a statement are not those of its caller: %v", err))
	}
	s.text = text
	for _, name := range values {
		s.names = append(s.names, name.(string))
	}
	return s
}

// values returns the arguments in the order of the numbers.
func (s namedStatement) values(arguments map[string]any) []any {
	values := make([]any, len(s.names))
	for i, name := range s.names {
		values[i] = arguments[name]
	}
	return values
}
