package worker_test

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/headgate-go/headgate/worker"
)

// A cutting is a connection of a process that dies in mid-sentence: of the first write that holds more than one command and
// a ZADD among them, one command gets through.
type cutting struct{ net.Conn }

func (c cutting) Write(b []byte) (int, error) {
	if first := bytes.Index(b, []byte("\r\n*")); first >= 0 && bytes.Contains(b, []byte("zadd")) {
		_, _ = c.Conn.Write(b[:first+2])
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// Wherever a process dies that takes a ticket, what it has written expires.
func TestATicketTakenByOneWhoDiesExpires(t *testing.T) {
	ctx := context.Background()
	server := startRedis(t)
	dying := server.Client(func(o *redis.Options) {
		o.MaxRetries = -1
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return cutting{conn}, err
		}
	})
	good := newRigOn(t, server, server.Client())
	l := good.limiter(onePerDay())
	use(t, l, 1)
	mortal := newRigOn(t, server, dying)
	throttle := mortal.throttle(l)
	s := good.serve(throttle, nil)
	worker.StopPromoter(throttle) // with the process
	good.enqueue("a")
	eventually(t, "it has a ticket", func() bool { return server.Admin().Exists(ctx, "hg:{test}:tickets").Val() == 1 })
	eventually(t, "the line is known", func() bool { return server.Admin().Exists(ctx, "hg:{test}:waiting").Val() == 1 })
	s.stop()
	admin := server.Admin()
	for keys := admin.Scan(ctx, 0, "hg:*", 1000).Iterator(); keys.Next(ctx); {
		if admin.PTTL(ctx, keys.Val()).Val() == -1 && !strings.HasSuffix(keys.Val(), ":rate") {
			t.Errorf("%q does not expire", keys.Val())
		}
	}
}
