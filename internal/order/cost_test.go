package order_test

import (
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/migrations"
)

// costOrders is the number of orders that each step of BenchmarkCost takes.
const costOrders = 2_000

// BenchmarkCost prints what each step of an order of one line costs PostgreSQL: rows, WAL and buffers. Unlike times, these
// figures hardly depend on the machine and its load.
//
// Each step begins after a checkpoint. When the step first changes an existing page, PostgreSQL writes an image of the
// page to the WAL, so the images show over how many pages the step spreads its changes. The benchmark needs the extensions
// pg_stat_statements and pg_walinspect, which are part of PostgreSQL's contrib.
func BenchmarkCost(b *testing.B) {
	for _, keys := range []bool{false, true} {
		b.Run(fmt.Sprintf("keys=%v", keys), func(b *testing.B) {
			for b.Loop() {
				newMeasuredShop(b, keys).measureSteps(b)
			}
		})
	}
}

func (s *measuredShop) measureSteps(b *testing.B) {
	s.measure(b, "place", func() { s.placeOrders(b, timeout) })
	placed := s.placeOrders(b, timeout)
	s.measure(b, "pay", func() { s.payAll(b, placed) })
	placed = s.placeOrders(b, timeout)
	s.measure(b, "cancel by the customer", func() {
		for _, o := range placed {
			if _, err := s.Cancel(b.Context(), o.CustomerID, o.ID); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, size := range []int{1, 500} {
		var ids []uuid.UUID
		for _, o := range s.placeOrders(b, time.Millisecond) {
			ids = append(ids, o.ID)
		}
		s.measure(b, fmt.Sprintf("cancel when due, in batches of %d", size), func() {
			for batch := range slices.Chunk(ids, size) {
				s.Deliver(b, batch...)
			}
		})
	}
	s.CheckInvariants(b, time.Minute)
}

// measuredShop is a shop with a PostgreSQL server of its own and one session.
type measuredShop struct {
	*shop
	keys                bool // reports whether the orders have idempotency keys
	customers, products []uuid.UUID
}

// newMeasuredShop returns a shop whose 1,000 customers have placed 20,000 orders and paid most of them.
func newMeasuredShop(b *testing.B, keys bool) *measuredShop {
	b.Helper()
	server := testenv.PostgresServer(b, map[string]string{
		"shared_preload_libraries": "pg_stat_statements",
		"full_page_writes":         "on",
		"shared_buffers":           "256MB",
		// Nothing but the measured statements writes WAL.
		"autovacuum": "off", "checkpoint_timeout": "1h", "max_wal_size": "10GB", "bgwriter_lru_maxpages": "0",
	})
	gdb, db := parttest.OpenDB(b, server.URL(), 1)
	migrated, err := sql.Open("pgx", server.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer migrated.Close()
	if _, err := migrations.Up(b.Context(), migrated); err != nil {
		b.Fatal(err)
	}
	s := &measuredShop{keys: keys, shop: &shop{Shop: &ordertest.Shop{
		Store: order.NewStore(gdb), DB: db, Published: &parttest.Published{}, Notified: &parttest.Notified{},
	}}}
	s.Service = s.service(timeout)
	s.Exec(b, `CREATE EXTENSION pg_stat_statements`)
	s.Exec(b, `CREATE EXTENSION pg_walinspect`)

	for range 1000 {
		s.customers = append(s.customers, s.Customer(b))
	}
	for range 100 {
		s.products = append(s.products, s.Product(b, 1_000_000))
	}
	for range 10 {
		s.payAll(b, s.placeOrders(b, timeout)[costOrders/10:])
	}
	s.Exec(b, `DELETE FROM outbox`)
	s.Exec(b, `VACUUM ANALYZE`)
	return s
}

func (s *measuredShop) service(timeToPay time.Duration) *order.Service {
	return order.NewService(s.Store, s.Published, order.Config{Timeout: timeToPay}, slog.New(slog.DiscardHandler),
		prometheus.NewRegistry())
}

// placeOrders places costOrders orders, one after the other.
func (s *measuredShop) placeOrders(b *testing.B, timeToPay time.Duration) (placed []*order.Order) {
	b.Helper()
	service := s.service(timeToPay)
	for i := range costOrders {
		p := order.Placement{Lines: []order.Line{line(s.products[i*7%len(s.products)], 1)}}
		if s.keys {
			p.IdempotencyKey = uuid.NewString()
		}
		o, _, err := service.Place(b.Context(), s.customers[i*7%len(s.customers)], p)
		if err != nil {
			b.Fatal(err)
		}
		placed = append(placed, o)
	}
	return placed
}

func (s *measuredShop) payAll(b *testing.B, placed []*order.Order) {
	b.Helper()
	for _, o := range placed {
		if _, err := s.Pay(b.Context(), o.CustomerID, o.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// measure runs a step, and prints what it cost per order.
func (s *measuredShop) measure(b *testing.B, name string, step func()) {
	b.Helper()
	s.Exec(b, `CHECKPOINT`)
	before := s.rowCounts(b)
	s.Exec(b, `SELECT pg_stat_statements_reset()`)
	begin := testenv.Query[string](b, s.DB, `SELECT pg_current_wal_insert_lsn()`)
	step()
	end := testenv.Query[string](b, s.DB, `SELECT pg_current_wal_insert_lsn()`)
	used := testenv.Query[float64](b, s.DB, `SELECT sum(shared_blks_hit + shared_blks_read) FROM pg_stat_statements`)
	dirtied := testenv.Query[float64](b, s.DB, `SELECT sum(shared_blks_dirtied) FROM pg_stat_statements`)

	var report strings.Builder
	fmt.Fprintf(&report, "\n%s, per order:\n", name)
	for i, after := range s.rowCounts(b) {
		counts := fmt.Sprintf("%6.2f inserted %6.2f updated %6.2f of them HOT %6.2f deleted", after.since(before[i])...)
		if strings.ContainsAny(counts, "123456789") {
			fmt.Fprintf(&report, "  %-28s %s\n", after.table, counts)
		}
	}
	var total walRecords
	for _, records := range s.wal(b, begin, end) {
		total.count += records.count
		total.bytes += records.bytes
		total.imageBytes += records.imageBytes
		if records.count >= costOrders/100 {
			fmt.Fprintf(&report, "  %-28s %s\n", records.recordType, records)
		}
	}
	fmt.Fprintf(&report, "  %-28s %s\n", "WAL", total)
	fmt.Fprintf(&report, "  %-28s %6.1f used %11.2f dirtied", "buffers", used/costOrders, dirtied/costOrders)
	fmt.Println(report.String()) // the testing package shortens the log of a benchmark
}

// rowCounts are the numbers of rows of a table that were ever inserted, updated, updated HOT, and deleted.
type rowCounts struct {
	table  string
	counts [4]float64
}

func (r rowCounts) since(before rowCounts) (perOrder []any) {
	for i, n := range r.counts {
		perOrder = append(perOrder, (n-before.counts[i])/costOrders)
	}
	return perOrder
}

// rowCounts returns the counts of each table.
func (s *measuredShop) rowCounts(b *testing.B) (all []rowCounts) {
	b.Helper()
	s.Exec(b, `SELECT pg_stat_force_next_flush()`) // the session's counts, which may be up to a second old otherwise
	rows, err := s.DB.QueryContext(b.Context(), `
		SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del FROM pg_stat_user_tables ORDER BY relname`)
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var r rowCounts
		if err := rows.Scan(&r.table, &r.counts[0], &r.counts[1], &r.counts[2], &r.counts[3]); err != nil {
			b.Fatal(err)
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	return all
}

// walRecords are the WAL records of a type: their number, their size, and the size of the page images.
type walRecords struct {
	recordType               string
	count, bytes, imageBytes float64
}

func (r walRecords) String() string {
	return fmt.Sprintf("%6.2f records %6.0f B %7.0f B of page images", r.count/costOrders, r.bytes/costOrders, r.imageBytes/costOrders)
}

// wal returns the records of each type between two positions.
func (s *measuredShop) wal(b *testing.B, begin, end string) (all []walRecords) {
	b.Helper()
	rows, err := s.DB.QueryContext(b.Context(), `
		SELECT "resource_manager/record_type", count, record_size, fpi_size
		FROM pg_get_wal_stats($1::pg_lsn, $2::pg_lsn, true) WHERE count > 0 ORDER BY record_size DESC`, begin, end)
	if err != nil {
		b.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var r walRecords
		if err := rows.Scan(&r.recordType, &r.count, &r.bytes, &r.imageBytes); err != nil {
			b.Fatal(err)
		}
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		b.Fatal(err)
	}
	return all
}
