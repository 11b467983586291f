package parttest

import (
	"bytes"
	"context"
	"encoding/csv"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"example.com/shop/internal/testenv"
)

var (
	copyStatement = regexp.MustCompile("(?s)```sql\n(COPY .*?)```")
	copyDay       = regexp.MustCompile(`'\d{4}-\d\d-\d\d'`)
)

// Copied runs the statements COPY … TO STDOUT (FORMAT csv, HEADER) of a document. Each statement has one day, which
// Copied replaces by the given day. It returns the rows of each statement, by the names of their columns.
func Copied(t testing.TB, url, document, day string) (results [][]map[string]string) {
	t.Helper()
	text, err := os.ReadFile(document)
	testenv.Must(t, err)
	conn, err := pgx.Connect(t.Context(), url)
	testenv.Must(t, err)
	defer func() { testenv.Must(t, conn.Close(context.WithoutCancel(t.Context()))) }()
	for _, found := range copyStatement.FindAllStringSubmatch(string(text), -1) {
		statement := copyDay.ReplaceAllLiteralString(found[1], "'"+day+"'")
		if strings.Count(statement, "'"+day+"'") != 1 {
			t.Fatalf("the statement has not exactly one day:\n%s", found[1])
		}
		results = append(results, copied(t, conn, statement))
	}
	return results
}

func copied(t testing.TB, conn *pgx.Conn, statement string) (rows []map[string]string) {
	t.Helper()
	var out bytes.Buffer
	_, err := conn.PgConn().CopyTo(t.Context(), &out, statement)
	testenv.Must(t, err)
	lines, err := csv.NewReader(&out).ReadAll()
	testenv.Must(t, err)
	for _, line := range lines[1:] {
		row := make(map[string]string, len(line))
		for i, value := range line {
			row[lines[0][i]] = value
		}
		rows = append(rows, row)
	}
	return rows
}
