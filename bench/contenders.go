package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/asynq"
	"example.com/shop/bench/contender/dbos"
	"example.com/shop/bench/contender/gue"
	"example.com/shop/bench/contender/heap"
	"example.com/shop/bench/contender/keyspace"
	"example.com/shop/bench/contender/levels"
	"example.com/shop/bench/contender/neoq"
	"example.com/shop/bench/contender/notify"
	"example.com/shop/bench/contender/ours"
	"example.com/shop/bench/contender/polling"
	"example.com/shop/bench/contender/rabbitmq"
	"example.com/shop/bench/contender/redisson"
	"example.com/shop/bench/contender/river"
	"example.com/shop/bench/contender/sharded"
	"example.com/shop/bench/contender/spop"
	"example.com/shop/bench/contender/wheel"
	"example.com/shop/bench/contender/youzan"
	"example.com/shop/bench/contender/zset"
)

// all returns all contenders, in the order of the tables.
func all() []contender.Info {
	return slices.Concat(
		ours.Contenders,
		polling.Contenders,
		notify.Contenders,
		heap.Contenders,
		wheel.Contenders,
		zset.Contenders,
		spop.Contenders,
		keyspace.Contenders,
		redisson.Contenders,
		youzan.Contenders,
		sharded.Contenders,
		levels.Contenders,
		rabbitmq.Contenders,
		asynq.Contenders,
		river.Contenders,
		gue.Contenders,
		neoq.Contenders,
		dbos.Contenders,
	)
}

// find returns the contender with a name.
func find(name string) (contender.Info, error) {
	for _, c := range all() {
		if c.Name == name {
			return c, nil
		}
	}
	return contender.Info{}, fmt.Errorf("there is no contender %q; they are: %s", name, names(all()))
}

// matching returns the contenders whose names match.
func matching(only *regexp.Regexp) []contender.Info {
	return slices.DeleteFunc(all(), func(c contender.Info) bool { return !only.MatchString(c.Name) })
}

func names(contenders []contender.Info) string {
	var names []string
	for _, c := range contenders {
		names = append(names, c.Name)
	}
	return strings.Join(names, "; ")
}
