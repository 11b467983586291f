package delay

import (
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Connect returns a client for a Redis URL: redis://[user:password@]host:port[/db], rediss:// for TLS;
// for a cluster name its other nodes with addr: redis://host:port?addr=host:port&addr=host:port.
// It does not dial: a Redis that is down is an error of the first command, not of the start.
func Connect(redisURL string) (redis.UniversalClient, error) {
	server, err := parseURL(redisURL)
	if err != nil {
		// What the parsers say may repeat the URL, and with it a password.
		return nil, errors.New("not a Redis URL: want redis://[user:password@]host:port[/db], or rediss:// for TLS")
	}
	if server.DB < 0 { // the client would use database 0 without a word
		return nil, fmt.Errorf("not a Redis URL: its database is %d, want 0 or more", server.DB)
	}
	return redis.NewUniversalClient(withLimits(server)), nil
}

func parseURL(redisURL string) (*redis.UniversalOptions, error) {
	u, err := url.Parse(redisURL)
	if err != nil {
		return nil, err
	}
	if u.Query().Has("addr") {
		o, err := redis.ParseClusterURL(redisURL)
		if err != nil {
			return nil, err
		}
		return &redis.UniversalOptions{
			Addrs: o.Addrs, IsClusterMode: true,
			Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
		}, nil
	}
	o, err := redis.ParseURL(redisURL)
	if err != nil {
		return nil, err
	}
	if o.Network != "tcp" {
		return nil, errors.New("a socket's path, which UniversalOptions cannot hold")
	}
	return &redis.UniversalOptions{
		Addrs: []string{o.Addr}, DB: o.DB,
		Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
	}, nil
}

func withLimits(o *redis.UniversalOptions) *redis.UniversalOptions {
	// Retries are decided where it is known whether a command may be repeated: a claim whose answer was
	// lost must not be.
	o.MaxRetries = -1
	o.DialerRetries = 1
	// Deadlines of contexts hold for the socket too; without this a hung server holds a request for
	// ReadTimeout, whatever its budget.
	o.ContextTimeoutEnabled = true
	o.DialTimeout = time.Second
	o.ReadTimeout = 2 * time.Second
	o.WriteTimeout = 2 * time.Second
	// Servers before Redis 8 answer both handshakes with errors, on each connection.
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o
}
