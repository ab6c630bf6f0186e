package hook_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Imports run one way, cmd → hook → lock → proc, and each is paid for in front
// of every benchmark.
func TestImportsRunOneWay(t *testing.T) {
	const module = "github.com/org/hostlock-action/"
	order := []string{"proc", "lock", "hook", "cmd"}
	seen := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel("..", path)
		top, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
		layer := slices.Index(order, top)
		switch {
		case entry.IsDir() && rel != "." && layer < 0:
			return fs.SkipDir
		case entry.IsDir() || layer < 0 || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		seen++
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			if own, ok := strings.CutPrefix(name, module); ok {
				to, _, _ := strings.Cut(own, "/")
				if i := slices.Index(order, to); i < 0 || i >= layer {
					t.Errorf("%s imports %s", rel, name)
				}
			}
			if strings.HasPrefix(name, "github.com/sethvargo/") && rel != "hook/client_library.go" {
				t.Errorf("%s imports %s, whose own imports take their time to start: see hook/client.go", rel, name)
			}
			if name == "regexp" || name == "net" || strings.HasPrefix(name, "net/") || strings.HasSuffix(name, "/template") {
				t.Errorf("%s imports %s, which takes its time to start", rel, name)
			}
		}
		return nil
	})
	if err != nil || seen < 4*len(order) {
		t.Errorf("%d files: %v", seen, err)
	}
}
