package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
)

// pinned has this program and the server each on a core of its own while it measures: where a scheduler moves two processes
// about, that makes more difference than the limiter. It reports whether there was a way to do so.
func pinned(rdb client, measure func() error) (done bool, err error) {
	info, err := rdb.Info(context.Background(), "server").Result()
	if err != nil {
		return false, err
	}
	server, err := strconv.Atoi(infoField(info, "process_id"))
	if err != nil {
		return false, fmt.Errorf("the server's process: %w", err)
	}
	mine, err := cores(os.Getpid())
	if err != nil || len(strings.FieldsFunc(mine, func(r rune) bool { return r == ',' || r == '-' })) < 2 {
		return false, measure() // no taskset, or one core
	}
	theirs, err := cores(server)
	if err != nil {
		return false, measure()
	}
	first, last := mine[:strings.IndexAny(mine, ",-")], mine[strings.LastIndexAny(mine, ",-")+1:]
	defer func() {
		// As it was.
		for process, list := range map[int]string{os.Getpid(): mine, server: theirs} {
			if _, failed := taskset("-a", "-c", "-p", list, strconv.Itoa(process)); err == nil {
				err = failed
			}
		}
		runtime.SetDefaultGOMAXPROCS()
	}()
	for process, core := range map[int]string{os.Getpid(): first, server: last} {
		if _, err := taskset("-a", "-c", "-p", core, strconv.Itoa(process)); err != nil {
			return false, err
		}
	}
	runtime.GOMAXPROCS(1)
	return true, measure()
}

// cores is the list of those that a process may run on.
func cores(process int) (string, error) {
	out, err := taskset("-c", "-p", strconv.Itoa(process))
	if err != nil {
		return "", err
	}
	_, list, _ := strings.Cut(out, ": ")
	return strings.TrimSpace(list), nil
}

func taskset(args ...string) (string, error) {
	out, err := exec.Command("taskset", args...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("taskset: %w: %s", err, out)
	}
	return string(out), err
}
