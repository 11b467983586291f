package service

import "testing"

// BenchmarkPaymentCost measures what an order costs that is paid at a payment provider, from the request that opens its
// checkout to the booking. It is the row "paid at a provider" of the report of BenchmarkCapacity, alone.
func BenchmarkPaymentCost(b *testing.B) {
	for _, rate := range []int{providerRate, busyProviderRate} {
		c := costAtProvider(b, rate).each()
		b.Logf("an order paid at a provider, %d a second: service %v, PostgreSQL %v, Redis %v, WAL %.0f B, %.0f B to and from Redis",
			rate, c.used.Service, c.used.Postgres, c.used.Redis, c.wal, c.redis)
	}
}
