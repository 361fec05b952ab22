// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// starters are imports that start goroutines in the caller's name.
var starters = []string{"net/http/httptest", "testing/synctest", "os/exec", "golang.org/x/sync/errgroup"}

// Packages whose tests are left out under the race detector, by a file race_test.go, start no goroutine: neither they, nor
// their tests, nor what they import of this module. Two goroutines make a race.
func TestSequentialPackagesStartNoGoroutine(t *testing.T) {
	var packages []string
	for _, glob := range []string{"*/race_test.go", "*/*/race_test.go", "../test/*/race_test.go"} {
		found, err := filepath.Glob(glob)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			packages = append(packages, "./"+path.Join("internal", path.Dir(filepath.ToSlash(file))))
		}
	}
	if len(packages) == 0 {
		t.Fatal("no package has a race_test.go")
	}
	const ours = `{{if and .Module .Module.Main}}{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}} {{end}}{{end}}`
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"list", "-deps", "-test", "-f", ours}, packages...)...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := strings.Fields(string(out))
	if !slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, "_test.go") }) {
		t.Fatalf("no tests in %d files", len(files))
	}
	for _, file := range files {
		if !strings.HasSuffix(file, ".go") {
			continue // the main package of tests, in the build cache
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range startsGoroutines(f) {
			t.Errorf("%s: starts a goroutine, or may do so: a package that imports it must have no race_test.go", set.Position(n.Pos()))
		}
	}
}

// startsGoroutines are the places of a file that start goroutines: go, x.Go(), t.Parallel() and starters.
func startsGoroutines(f *ast.File) (found []ast.Node) {
	for _, i := range f.Imports {
		if slices.Contains(starters, strings.Trim(i.Path.Value, `"`)) {
			found = append(found, i)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = append(found, n)
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && (s.Sel.Name == "Go" || s.Sel.Name == "Parallel" || s.Sel.Name == "RunParallel" || s.Sel.Name == "AfterFunc") {
				found = append(found, n)
			}
		}
		return true
	})
	return found
}

func TestStartsGoroutines(t *testing.T) {
	f := func(want int, text string) {
		t.Helper()
		file, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+text, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(startsGoroutines(file)); got != want {
			t.Errorf("%d places, want %d:\n%s", got, want, text)
		}
	}
	f(0, `func f() { go_() }`)
	f(1, `func f() { go g() }`)
	f(1, `func f() { for { if x { go func() {}() } } }`)
	f(1, `func f(w *sync.WaitGroup) { w.Go(g) }`)
	f(1, `func TestX(t *testing.T) { t.Parallel() }`)
	f(1, `import "testing/synctest"`)
}
