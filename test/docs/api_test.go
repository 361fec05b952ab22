// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/api.md")

// docs/api.md is made from the types of api/v1alpha1: their comments and their kubebuilder markers.
func TestAPIReference(t *testing.T) {
	types, err := parseTypes(filepath.Join(root, "api", "v1alpha1"))
	if err != nil {
		t.Fatal(err)
	}
	want := reference(types)
	path := filepath.Join(root, "docs", "api.md")
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { // documentation, for everybody
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/api.md is not what the types say: run go test ./test/docs -run APIReference -update\n%s", diff)
	}
}

// apiType is a struct with its fields, or a named string with its values.
type apiType struct {
	name    string
	comment comment
	fields  []apiField
	values  []apiValue
	kind    bool // of an object
}

type apiField struct {
	name, typ string
	of        string // the type of this package that typ has, for a link
	required  bool
	comment   comment
}

type apiValue struct{ value, meaning string }

// comment is a doc comment: its text, and its kubebuilder markers.
type comment struct {
	text    string
	markers map[string][]string
}

// one returns the last value of a marker.
func (c comment) one(marker string) string {
	all := c.markers[marker]
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1]
}

var markerLine = regexp.MustCompile(`^\+(?:kubebuilder:)?(?:validation:)?([A-Za-z:]+)(?:=(.*))?$`)

func readComment(group *ast.CommentGroup) comment {
	c := comment{markers: map[string][]string{}}
	var text []string
	if group == nil {
		return c
	}
	for _, line := range group.List {
		s := strings.TrimSpace(strings.TrimPrefix(line.Text, "//"))
		if m := markerLine.FindStringSubmatch(s); m != nil {
			c.markers[m[1]] = append(c.markers[m[1]], strings.Trim(m[2], "\"`"))
			continue
		}
		if !strings.HasPrefix(s, "+") {
			text = append(text, s)
		}
	}
	c.text = strings.TrimSpace(strings.Join(text, " "))
	return c
}

// parseTypes reads the types of a package, in the order of its files.
func parseTypes(dir string) ([]*apiType, error) {
	files, err := filepath.Glob(filepath.Join(dir, "[gm]*.go"))
	if err != nil {
		return nil, err
	}
	var out []*apiType
	byName := map[string]*apiType{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					t := readType(s, d.Doc)
					byName[t.name] = t
					out = append(out, t)
				case *ast.ValueSpec:
					addValue(byName, s)
				}
			}
		}
	}
	return out, nil
}

func readType(s *ast.TypeSpec, doc *ast.CommentGroup) *apiType {
	t := &apiType{name: s.Name.Name, comment: readComment(doc)}
	body, ok := s.Type.(*ast.StructType)
	if !ok {
		return t
	}
	for _, field := range body.Fields.List {
		if field.Tag == nil {
			continue
		}
		tag, _, _ := strings.Cut(strings.TrimPrefix(strings.Trim(field.Tag.Value, "`"), `json:"`), `"`)
		name, options, _ := strings.Cut(tag, ",")
		if name == "" || name == "metadata" {
			t.kind = t.kind || name == "metadata"
			continue
		}
		c := readComment(field.Doc)
		_, optional := c.markers["optional"]
		of, typ := typeName(field.Type)
		t.fields = append(t.fields, apiField{
			name: name, typ: typ, of: of, comment: c, required: !optional && !strings.Contains(options, "omitempty"),
		})
	}
	return t
}

// addValue adds a constant to the values of its type.
func addValue(types map[string]*apiType, s *ast.ValueSpec) {
	of, ok := s.Type.(*ast.Ident)
	if !ok || types[of.Name] == nil || len(s.Values) != 1 {
		return
	}
	literal, ok := s.Values[0].(*ast.BasicLit)
	if !ok {
		return
	}
	v := apiValue{value: strings.Trim(literal.Value, `"`)}
	if s.Comment != nil {
		v.meaning = strings.TrimSpace(s.Comment.Text())
	}
	types[of.Name].values = append(types[of.Name].values, v)
}

// names of the types of other packages, as YAML has them.
var foreign = map[string]string{
	"metav1.Duration": "duration, such as `30s`", "metav1.Time": "time", "metav1.MicroTime": "time", "metav1.Condition": "[Condition](https://kubernetes.io/docs/reference/generated/kubernetes-api/v1.32/#condition-v1-meta)",
	"resource.Quantity": "quantity, such as `500m`", "intstr.IntOrString": "integer or string", "runtime.RawExtension": "object",
	"int32": "integer", "int64": "integer", "bool": "boolean", "string": "string", "float64": "number",
}

// typeName returns a type as YAML has it, and the type of this package that it is or consists of.
func typeName(e ast.Expr) (of, name string) {
	switch x := e.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.ArrayType:
		of, name = typeName(x.Elt)
		return of, "list of " + name
	case *ast.MapType:
		of, name = typeName(x.Value)
		return of, "map of " + name
	case *ast.SelectorExpr:
		full := fmt.Sprint(x.X, ".", x.Sel.Name)
		if known, ok := foreign[full]; ok {
			return "", known
		}
		return "", full
	case *ast.Ident:
		if known, ok := foreign[x.Name]; ok {
			return "", known
		}
		return x.Name, x.Name
	}
	return "", fmt.Sprintf("%T", e)
}

