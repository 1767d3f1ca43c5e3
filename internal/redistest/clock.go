package redistest

import (
	"context"
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed testdata/clock.c
var clockSource []byte

// StartWithClock is Start for a server whose clock the test sets: so much ahead of this machine's, or behind, in whole
// seconds. A server may look at it only once a millisecond: set waits until it has. It needs a C compiler, as the race
// detector does.
func StartWithClock(t testing.TB, args ...string) (s *Server, set func(ahead time.Duration)) {
	t.Helper()
	dir := t.TempDir()
	source, library, file := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so"), filepath.Join(dir, "clock")
	if _, err := exec.LookPath("cc"); err != nil {
		missing(t, "cc", "a C compiler")
	}
	must(t, os.WriteFile(source, clockSource, 0o600))
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	set = func(ahead time.Duration) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
		must(t, err)
		_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(ahead.Microseconds())), 0)
		must(t, err)
		must(t, f.Close())
		if s != nil {
			s.until("its clock is set", func(rdb *redis.Client) bool {
				return time.Since(rdb.Time(context.Background()).Val().Add(-ahead)).Abs() < time.Minute
			})
		}
	}
	set(0)
	s = start(t, &Server{
		network: "tcp", args: append(aclArgs(), args...), env: []string{"LD_PRELOAD=" + library, "HEADGATE_TEST_CLOCK=" + file},
	})
	return s, set
}
