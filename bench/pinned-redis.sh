#!/bin/sh
# Runs redis-server on one core of its own; see README.md.
exec taskset -c "${REDIS_CPU:-1}" redis-server "$@"
