package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// properties.txt says which tests pin which property and which defect that users of
// this tool's ancestors met. A line without a test, or with one that is not there, is a
// promise that nothing holds.
func TestPropertiesArePinned(t *testing.T) {
	text, err := os.ReadFile("../../testdata/properties.txt")
	if err != nil {
		t.Fatal(err)
	}
	tests := allTests(t)
	pinned := make(map[string]int)
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, ok := strings.Cut(line, " | ")
		if !ok {
			t.Errorf("properties.txt:%d: expected NUMBER WORDS | TESTS", i+1)
			continue
		}
		number, _, _ := strings.Cut(name, " ")
		for _, test := range strings.Fields(rest) {
			pinned[number]++
			if !slices.Contains(tests, test) {
				t.Errorf("properties.txt:%d: %s: there is no test %s", i+1, number, test)
			}
		}
	}
	const properties, defects = 10, 56
	for i := range properties {
		if n := fmt.Sprint("R", i+1); pinned[n] == 0 {
			t.Errorf("no test pins %s", n)
		}
	}
	for i := range defects {
		if n := fmt.Sprint(i + 1); pinned[n] == 0 {
			t.Errorf("no test pins defect %s", n)
		}
	}
	if len(pinned) != properties+defects {
		t.Errorf("%d lines, want %d", len(pinned), properties+defects)
	}
}

// allTests are the tests of the module, as PACKAGE.TestName, and its scripts, as
// script/NAME.
func allTests(t *testing.T) (names []string) {
	t.Helper()
	for _, pkg := range []string{"proc", "lock", "hook", "cmd/hostlock"} {
		files, err := filepath.Glob("../../" + pkg + "/*_test.go")
		if err != nil || len(files) == 0 {
			t.Fatal(pkg, err)
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+)\(`).FindAllStringSubmatch(string(text), -1) {
				names = append(names, filepath.Base(pkg)+"."+m[1])
			}
		}
	}
	scripts, err := filepath.Glob("../../testdata/script/*.txt")
	if err != nil || len(scripts) == 0 {
		t.Fatal(err)
	}
	for _, s := range scripts {
		names = append(names, "script/"+strings.TrimSuffix(filepath.Base(s), ".txt"))
	}
	return names
}

// A pid can go to another process between a look and a kill(2): a signal by number is
// sent nowhere (R7; defect 40). The one kill(2) that is allowed sends nothing: proc asks
// by it whether a process is there, where no pidfd is to be had.
func TestSignalsOnlyThroughPidfds(t *testing.T) {
	sends := regexp.MustCompile(`^(Kill|Killpg|Tgkill|Tkill|PidfdSendSignal|SYS_KILL|SYS_TGKILL|SYS_TKILL|FindProcess|RtSigqueueinfo)$`)
	allowed := []string{"proc/look_linux.go: unix.Kill(pid, 0)", "proc/sys_linux.go: unix.PidfdSendSignal(pidfd, sig, nil, 0)"}
	replaced := overlay(t)
	for _, pkg := range []string{"proc", "lock", "hook", "cmd/hostlock"} {
		files, err := filepath.Glob("../../" + pkg + "/*.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			name := pkg + "/" + filepath.Base(f)
			path, err := filepath.Abs(f)
			if err != nil {
				t.Fatal(err)
			}
			if r := replaced[path]; r != "" {
				path = r
			}
			src, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			fset := token.NewFileSet()
			tree, err := parser.ParseFile(fset, path, src, 0)
			if err != nil {
				t.Fatal(err)
			}
			text := func(n ast.Node) string {
				return string(src[fset.Position(n.Pos()).Offset:fset.Position(n.End()).Offset])
			}
			harmless := make(map[ast.Node]bool)
			ast.Inspect(tree, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if slices.Contains(allowed, name+": "+text(n)) {
						harmless[n.Fun] = true
					}
					// os.Process has such a method; the others are a type's name, and
					// that of a wait status, which takes nothing.
					if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Signal" && len(n.Args) > 0 && text(s.X) != "unix" && text(s.X) != "syscall" {
						t.Errorf("%s:%d: %s: signals go through proc.SignalFD", name, fset.Position(n.Pos()).Line, text(n))
					}
				case *ast.SelectorExpr:
					if sends.MatchString(n.Sel.Name) && !harmless[n] {
						t.Errorf("%s:%d: %s: signals go through proc.SignalFD", name, fset.Position(n.Pos()).Line, text(n))
					}
				}
				return true
			})
		}
	}
}

// overlay is what the go command that built this test took other files for.
func overlay(t *testing.T) map[string]string {
	t.Helper()
	for _, flag := range strings.Fields(os.Getenv("GOFLAGS")) {
		path, ok := strings.CutPrefix(flag, "-overlay=")
		if !ok {
			continue
		}
		b, err := os.ReadFile(path)
		var o struct{ Replace map[string]string }
		if err == nil {
			err = json.Unmarshal(b, &o)
		}
		if err != nil {
			t.Fatal(err)
		}
		return o.Replace
	}
	return nil
}
