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

// machine says what the numbers depend on, and of which versions they are.
func machine(rdb client) ([]string, error) {
	info, err := rdb.Info(context.Background(), "server").Result()
	if err != nil {
		return nil, err
	}
	cpus := fmt.Sprintf("%d CPUs", runtime.NumCPU())
	if model := fileField("/proc/cpuinfo", "model name"); model != "" {
		cpus += ", " + model
	}
	about := []string{
		cpus,
		runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version(),
		"redis-server " + infoField(info, "redis_version") + ", on the loopback interface, without persistence",
	}
	if os.Getenv(redistest.Binary) != "" {
		about = append(about, "the server is one that "+redistest.Binary+" names")
	}
	build, _ := debug.ReadBuildInfo()
	for _, dep := range build.Deps {
		switch dep.Path {
		case "github.com/redis/go-redis/v9", "github.com/go-redis/redis_rate/v10", "github.com/throttled/throttled/v2",
			"github.com/zeromicro/go-zero", "github.com/ulule/limiter/v3", "golang.org/x/time", "go.uber.org/ratelimit",
			"github.com/failsafe-go/failsafe-go", "go.opentelemetry.io/otel/sdk":
			about = append(about, dep.Path+" "+dep.Version)
		}
	}
	return about, nil
}

// loadAverage is how busy the machine is: over a minute, if it tells.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// fileField finds a field in a file of such lines; empty if there is none.
func fileField(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if field, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(field) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
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
