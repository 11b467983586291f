package main

import _ "embed"

// picks says for each contender when to pick it, in a few words.
var picks = map[string]string{
	"ours":                              "no order may be lost, and a fault may delay some by seconds",
	"poll 1s, one by one":               "a second late is fine, and bursts are small",
	"poll 1s, set-based":                "a second late is fine, and no order can fail",
	"poll 60s, one by one":              "a minute late is fine, and bursts are small",
	"poll 60s, set-based":               "a minute late is fine, and no order can fail",
	"LISTEN/NOTIFY + timer":             "you have only PostgreSQL, and no order can fail",
	"in-process heap":                   "one process does all, and its memory suffices",
	"hashed timing wheel":               "as the heap, and a tick late is fine",
	"hierarchical timing wheel":         "as the heap, with many timers that are cancelled",
	"ZSET poll, ZREM unchecked":         "never: consumers repeat each other's work",
	"ZSET poll, ZREM claim":             "a lost order is harmless",
	"ZSET poll, batches":                "a lost batch is harmless",
	"ZSET → Set, SPOP":                  "a lost Redis is harmless, and bursts are small",
	"keyspace notifications":            "never: nobody hears what expires in a restart",
	"Redisson's delayed queue":          "you have Redisson, and few pending orders",
	"Redisson's delayed queue, batches": "as above, with bursts",
	"Youzan's buckets":                  "you have it already",
	"sharded ZSETs → Stream":            "a tick late is fine, and you add a sweep",
	"fixed delay levels":                "you have RocketMQ 4, and your delay is a level",
	"RabbitMQ, per-message TTL":         "you have RabbitMQ, and one delay for all",
	"RabbitMQ, per-queue TTL":           "you have RabbitMQ, and few delays",
	"asynq, as shipped":                 "you have asynq, and minutes late after a crash are fine",
	"asynq, tuned":                      "as above, and a second late is fine otherwise",
	"River, as shipped":                 "you have River, and an hour late after a crash is fine",
	"River, tuned":                      "you want jobs of all kinds on PostgreSQL alone",
	"DBOS, as shipped":                  "the timeout is a step of a longer workflow",
	"DBOS, tuned":                       "as above, with many pending orders",
	"gue, as shipped":                   "seconds late are fine, on PostgreSQL alone",
	"gue, tuned":                        "you want a small queue on PostgreSQL alone",
	"neoq, as shipped":                  "a lost order is harmless",
	"neoq, tuned":                       "a lost order is harmless",
}

// studies are the sections of the report that no run writes.
//
//go:embed studies.md
var studies string
