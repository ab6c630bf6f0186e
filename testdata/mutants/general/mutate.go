package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A mutant is one change of one place.
type mutant struct {
	id         int
	file       *file
	start, end token.Pos
	what       string
	// before and after go around the place; %d in before is the id. They leave its
	// text as it is, so that mutants nest.
	before, after string
	off           bool // it does not compile
}

func (m *mutant) String() string {
	p := m.file.fset.Position(m.start)
	return fmt.Sprintf("%s:%d:%d: %s: %s", filepath.Base(m.file.path), p.Line, p.Column, m.what, strings.TrimSpace(m.file.line(p.Line)))
}

// key names a mutant without its line number, which changes with every edit above.
func (m *mutant) key() string {
	p := m.file.fset.Position(m.start)
	return fmt.Sprintf("%s: %s: %s", filepath.Base(m.file.path), m.what, strings.TrimSpace(m.file.line(p.Line)))
}

type file struct {
	path    string
	pkg     string
	src     []byte
	fset    *token.FileSet
	mutants []*mutant
}

func (f *file) line(n int) string { return strings.Split(string(f.src), "\n")[n-1] }

func (f *file) offset(p token.Pos) int { return f.fset.Position(p).Offset }

func (f *file) text(n ast.Node) string { return string(f.src[f.offset(n.Pos()):f.offset(n.End())]) }

func parse(path string) (*file, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f := &file{path: path, src: src, fset: token.NewFileSet()}
	tree, err := parser.ParseFile(f.fset, path, src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f.pkg = tree.Name.Name
	for _, d := range tree.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			f.walk(fn.Body)
		}
	}
	return f, nil
}

func (f *file) add(n ast.Node, what, before, after string) {
	f.mutants = append(f.mutants, &mutant{file: f, start: n.Pos(), end: n.End(), what: what, before: before, after: after})
}

// oneLine: text that is repeated must not bring line breaks, which would move all
// that follows.
func oneLine(s string) bool { return !strings.ContainsAny(s, "\n") && !strings.Contains(s, "//") }

func (f *file) walk(body ast.Node) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GenDecl:
			return n.Tok != token.CONST
		case *ast.IfStmt:
			f.condition(n.Cond)
		case *ast.ForStmt:
			if n.Cond != nil {
				f.condition(n.Cond)
			}
		case *ast.SwitchStmt:
			if n.Tag == nil {
				for _, c := range n.Body.List {
					for _, e := range c.(*ast.CaseClause).List {
						f.condition(e)
					}
				}
			}
		case *ast.BinaryExpr:
			f.binary(n)
		case *ast.Ident:
			if n.Name == "true" || n.Name == "false" {
				f.add(n, "not "+n.Name, "(mutantOf(%d) != (", "))")
			}
		case *ast.BlockStmt:
			f.statements(n.List)
		case *ast.CaseClause:
			f.statements(n.Body)
		case *ast.ArrayType:
			return false // [4]byte takes a constant
		case *ast.CallExpr:
			// The size of a buffer is nobody's business.
			if fn, ok := n.Fun.(*ast.Ident); ok && fn.Name == "make" {
				return false
			}
		}
		return true
	})
}

// condition negates what is no comparison; those have their own.
func (f *file) condition(e ast.Expr) {
	if b, ok := e.(*ast.BinaryExpr); ok && operators[b.Op] != nil {
		return
	}
	f.add(e, "negated", "(mutantOf(%d) != (", "))")
}

var operators = map[token.Token][]string{
	token.EQL: {"!="}, token.NEQ: {"=="},
	token.LSS: {"<=", ">="}, token.LEQ: {"<", ">"}, token.GTR: {">=", "<="}, token.GEQ: {">", "<"},
	token.LAND: {}, token.LOR: {},
	token.ADD: {"-"}, token.SUB: {"+"}, token.MUL: {"+"}, token.QUO: {"*"}, token.REM: {"*"},
}

func (f *file) binary(b *ast.BinaryExpr) {
	x, y := f.text(b.X), f.text(b.Y)
	switch b.Op {
	case token.LAND:
		f.add(b.X, "operand dropped", "(mutantOf(%d) || (", "))")
		f.add(b.Y, "operand dropped", "(mutantOf(%d) || (", "))")
	case token.LOR:
		f.add(b.X, "operand dropped", "(!mutantOf(%d) && (", "))")
		f.add(b.Y, "operand dropped", "(!mutantOf(%d) && (", "))")
	case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
		if !oneLine(x) || !oneLine(y) {
			return
		}
		changed := func(what, text string) {
			f.add(b, what, "(func() bool { if mutantOf(%d) { return "+text+" }; return ", " }())")
		}
		for _, op := range operators[b.Op] {
			changed(b.Op.String()+" becomes "+op, x+" "+op+" "+y)
		}
		if b.Op == token.EQL || b.Op == token.NEQ { // of the others it moves the bound, as above
			f.numbers(b, x, y, changed)
		}
	case token.ADD, token.SUB, token.MUL, token.QUO, token.REM:
		// Both are worked out, so neither may do anything.
		if !oneLine(x) || !oneLine(y) || !pure(b.X) || !pure(b.Y) {
			return
		}
		changed := func(what, text string) { f.add(b, what, "mutantValue(%d, ", ", "+text+")") }
		for _, op := range operators[b.Op] {
			changed(b.Op.String()+" becomes "+op, x+" "+op+" "+y)
		}
		f.numbers(b, x, y, changed)
	}
}

