package order_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/order"
)

func TestOpenNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := listener.Addr().String()
	listener.Close()

	for name, test := range map[string]struct{ url, names string }{
		"nobody listens": {"postgres://shop:topsecret@" + nobody + "/shop", nobody},
		"no URL":         {"postgres://shop:topsecret@" + nobody + ":x/shop", "database URL"},
	} {
		t.Run(name, func(t *testing.T) {
			started := time.Now()
			_, err := order.Open(t.Context(), test.url, 1)
			if err == nil || !strings.Contains(err.Error(), test.names) || strings.Contains(err.Error(), "topsecret") {
				t.Errorf("%v; want %s named, and no password", err, test.names)
			}
			if took := time.Since(started); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestSession checks that what the statements rely on holds whatever the database is set to.
func TestSession(t *testing.T) {
	s := newShop(t)
	name := query[string](t, s, `SELECT current_database()`)
	for _, setting := range []string{
		"synchronous_commit = off", "idle_session_timeout = 500", "default_transaction_isolation = 'serializable'", "timezone = 'Asia/Tokyo'",
	} {
		s.exec(t, `ALTER DATABASE `+name+` SET `+setting)
	}
	gdb, err := order.Open(t.Context(), s.url, 1)
	if err != nil {
		t.Fatal(err)
	}
	if s.db, err = gdb.DB(); err != nil {
		t.Fatal(err)
	}
	defer s.db.Close()
	for setting, want := range map[string]string{
		"synchronous_commit": "on", "idle_session_timeout": "0",
		"transaction_isolation": "read committed", "statement_timeout": "5s", "lock_timeout": "3s", "TimeZone": "UTC",
		"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
	} {
		if got := query[string](t, s, `SELECT current_setting($1)`, setting); got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}
	if zone := query[time.Time](t, s, `SELECT now()`).Location(); zone != time.UTC {
		t.Errorf("times are read in %v", zone)
	}
}
