package headgate_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate-go/headgate"
)

var (
	filled = regexp.MustCompile(`%[-+#0-9.]*[a-zA-Z]`)
	inCode = regexp.MustCompile("^`(.*)`$")
)

// publicErrors finds what errors can say in the packages that users import: the texts, with … where something is filled
// in, and the names that errors.Is and errors.AsType take.
func publicErrors(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, dir := range []string{".", "algos", "worker", "trace"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			tree, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(tree, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if text := errorText(n); text != "" {
						found[text] = true
					}
				case *ast.ValueSpec:
					for _, name := range n.Names {
						if strings.HasPrefix(name.Name, "Err") {
							found[name.Name] = true
						}
					}
				case *ast.TypeSpec:
					if n.Name.IsExported() && strings.HasSuffix(n.Name.Name, "Error") {
						found["*"+n.Name.Name] = true
					}
				}
				return true
			})
		}
	}
	for _, code := range headgate.ReplyCodes() {
		found[code] = true
	}
	return found
}

// errorText is what a call that makes an error has it say; empty if it makes none, or only joins others.
func errorText(call *ast.CallExpr) string {
	name := ""
	switch f := call.Fun.(type) {
	case *ast.Ident:
		name = f.Name
	case *ast.SelectorExpr:
		if of, ok := f.X.(*ast.Ident); ok {
			name = of.Name + "." + f.Sel.Name
		}
	}
	if name != "errors.New" && name != "fmt.Errorf" && name != "invalidf" || len(call.Args) == 0 {
		return ""
	}
	literal, ok := call.Args[0].(*ast.BasicLit)
	if !ok {
		return ""
	}
	text, err := strconv.Unquote(literal.Value)
	if err != nil {
		return ""
	}
	text = strings.TrimPrefix(text, "%w: ")
	text = filled.ReplaceAllString(text, "…")
	if strings.Trim(text, "…:; ") == "" {
		return ""
	}
	return text
}

// Every error that a user can meet is listed with its cause and what to do, and no other is.
func TestEveryErrorIsListed(t *testing.T) {
	const page = "docs/errors.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		if len(cells) != 3 || strings.TrimSpace(cells[1]) == "" || strings.TrimSpace(cells[2]) == "" {
			t.Errorf("%s: not an error, its cause and its remedy: %s", page, line)
			continue
		}
		code := inCode.FindStringSubmatch(strings.TrimSpace(cells[0]))
		if code == nil || listed[code[1]] {
			t.Errorf("%s: %s is not one error, or is there twice", page, cells[0])
			continue
		}
		listed[code[1]] = true
	}
	found := publicErrors(t)
	if len(found) < 80 {
		t.Fatalf("only %d errors were found", len(found))
	}
	for text := range found {
		if !listed[text] {
			t.Errorf("%s does not list `%s`", page, text)
		}
	}
	for text := range listed {
		if !found[text] {
			t.Errorf("%s lists `%s`, which nothing says", page, text)
		}
	}
}

// What Redis replies and no row knows needs mending, as any script's error does.
func TestAnUnknownReplyIsNoOutage(t *testing.T) {
	rdb, f := faulty(t)
	f.set(replied("NEWERROR that nobody has heard of"))
	l := newLimiter(t, headgate.Redis(rdb), anyBucket, headgate.WithFallback(headgate.FailOpen()))
	defer closing(t, l)
	if _, err := l.Allow(t.Context()); err == nil {
		t.Error("it was masked")
	}
}