// numbers changes a number that stands alone on one side. Others are mostly sizes of
// buffers, for which it matters little.
func (f *file) numbers(b *ast.BinaryExpr, x, y string, changed func(what, text string)) {
	if v, ok := number(b.X); ok {
		changed("number + 1", fmt.Sprint(v+1)+" "+b.Op.String()+" "+y)
	}
	if v, ok := number(b.Y); ok {
		changed("number + 1", x+" "+b.Op.String()+" "+fmt.Sprint(v+1))
	}
}

func number(e ast.Expr) (int, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.INT {
		return 0, false
	}
	v, err := strconv.Atoi(l.Value)
	return v, err == nil
}

// pure: working it out twice changes nothing.
func pure(e ast.Expr) bool {
	ok := true
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			name := ""
			switch fn := n.Fun.(type) {
			case *ast.Ident:
				name = fn.Name
			case *ast.SelectorExpr:
				name = fn.Sel.Name
			}
			if !slices.Contains([]string{"len", "min", "max", "int", "int64", "uint64", "float64", "string", "Duration", "Seconds", "TTL", "now", "since", "age"}, name) {
				ok = false
			}
		case *ast.FuncLit, *ast.UnaryExpr:
			if u, is := n.(*ast.UnaryExpr); !is || u.Op == token.ARROW {
				ok = false
			}
		}
		return ok
	})
	return ok
}

// statements takes out what is done for its effect.
func (f *file) statements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt:
			if c, ok := s.X.(*ast.CallExpr); ok {
				if fn, ok := c.Fun.(*ast.Ident); ok && fn.Name == "panic" {
					continue
				}
			}
			f.add(s, "left out", "if !mutantOf(%d) { ", " }")
		case *ast.AssignStmt:
			if s.Tok != token.DEFINE {
				f.add(s, "left out", "if !mutantOf(%d) { ", " }")
			}
		case *ast.IncDecStmt:
			f.add(s, "left out", "if !mutantOf(%d) { ", " }")
		case *ast.DeferStmt:
			f.add(s, "left out", "if !mutantOf(%d) { ", " }")
		}
	}
}

// instrumented is the source with every mutant behind its switch. It numbers them.
func (f *file) instrumented(all *[]*mutant) []byte {
	type insertion struct {
		at    int
		width int // of the place: what encloses goes outside
		order int
		text  string
		after bool
	}
	var ins []insertion
	for i, m := range f.mutants {
		if m.off {
			continue
		}
		m.id = len(*all)
		*all = append(*all, m)
		s, e := f.offset(m.start), f.offset(m.end)
		ins = append(ins,
			insertion{s, e - s, i, fmt.Sprintf(m.before, m.id), false},
			insertion{e, e - s, i, m.after, true})
	}
	slices.SortStableFunc(ins, func(a, b insertion) int {
		switch {
		case a.at != b.at:
			return cmp.Compare(a.at, b.at)
		case a.after != b.after: // what ends here before what begins here
			if a.after {
				return -1
			}
			return 1
		case a.width != b.width:
			if a.after {
				return cmp.Compare(a.width, b.width)
			}
			return cmp.Compare(b.width, a.width)
		case a.after:
			return cmp.Compare(b.order, a.order)
		}
		return cmp.Compare(a.order, b.order)
	})
	var out bytes.Buffer
	last := 0
	for _, in := range ins {
		out.Write(f.src[last:in.at])
		last = in.at
		out.WriteString(in.text)
	}
	out.Write(f.src[last:])
	return out.Bytes()
}

// exclude takes out what the compiler's complaint about a line is about: the mutants
// that it names, else all of the line.
func (f *file) exclude(line int, complaint string) {
	named := false
	for _, m := range f.mutants {
		if !m.off && (strings.Contains(complaint, fmt.Sprintf("mutantValue(%d,", m.id)) || strings.Contains(complaint, fmt.Sprintf("mutantOf(%d)", m.id))) {
			m.off, named = true, true
		}
	}
	for _, m := range f.mutants {
		if a, b := f.fset.Position(m.start).Line, f.fset.Position(m.end).Line; !named && a <= line && line <= b && b-a < 5 {
			m.off = true
		}
	}
}
