package payment_test

import (
	"context"
	"slices"
	"sort"
	"time"

	"example.com/shop/internal/payment"
)

// pageSize is the number of rows of a page of the memory provider: few, so that tests have several pages.
const pageSize = 2

// page returns the part of a list behind the row with the id after.
func page[T any](list []T, id func(T) string, after string) (rows []T, more bool) {
	if i := slices.IndexFunc(list, func(row T) bool { return id(row) == after }); i >= 0 {
		list = list[i+1:]
	}
	return list[:min(pageSize, len(list))], len(list) > pageSize
}

func (m *memory) Movements(ctx context.Context, from, to time.Time, after string) (p payment.MovementPage, err error) {
	err = m.call(ctx, "movements", func() error {
		var list []payment.Movement
		for _, row := range slices.Backward(m.ledger) {
			if !row.At.Before(from) && row.At.Before(to) {
				list = append(list, row)
			}
		}
		p.Rows, p.More = page(list, func(row payment.Movement) string { return row.ID }, after)
		p.Now = m.now()
		return nil
	})
	return p, err
}

func (m *memory) Sessions(ctx context.Context, openOnly bool, since time.Time, after string) (p payment.SessionPage, err error) {
	err = m.call(ctx, "sessions", func() error {
		var list []payment.Session
		for _, s := range m.sessions {
			if closed := s.Paid || s.Expired; !s.CreatedAt.Before(since) && (!openOnly || !closed) {
				list = append(list, *s)
			}
		}
		sort.Slice(list, func(i, j int) bool { return list[i].ID > list[j].ID })
		p.Rows, p.More = page(list, func(row payment.Session) string { return row.ID }, after)
		p.Now = m.now()
		return nil
	})
	return p, err
}
