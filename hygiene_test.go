package headgate_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Whoever traces nothing and runs no jobs pays for neither.
func TestTheRootImportsNeitherTracingNorJobs(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dependency := range strings.Lines(string(out)) {
		if strings.Contains(dependency, "opentelemetry") || strings.Contains(dependency, "asynq") || strings.Contains(dependency, "miniredis") {
			t.Errorf("the root depends on %s", dependency)
		}
	}
}

// The algorithms do no I/O and read no clock.
func TestTheAlgorithmsImportTheStandardLibraryAlone(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./algos").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dependency := range strings.Lines(string(out)) {
		first, _, _ := strings.Cut(dependency, "/")
		if strings.Contains(first, ".") && !strings.HasPrefix(dependency, "github.com/headgate-go/headgate/algos") {
			t.Errorf("algos depends on %s", dependency)
		}
	}
}
