package order

import (
	"bufio"
	"context"
	"database/sql"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/app"
)

//go:embed export.sql
var exportSQL string

// ExportOptions are the options of the export.
type ExportOptions struct {
	Keep  time.Duration `name:"keep" default:"0s" help:"The time for which an order is kept after it has ended. It must be given."`
	Count bool          `name:"count" help:"Write no orders, and only count them."`
}

// Check returns an error that names the option with a wrong value.
func (o ExportOptions) Check() error {
	if o.Keep < minKeep {
		return fmt.Errorf("%s is %v, want at least %v: the age of the orders to export", app.OptionName("keep"), o.Keep, minKeep)
	}
	return nil
}

// ExportedRows are the rows of a table or view that belong to an order.
type ExportedRows struct {
	OrderID uuid.UUID
	Table   string // the name of the table or view
	Rows    string // a JSON array of objects, whose keys are the names of the columns
}

// Exported counts the orders of an export.
type Exported struct {
	Orders int64 // orders that would be removed
	Owed   int64 // orders that are as old and would stay, because something of them is owed
}

// Export writes the orders that a [Remover] with this keep would remove now, one JSON object a line. The keys of an object are
// the names of tables and views, and its values are arrays of their rows. Export changes nothing and takes no locks. It calls progress with
// the counts so far after each batch. w may be nil, to count only.
func (s *Service) Export(ctx context.Context, keep time.Duration, w io.Writer, progress func(Exported)) (total Exported, err error) {
	var out *bufio.Writer
	if w != nil {
		out = bufio.NewWriter(w)
	}
	for after := (uuid.UUID{}); ; progress(total) {
		batch, free, rows, err := s.exportBatch(ctx, after, keep, out != nil)
		if err != nil {
			return total, fmt.Errorf("export old orders: %w", err)
		}
		if err := writeExport(out, free, rows); err != nil {
			return total, fmt.Errorf("write the export: %w", err)
		}
		if len(batch) == 0 {
			return total, nil
		}
		after = batch[len(batch)-1]
		total.Orders += int64(len(free))
		total.Owed += int64(len(batch) - len(free))
	}
}

// exportBatch reads a batch of the old orders whose ids follow after. It returns the orders of the batch, those of which nothing
// is owed, and the rows of the latter if withRows is set.
func (s *Service) exportBatch(ctx context.Context, after uuid.UUID, keep time.Duration, withRows bool) (batch, free []uuid.UUID, rows []ExportedRows, err error) {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	// All statements read one snapshot. A snapshot for the whole export would keep the database from vacuuming.
	snapshot := &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
	err = s.store.db.WithContext(ctx).Transaction(func(tx *gorm.DB) (err error) {
		if err := tx.Raw(removableSQL, after, keep.Microseconds()).Scan(&batch).Error; err != nil || len(batch) == 0 {
			return err
		}
		if free, err = s.notOwed(tx, batch); err != nil || !withRows {
			return err
		}
		rows, err = s.rowsOf(tx, free)
		return err
	}, snapshot)
	return batch, free, rows, err
}

// writeExport writes a line for each order.
func writeExport(out *bufio.Writer, ids []uuid.UUID, rows []ExportedRows) error {
	if out == nil {
		return nil
	}
	lines := make(map[uuid.UUID]map[string]json.RawMessage, len(ids))
	for _, row := range rows {
		if lines[row.OrderID] == nil {
			lines[row.OrderID] = make(map[string]json.RawMessage)
		}
		lines[row.OrderID][row.Table] = json.RawMessage(row.Rows)
	}
	enc := json.NewEncoder(out)
	for _, id := range ids {
		if err := enc.Encode(lines[id]); err != nil {
			return err
		}
	}
	return out.Flush()
}

// exportProgress is the time between two reports of the progress of an export.
const exportProgress = 5 * time.Second

// RunExport writes old orders to out, and its progress and the numbers to info. It is `export`.
func (s *Service) RunExport(ctx context.Context, o ExportOptions, out, info io.Writer) error {
	if o.Count {
		out = nil
	}
	reported := time.Now()
	total, err := s.Export(ctx, o.Keep, out, func(sofar Exported) {
		if time.Since(reported) >= exportProgress {
			reported = time.Now()
			fmt.Fprintf(info, "%d orders so far\n", sofar.Orders)
		}
	})
	if err != nil {
		return fmt.Errorf("after %d orders: %w", total.Orders, err)
	}
	_, err = fmt.Fprintf(info, "%d orders that ended more than %v ago can be removed. %d stay, because something of them is owed.\n", total.Orders, o.Keep, total.Owed)
	return err
}
