package redistest

import (
	"context"
	"os"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Restricted names the environment variable that has every server grant its clients no more than the documentation says
// that Headgate needs, on the keys that its value tells, "~hg:*" for instance. A client of Server.Client sends what a test
// does beside that, and Headgate does not, as an administrator.
const Restricted = "HEADGATE_TEST_ACL"

// The least that an ACL must allow, as docs/operations.md says it.
const (
	ACL        = "+evalsha +eval +hello +time +get +mget +getrange +strlen +set +setrange +del +pttl +pexpire"
	ACLLog     = "+zadd +zrange +zrangebyscore +zcount +zcard +zrem +zremrangebyrank +zremrangebyscore +unlink"
	ACLShared  = "+persist +scan"
	ACLTickets = "+hget +hkeys +hset +hsetnx +hdel +hincrby +zadd +zscore +zcount +zcard +zrange +zrevrange +zrangebyscore +zrevrangebyscore +zrem +pexpire"
	ACLCluster = "+cluster|slots +command +asking"
	ACLOther   = "+readonly +ping +select" // a cluster client that is ReadOnly, a Ring, another database than 0
)

// ACLAsynq is what asynq 0.26 needs for its keys, asynq:*, and its channel: clients, servers and inspectors together.
const ACLAsynq = "+multi +exec +ping +subscribe +publish +set +setnx +setex +get +del +exists +ttl +expire +expireat +incr +keys +info " +
	"+hset +hget +hmget +hdel +hgetall +hvals +lpush +rpush +rpoplpush +lrange +lrem +llen +sadd +srem +smembers +sismember " +
	"+zadd +zrem +zcard +zrange +zrevrange +zrangebyscore +zscore +zremrangebyrank +zremrangebyscore +memory|usage"

const adminName, adminPassword = "admin", "throw-away"

func restricted() bool { return os.Getenv(Restricted) != "" }

// aclArgs is the command line of a server whose default user is restricted, if it is.
func aclArgs() []string {
	if !restricted() {
		return nil
	}
	// Redis 7.0 loads a script's writes from its append-only file as the default user, an expiry as PEXPIREAT.
	rules := strings.Join([]string{"on nopass resetkeys resetchannels nocommands +pexpireat +unlink", os.Getenv(Restricted), ACL, ACLLog, ACLShared, ACLTickets, ACLCluster, ACLOther, ACLAsynq}, " ")
	return slices.Concat(
		[]string{"--user", adminName, "on", ">" + adminPassword, "~*", "&*", "+@all"},
		append([]string{"--user", "default"}, strings.Fields(rules)...),
		[]string{"--masteruser", adminName, "--masterauth", adminPassword},
	)
}

// adminOptions connect as one who may do everything.
func (s *Server) adminOptions() *redis.Options {
	o := s.Options()
	if slices.Contains(s.args, adminPassword) {
		o.Username, o.Password = adminName, adminPassword
	}
	return o
}

// Login is what a bare connection says first that is to do everything; it may be empty.
func (s *Server) Login() string {
	if !restricted() {
		return ""
	}
	return "AUTH " + adminName + " " + adminPassword
}

// beyondACL sends what the documented ACL does not name as an administrator.
type beyondACL struct{ admin *redis.Client }

// named tells whether the ACL has a rule for a command.
func (beyondACL) named(cmd redis.Cmder) bool {
	rules := strings.Fields(strings.Join([]string{ACL, ACLLog, ACLShared, ACLTickets, ACLOther, ACLAsynq}, " "))
	return slices.Contains(rules, "+"+cmd.Name())
}

// DialHook implements redis.Hook.
func (beyondACL) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (b beyondACL) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if b.named(cmd) {
			return next(ctx, cmd)
		}
		return b.admin.Process(ctx, cmd)
	}
}

// ProcessPipelineHook implements redis.Hook.
func (b beyondACL) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if !slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return !b.named(cmd) }) {
			return next(ctx, cmds)
		}
		pipe := b.admin.Pipeline()
		if cmds[0].Name() == "multi" {
			pipe, cmds = b.admin.TxPipeline(), cmds[1:len(cmds)-1]
		}
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd)
		}
		_, err := pipe.Exec(ctx)
		return err
	}
}
