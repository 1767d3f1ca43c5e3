# make test   everything, with the race detector and real servers
# make lint   gofmt, go vet, golangci-lint (staticcheck among it)
# make fuzz   the properties for longer, and random scripts: make fuzz CHECKS=100000 FUZZTIME=1h
# make test-acl  the same under the least ACL that is documented, on every server
# make matrix  make test on other servers: make matrix SERVERS="/opt/valkey/bin/valkey-server /opt/redis8/bin/redis-server"
# make soak   mixed traffic and jobs with random faults, then failovers and the like: make soak SOAK=10m takes twice that
# make bench  Headgate beside its peers; ten minutes. It writes docs/benchmarks.md: make bench ROUNDS=2 OUT=/tmp to try
# make bench-jobs  limited asynq tasks beside asynq's usual recipe; ten minutes

CHECKS ?= 20000
FUZZTIME ?= 5m
SOAK ?= 10m
SERVERS ?= $(HEADGATE_REDIS_SERVERS)
ROUNDS ?= 10
OUT ?= docs

.PHONY: test test-acl matrix soak lint fuzz bench bench-jobs redis

test: redis
	go vet ./...
	HEADGATE_REQUIRE_REDIS=1 go test -race ./...
	cd examples && HEADGATE_REQUIRE_REDIS=1 go test -race ./...
	cd bench && go test ./...

test-acl: redis
	HEADGATE_TEST_ACL='~hg:* ~mine:* ~other:* ~asynq:* &asynq:*' HEADGATE_REQUIRE_REDIS=1 go test . ./worker ./trace
	HEADGATE_TEST_ACL='~*' HEADGATE_REQUIRE_REDIS=1 go test ./internal/driver

matrix:
	@for server in $(SERVERS); do \
		echo "with $$server: $$($$server --version)" && \
		HEADGATE_REDIS_SERVER=$$server HEADGATE_REQUIRE_REDIS=1 go test ./... && \
		(cd examples && HEADGATE_REDIS_SERVER=$$server HEADGATE_REQUIRE_REDIS=1 go test ./...) || exit 1; \
	done

# What else there is of faults does more while HEADGATE_SOAK is set.
soak: redis
	HEADGATE_SOAK=$(SOAK) HEADGATE_REQUIRE_REDIS=1 go test -race -count=1 -timeout=0 -p 1 -v \
		-run '^Test(Soak|AServer|AFailover|ACluster|Slots|WhatIsLeft|RandomKeys|TasksWhen)' . ./worker

lint:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$unformatted" || { echo "not gofmt'd: $$unformatted"; exit 1; }
	go tool -modfile=tools/go.mod golangci-lint run ./...
	cd examples && go tool -modfile=../tools/go.mod golangci-lint run ./...
	cd bench && go vet ./...

fuzz: redis
	HEADGATE_REQUIRE_REDIS=1 go test ./internal/driver -count=1 -timeout=0 -rapid.checks=$(CHECKS)
	HEADGATE_REQUIRE_REDIS=1 go test ./internal/driver -run '^$$' -fuzz FuzzTwins -fuzztime $(FUZZTIME)

bench: redis
	cd bench && go run . -rounds $(ROUNDS) -out $(abspath $(OUT))

bench-jobs: redis
	cd bench && go run ./jobs

# The tests start their own servers; this only sees to it that there is a program to start.
redis:
	@command -v redis-server >/dev/null || { \
		command -v apt-get >/dev/null || { \
			echo "redis-server is missing. Install Redis 6 or later (brew install redis, dnf install redis, …) and try again."; exit 1; }; \
		if [ "$$(id -u)" = 0 ]; then sudo=; else sudo=sudo; fi; \
		$$sudo apt-get update -qq && \
		$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server; }
