package order

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Cursor is a place in a list sorted by a time and then an id. It names the last row that was read, so
// rows that come and go around it neither repeat nor hide others.
type Cursor struct {
	at time.Time
	id uuid.UUID
}

var errCursor = errors.New("not a cursor of this list")

// String is the cursor as clients see it: opaque, and fit for a URL.
func (c Cursor) String() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d %s", c.at.UnixMicro(), c.id))
}

// ParseCursor reads what [Cursor.String] wrote.
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
	c := Cursor{at: time.UnixMicro(at)}
	if c.id, err = parseID(id); err != nil {
		return Cursor{}, errCursor
	}
	return c, nil
}

// lastMicro keeps cursors within the years that a timestamp of the database can hold: up to 9999.
var lastMicro = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC).UnixMicro()

// parseID reads a UUID in its usual form only; uuid.Parse takes several others.
func parseID(s string) (uuid.UUID, error) {
	if len(s) != 36 {
		return uuid.Nil, errors.New("not a UUID")
	}
	return uuid.Parse(s)
}
