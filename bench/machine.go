package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/headgate-go/headgate/internal/redistest"
)

// machine says what the numbers depend on.
func machine(rdb client) (string, error) {
	info, err := rdb.Info(context.Background(), "server").Result()
	if err != nil {
		return "", err
	}
	about := []string{
		runtime.Version(),
		runtime.GOOS + "/" + runtime.GOARCH,
		fmt.Sprintf("%d CPUs for this program", runtime.NumCPU()), // fewer than the machine has, if it is pinned
		"redis_version " + infoField(info, "redis_version"),
	}
	if server := os.Getenv(redistest.Binary); server != "" {
		about = append(about, "server started by "+server)
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, dep := range build.Deps {
			switch dep.Path {
			case "github.com/redis/go-redis/v9", "github.com/go-redis/redis_rate/v10", "golang.org/x/time":
				about = append(about, dep.Path+" "+dep.Version)
			}
		}
	}
	return strings.Join(about, "; "), nil
}

// infoField finds a field in the answer to INFO.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
