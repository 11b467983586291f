package ops

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"example.com/shop/internal/app"
)

// readFigures returns the values of the figures of all parts by their names.
func readFigures(ctx context.Context, pool *sql.DB, parts app.Parts) (map[string]any, error) {
	values := map[string]any{}
	for _, part := range parts {
		for name, statement := range part.Figures {
			var value []byte
			if err := pool.QueryRowContext(ctx, statement).Scan(&value); err != nil {
				return nil, fmt.Errorf("read the figure %s: %w", name, err)
			}
			values[name] = json.RawMessage(value)
		}
	}
	return values, nil
}