const referenceHead = `# API reference

The fields of ` + "`gpupilot.dev/v1alpha1`" + `. [gpuautoscaler.md](gpuautoscaler.md) explains how to use a GPUAutoscaler, and
[install.md](install.md) how agents are installed. In a cluster: ` + "`kubectl explain gpuautoscaler.spec`" + `.

<!-- Generated from api/v1alpha1 by go test ./test/docs -run APIReference -update. Do not edit. -->
`

// reference renders each kind, and after it the types that it uses.
func reference(types []*apiType) string {
	byName := map[string]*apiType{}
	for _, t := range types {
		byName[t.name] = t
	}
	var b strings.Builder
	b.WriteString(referenceHead)
	done := map[string]bool{}
	for _, t := range types {
		if !t.kind || strings.HasSuffix(t.name, "List") {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", t.name)
		writeType(&b, t, byName)
		for queue := uses(t, byName); len(queue) > 0; queue = queue[1:] {
			next := queue[0]
			if done[next.name] {
				continue
			}
			done[next.name] = true
			fmt.Fprintf(&b, "\n### %s\n\n", next.name)
			writeType(&b, next, byName)
			queue = append(queue, uses(next, byName)...)
		}
	}
	return b.String()
}

func uses(t *apiType, byName map[string]*apiType) []*apiType {
	var out []*apiType
	for _, f := range t.fields {
		if used := byName[f.of]; used != nil && !slices.Contains(out, used) {
			out = append(out, used)
		}
	}
	return out
}

func writeType(b *strings.Builder, t *apiType, byName map[string]*apiType) {
	b.WriteString(wrap(t.comment.text))
	if rules := messages(t.comment); len(rules) > 0 {
		b.WriteString("\nThe API server checks:\n\n")
		for _, r := range rules {
			b.WriteString(wrap("* " + r))
		}
	}
	if len(t.values) > 0 {
		b.WriteString("\n| value | meaning |\n|---|---|\n")
		for _, v := range t.values {
			fmt.Fprintf(b, "| `%s` | %s |\n", v.value, cell(v.meaning))
		}
	}
	if len(t.fields) > 0 {
		b.WriteString("\n| field | type | default | meaning |\n|---|---|---|---|\n")
	}
	for _, f := range t.fields {
		typ := f.typ
		if byName[f.of] != nil {
			typ = strings.ReplaceAll(typ, f.of, fmt.Sprintf("[%s](#%s)", f.of, strings.ToLower(f.of)))
		}
		value := f.comment.one("default")
		switch {
		case value != "":
			value = "`" + value + "`"
		case f.required:
			value = "required"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", f.name, typ, value, cell(strings.TrimSpace(f.comment.text+" "+limits(f.comment))))
	}
}

// limits are the bounds of a field, in words.
func limits(c comment) string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if e := c.one("Enum"); e != "" {
		var quoted []string
		for v := range strings.SplitSeq(e, ";") {
			quoted = append(quoted, "`"+strings.Trim(v, `"`)+"`")
		}
		add("One of %s.", strings.Join(quoted, ", "))
	}
	low, high := c.one("Minimum"), c.one("Maximum")
	switch {
	case low != "" && high != "":
		add("From %s to %s.", low, high)
	case low != "":
		add("At least %s.", low)
	case high != "":
		add("At most %s.", high)
	}
	if n := c.one("MaxItems"); n != "" {
		add("At most %s entries.", n)
	}
	if n, err := strconv.Atoi(c.one("MaxProperties")); err == nil {
		add("At most %d entries.", n)
	}
	for _, m := range messages(c) {
		add("%s.", strings.TrimSuffix(strings.ToUpper(m[:1])+m[1:], "."))
	}
	return strings.Join(out, " ")
}

var ruleMessage = regexp.MustCompile(`message="?([^"]+)`)

// messages are those of the validation rules of a type or a field.
func messages(c comment) []string {
	var out []string
	for _, rule := range append(slices.Clone(c.markers["XValidation:rule"]), c.markers["items:XValidation:rule"]...) {
		if m := ruleMessage.FindStringSubmatch(rule); m != nil && !slices.Contains(out, m[1]) {
			out = append(out, m[1])
		}
	}
	return out
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// wrap breaks a paragraph at 120 columns.
func wrap(s string) string {
	if s == "" {
		return ""
	}
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(s) {
		switch n := len([]rune(word)); {
		case i == 0:
			column = n
		case column+1+n > 120:
			b.WriteString("\n")
			column = n
		default:
			b.WriteString(" ")
			column += 1 + n
		}
		b.WriteString(word)
	}
	return b.String() + "\n"
}
