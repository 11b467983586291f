package delay

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Connect returns a client for a Redis URL: redis://[user:password@]host:port[/db], or rediss:// for TLS. The URL of
// a cluster names its other nodes with addr: redis://host:port?addr=host:port&addr=host:port. The URL of Sentinels
// names them in the same way, and their master: redis://host:port/db?master_name=name&addr=host:port&addr=host:port.
// There the user and the password are the Sentinels', and the parameters username and password are the master's.
//
// Connect does not dial. If Redis is down, the first command returns an error. Before each connection the client reads
// the URL again by reread, if it is not nil, because the user and the password may have been changed since. While
// reread fails, the client uses the first ones.
func Connect(redisURL string, reread func() (string, error)) (redis.UniversalClient, error) {
	server, err := parseURL(redisURL)
	if err != nil {
		return nil, err
	}
	if reread != nil {
		server.CredentialsProviderContext = func(context.Context) (user, password string, err error) {
			fresh := server
			if text, err := reread(); err == nil {
				if again, err := parseURL(text); err == nil {
					fresh = again
				}
			}
			return fresh.Username, fresh.Password, nil
		}
	}
	return open(withLimits(server)), nil
}

// CheckURL returns the error of [Connect] with a URL.
func CheckURL(redisURL string) error {
	_, err := parseURL(redisURL)
	return err
}

// urlParameters are the parameters of a Redis URL that parseURL uses.
var urlParameters = []string{"addr", "db", "master_name", "password", "skip_verify", "username"}

// parseURL returns the servers that a URL names. The error does not contain the URL, which may contain a password.
func parseURL(redisURL string) (*redis.UniversalOptions, error) {
	// The parser of Sentinels' URLs reads the other URLs too, and returns their servers as if they were Sentinels.
	o, err := redis.ParseFailoverURL(redisURL)
	sentinels := false
	if u, err := url.Parse(redisURL); err == nil {
		sentinels = u.Query().Has("master_name")
		for name := range u.Query() {
			if !slices.Contains(urlParameters, name) {
				return nil, fmt.Errorf("not a Redis URL: the service does not use its parameter %.50q; it knows %s", name,
					strings.Join(urlParameters, ", "))
			}
		}
	}
	switch {
	case err != nil, sentinels && o.MasterName == "", !sentinels && (o.Username != "" || o.Password != ""):
		return nil, errors.New("not a Redis URL: want redis://[user:password@]host:port[/db], or rediss:// for TLS; " +
			"append ?addr=host:port&addr=host:port for a cluster, " +
			"?master_name=name&addr=host:port&addr=host:port for Sentinels")
	case o.DB < 0: // the client would silently use database 0
		return nil, fmt.Errorf("not a Redis URL: its database is %d, want 0 or more", o.DB)
	case sentinels:
		return &redis.UniversalOptions{
			Addrs: o.SentinelAddrs, SentinelUsername: o.SentinelUsername, SentinelPassword: o.SentinelPassword,
			MasterName: o.MasterName, DB: o.DB, Username: o.Username, Password: o.Password, TLSConfig: o.TLSConfig,
		}, nil
	default:
		return &redis.UniversalOptions{
			Addrs: o.SentinelAddrs, IsClusterMode: len(o.SentinelAddrs) > 1, DB: o.DB,
			Username: o.SentinelUsername, Password: o.SentinelPassword, TLSConfig: o.TLSConfig,
		}, nil
	}
}

// ChannelOf returns the name of a channel for the clients of one database. Redis has the same channels for all of its
// databases, and deployments that share a server have different databases.
func ChannelOf(rdb redis.UniversalClient, name string) string {
	if client, ok := rdb.(*redis.Client); ok && client.Options().DB > 0 {
		return name + ":" + strconv.Itoa(client.Options().DB)
	}
	return name
}

func open(o *redis.UniversalOptions) redis.UniversalClient {
	if o.IsClusterMode {
		cluster := o.Cluster()
		// After this time a command makes the client read the nodes again, because the client does not learn of a
		// promoted replica while it sends commands to a master that has died.
		cluster.ClusterStateReloadInterval = time.Second
		return redis.NewClusterClient(cluster)
	}
	client := redis.NewUniversalClient(o)
	if o.MasterName != "" {
		client.AddHook(masterHook{})
	}
	return client
}

func withLimits(o *redis.UniversalOptions) *redis.UniversalOptions {
	// The client does not retry, because only the caller knows whether a command may be repeated: a claim whose reply
	// was lost must not be repeated. The client of a cluster does repeat commands: see Queue.Claim.
	o.MaxRetries = -1
	o.DialerRetries = 1
	// Apply the deadline of a context to the socket too. Otherwise a Redis that hangs would block a caller for
	// ReadTimeout, even if the caller's budget is shorter.
	o.ContextTimeoutEnabled = true
	o.DialTimeout = time.Second
	o.ReadTimeout = 2 * time.Second
	o.WriteTimeout = 2 * time.Second
	if o.MasterName != "" {
		// A dial also asks a Sentinel for the master. If the dial ended before ReadTimeout, the client would not turn
		// from a Sentinel that hangs to another one.
		o.DialTimeout = 3 * time.Second
	}
	// Do not send CLIENT SETINFO and CLIENT MAINT_NOTIFICATIONS on each new connection: older versions of Redis, for
	// instance 7.0, answer them with errors.
	o.DisableIdentity = true
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return o
}
