// Package keyset has the keys of rows: ids, and the cursors of lists that are read page by page.
//
// A keyset cursor is the key of the last row of a page. The next page begins after this key, so the database finds the
// page by an index, and no row is repeated or skipped when other rows are added or removed between two pages.
package keyset

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Cursor is the key of a row in a list that is sorted by a time and then by an id.
type Cursor struct {
	At time.Time
	ID uuid.UUID
}

var errCursor = errors.New("not a cursor of this list")

// String returns the cursor in the form that clients see: opaque, and valid in a URL.
func (c Cursor) String() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", c.At.UnixMicro(), c.ID))
}

// ParseCursor parses the result of [Cursor.String].
func ParseCursor(s string) (Cursor, error) {
	text, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return Cursor{}, errCursor
	}
	micros, id, _ := strings.Cut(string(text), " ")
	at, err := strconv.ParseInt(micros, 10, 64)
	if err != nil || at < 0 || at > lastMicro {
		return Cursor{}, errCursor
	}
	c := Cursor{At: time.UnixMicro(at)}
	if c.ID, err = ParseID(id); err != nil {
		return Cursor{}, errCursor
	}
	return c, nil
}

// lastMicro is the latest time of a cursor, in microseconds since 1970: the first moment of the last day of the year
// 9999. PostgreSQL can store later times, but [time.Time.MarshalJSON] returns an error for times after that year.
var lastMicro = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC).UnixMicro()

// NewID returns a UUID of version 7. Such ids sort by their times of creation, so new rows go to the end of an index.
func NewID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// ParseID parses a UUID in its canonical form of 36 characters. [uuid.Parse] accepts several other forms.
func ParseID(s string) (uuid.UUID, error) {
	if len(s) != 36 {
		return uuid.Nil, errors.New("not a UUID")
	}
	return uuid.Parse(s)
}

// ParseIDs separates the ids that may be ids of rows from foreign ones. The id of a row is a UUID in its canonical
// form, in lower case: the same UUID in another form is the id of no row.
func ParseIDs(ids []string) (rows []uuid.UUID, foreign []string) {
	rows = make([]uuid.UUID, 0, len(ids))
	for _, id := range ids {
		if parsed, err := ParseID(id); err == nil && parsed.String() == id {
			rows = append(rows, parsed)
		} else {
			foreign = append(foreign, id)
		}
	}
	return rows, foreign
}
