// SPDX-License-Identifier: Apache-2.0

// Package schema makes values of every field of an OpenAPI or JSON schema, for the tests
// that change every field of the CRDs and every value of the chart: allowed ones, those at
// the bounds, extreme ones, and ones that the schema forbids.
package schema

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// Schema is the part of an OpenAPI or JSON schema that values are made from.
type Schema struct {
	Ref                  string             `json:"$ref"`
	Type                 Types              `json:"type"`
	Properties           map[string]*Schema `json:"properties"`
	PatternProperties    map[string]*Schema `json:"patternProperties"`
	AdditionalProperties *Others            `json:"additionalProperties"`
	Items                *Schema            `json:"items"`
	Enum                 []any              `json:"enum"`
	Pattern              string             `json:"pattern"`
	Format               string             `json:"format"`
	Minimum              *float64           `json:"minimum"`
	Maximum              *float64           `json:"maximum"`
	MinLength            int                `json:"minLength"`
	MaxLength            *int               `json:"maxLength"`
	MinItems             int                `json:"minItems"`
	MaxItems             *int               `json:"maxItems"`
	MinProperties        int                `json:"minProperties"`
	MaxProperties        *int               `json:"maxProperties"`
	Required             []string           `json:"required"`
	IntOrString          bool               `json:"x-kubernetes-int-or-string"`
	Anything             bool               `json:"x-kubernetes-preserve-unknown-fields"`
}

// Types are the types of a value; none: any.
type Types []string

// UnmarshalJSON implements json.Unmarshaler: one type, or a list.
func (t *Types) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*t = Types{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(t))
}

func (t Types) has(name string) bool { return len(t) == 0 || slices.Contains(t, name) }

// Others is the schema of the properties that have none of their own.
type Others struct {
	Schema
	None bool // there are no other properties
}

// UnmarshalJSON implements json.Unmarshaler: a schema, or whether there may be any.
func (o *Others) UnmarshalJSON(text []byte) error {
	var some bool
	if json.Unmarshal(text, &some) == nil {
		o.None = !some
		return nil
	}
	return json.Unmarshal(text, &o.Schema)
}

// ReadCRD returns the schema of the spec of a CRD's first version.
func ReadCRD(file string) (*Schema, error) {
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema Schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, &crd)
	}
	if err != nil {
		return nil, fmt.Errorf("read the CRD %s: %w", file, err)
	}
	return crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"], nil
}

// ReadJSON returns a JSON schema, with its references resolved.
func ReadJSON(file string) (*Schema, error) {
	var s struct {
		Schema
		Definitions map[string]*Schema `json:"definitions"`
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return nil, fmt.Errorf("read the schema %s: %w", file, err)
	}
	s.resolve(s.Definitions)
	return &s.Schema, nil
}

func (s *Schema) resolve(definitions map[string]*Schema) {
	if name, ok := strings.CutPrefix(s.Ref, "#/definitions/"); ok {
		*s = *definitions[name]
	}
	for _, p := range s.Properties {
		p.resolve(definitions)
	}
	if s.Items != nil {
		s.Items.resolve(definitions)
	}
}

// Path names a field: "signals", "0", "gpu", "metric".
type Path []string

// String implements fmt.Stringer.
func (p Path) String() string { return strings.Join(p, ".") }

// Fields lists every field below a schema, those of the first element of lists too.
func (s *Schema) Fields(at Path) (out []Path) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := append(slices.Clone(at), name)
		out = append(append(out, p), s.Properties[name].Fields(p)...)
	}
	if s.Items != nil {
		p := append(slices.Clone(at), "0")
		out = append(append(out, p), s.Items.Fields(p)...)
	}
	return out
}

// At is the schema of a field.
func (s *Schema) At(p Path) *Schema {
	for _, name := range p {
		if s.Items != nil {
			s = s.Items
		} else {
			s = s.Properties[name]
		}
	}
	return s
}

// Value is a value of a field.
type Value struct {
	V any
	// Forbidden means that the schema does not allow the value. A rule about several
	// fields may refuse one that is not forbidden.
	Forbidden bool
}

// Soon is a time of RFC 3339 in two hours.
var Soon = time.Now().Add(2 * time.Hour).UTC().Format(time.RFC3339)

// texts are strings that are valid somewhere, or that somebody may try.
var texts = []string{
	Soon, "2020-01-01T00:00:00Z", "2099-01-01T00:00:00+02:00", "America/Sao_Paulo", "UTC", "Mars/Base", "00:00", "23:59", "*/5 * * * *", "0 8 31 2 *", "NotIn", "Exists",
	"queue.replicas * 2.0", "1.0 / 0.0", "nobody.value",
	"a", "metrics", "http", "x1-y", "queue_length", "Utilization", "DCGM_FI_DEV_GPU_UTIL", "MemoryUsed", "1009", "/metrics", "/a/b.c", "/", "/home/driver",
	"lib/libnvidia-ml.so.1", "10ms", "1s", "1m30s", "250ms", "1h", "0s", "-1s", "1ns", "87600h", "avg", "p1", "p99", "p0", "example.com/gpu", "1", "1Gi",
	"Deployment", "StatefulSet", "apps/v1", "v1", "app", "default", "$(HOST_IP):5555", "unix:///run/dcgm.sock", "ghcr.io/gpupilot/gpupilot-agent:e2e",
	"registry.example/other:1", `load{w="other"}`, "sum(", `load{namespace="kube-system"}`, "vector(25)", "1e3", "system-node-critical", "release",
	"DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n", "not, a, list\n", "25%", "web-config.yml", "POD_IP", "--process-metrics", "--address=$(POD_IP):9400", "gpupilot.dev/exporter",
	"app.kubernetes.io/name", "NODE_NAME", "-", "..", "/..", "/../x", "größe", "a b", "a\nb", "\x00", "{{.}}", "@evil.example:80/x", "true", "null", "*", "0",
}

// quantities are texts for quantities, and for numbers or words.
var quantities = []any{
	"1", "10", "0", "-1", "100m", "1e3", "1Ki", "0.0", "00", "+1", "1n", "0e5", "-0", "9223372036854775807", "1e30", "1e-30", int64(5), int64(0), int64(-1),
	int64(2147483647), int64(4294967300), "abc", "", "Hold", "Max", "25%", "-5%", "200%", "http", true, 1.5,
}

// Values lists values for a field of this schema: allowed ones, the bounds and beyond.
func (s *Schema) Values() []Value { return s.values(0) }

func (s *Schema) values(depth int) (out []Value) {
	add := func(v any) { out = append(out, Value{v, !s.Allows(v)}) }
	switch {
	case len(s.Enum) > 0:
		for _, v := range s.Enum {
			add(v)
		}
		add("Nope")
		add("")
		add(int64(1))
	case s.IntOrString, len(s.Type) > 1:
		for _, v := range quantities {
			add(v)
		}
	case s.is("boolean"):
		for _, v := range []any{true, false, "true", int64(1)} {
			add(v)
		}
	case s.is("integer"):
		s.integers(add)
	case s.is("string"):
		s.strings(add)
	case s.is("array"):
		s.lists(add, depth)
	case len(s.PatternProperties) > 0, s.AdditionalProperties != nil && !s.AdditionalProperties.None:
		s.dictionaries(add)
	case len(s.Properties) > 0:
		add(map[string]any{})
		add(s.minimal())
		add(s.full(depth))
		add("text")
		add([]any{})
	default:
		for _, v := range []any{map[string]any{}, map[string]any{"interval": "5s"}, map[string]any{"a": map[string]any{"b": []any{int64(1)}}}, "text"} {
			add(v)
		}
	}
	return out
}

// is reports whether values have this type and no other.
func (s *Schema) is(name string) bool { return len(s.Type) == 1 && s.Type[0] == name }

func (s *Schema) integers(add func(any)) {
	numbers := []float64{0, 1, 2, 3, 5, -1, 1000, 2147483647, 2147483648, 4294967300, -2147483648}
	for _, bound := range []*float64{s.Minimum, s.Maximum} {
		if bound != nil {
			numbers = append(numbers, *bound, *bound-1, *bound+1)
		}
	}
	slices.Sort(numbers)
	for _, n := range slices.Compact(numbers) {
		add(int64(n))
	}
	add("1")
	add(1.5)
}

func (s *Schema) strings(add func(any)) {
	for _, v := range texts {
		add(v)
	}
	add("")
	longest := 60_000 // what a tenant may store where nothing bounds it
	if s.MaxLength != nil {
		longest = *s.MaxLength
	}
	for _, one := range []string{"a", "/a"} {
		long := strings.Repeat(one, longest/len(one)+1)
		add(long[:longest])
		if s.MaxLength != nil {
			add(long[:longest+1])
		}
	}
	add(int64(1))
	add(map[string]any{})
}

func (s *Schema) lists(add func(any), depth int) {
	if s.Items == nil {
		add([]any{})
		add("text")
		return
	}
	var one any = map[string]any{}
	for _, v := range s.Items.values(depth + 1) {
		if !v.Forbidden {
			add([]any{v.V})
		}
	}
	if len(s.Items.Properties) > 0 {
		one = s.Items.minimal()
	} else if all := s.Items.values(depth + 1); len(all) > 0 {
		one = all[0].V
	}
	add([]any{})
	add([]any{one, one})
	if s.MaxItems != nil {
		add(slices.Repeat([]any{one}, *s.MaxItems))
		add(slices.Repeat([]any{one}, *s.MaxItems+1))
	}
	add("text")
}

func (s *Schema) dictionaries(add func(any)) {
	var good any = "b"
	if s.AdditionalProperties != nil && s.AdditionalProperties.IntOrString {
		good = "10m"
	}
	add(map[string]any{})
	for _, key := range []string{"a", "example.com/team", "cpu", "memory", "app.kubernetes.io/name", "gpupilot.dev/exporter", "not a label", "", "kubernetes.io/hostname", strings.Repeat("a", 400)} {
		add(map[string]any{key: good})
	}
	for _, v := range []any{"", "no label!", strings.Repeat("a", 64), "-1", int64(5)} {
		add(map[string]any{"a": v})
	}
	if n := s.MaxProperties; n != nil {
		for _, count := range []int{*n, *n + 1} {
			m := map[string]any{}
			for i := range count {
				m[fmt.Sprintf("k%d", i)] = good
			}
			add(m)
		}
	}
	add("text")
}

// minimal is an object with its required fields, and full one with all of them.
func (s *Schema) minimal() map[string]any {
	m := map[string]any{}
	for _, name := range s.Required {
		m[name] = s.Properties[name].first()
	}
	if s.MinProperties > 0 && len(m) == 0 {
		name := slices.Sorted(maps.Keys(s.Properties))[0]
		m[name] = s.Properties[name].first()
	}
	return m
}

func (s *Schema) full(depth int) map[string]any {
	m := map[string]any{}
	for name, p := range s.Properties {
		if depth < 4 {
			m[name] = p.first()
		}
	}
	return m
}

// first is the first value that the schema allows.
func (s *Schema) first() any {
	if len(s.Properties) > 0 {
		return s.minimal()
	}
	for _, v := range s.values(1) {
		if !v.Forbidden {
			return v.V
		}
	}
	return nil
}

// Allows reports whether the schema allows a value. Rules in CEL are not evaluated.
func (s *Schema) Allows(v any) bool {
	if len(s.Enum) > 0 {
		return slices.Contains(s.Enum, v)
	}
	switch x := v.(type) {
	case bool:
		return s.Type.has("boolean") && !s.IntOrString
	case int64:
		if s.IntOrString {
			return true // no format bounds it
		}
		in := (s.Minimum == nil || float64(x) >= *s.Minimum) && (s.Maximum == nil || float64(x) <= *s.Maximum)
		return s.Type.has("integer") && in && (s.Format != "int32" || x == int64(int32(x)))
	case float64:
		return s.Type.has("number") && !s.IntOrString
	case string:
		n := utf8.RuneCountInString(x)
		fits := n >= s.MinLength && (s.MaxLength == nil || n <= *s.MaxLength)
		return s.Type.has("string") && fits && (s.Pattern == "" || regexp.MustCompile(s.Pattern).MatchString(x))
	case []any:
		if !s.Type.has("array") || s.IntOrString || len(x) < s.MinItems || s.MaxItems != nil && len(x) > *s.MaxItems {
			return false
		}
		return s.Items == nil || !slices.ContainsFunc(x, func(e any) bool { return !s.Items.Allows(e) })
	case map[string]any:
		return s.allowsObject(x)
	}
	return false
}

func (s *Schema) allowsObject(x map[string]any) bool {
	if !s.Type.has("object") || s.IntOrString || len(x) < s.MinProperties || s.MaxProperties != nil && len(x) > *s.MaxProperties {
		return false
	}
	for _, name := range s.Required {
		if _, ok := x[name]; !ok {
			return false
		}
	}
	for name, v := range x {
		p := s.Properties[name]
		for pattern, of := range s.PatternProperties {
			if p == nil && regexp.MustCompile(pattern).MatchString(name) {
				p = of
			}
		}
		if others := s.AdditionalProperties; p == nil && others != nil {
			if others.None {
				return false
			}
			p = &others.Schema
		}
		if p != nil && !p.Allows(v) {
			return false
		}
	}
	return true
}

// Parse reads JSON with whole numbers as int64. It panics if it is none.
func Parse(text string) any {
	var v any
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		panic(fmt.Errorf("%s: %w", text, err)) // a mistake in these tests
	}
	return whole(v)
}

func whole(v any) any {
	switch x := v.(type) {
	case json.Number:
		n, err := x.Int64()
		if err != nil {
			f, _ := x.Float64()
			return f
		}
		return n
	case map[string]any:
		for k := range x {
			x[k] = whole(x[k])
		}
	case []any:
		for i := range x {
			x[i] = whole(x[i])
		}
	}
	return v
}

// With returns a copy of an object in which a field has a value; the objects and lists
// above it are made if they are missing. remove removes the field instead.
func (s *Schema) With(spec map[string]any, p Path, v any, remove bool) map[string]any {
	out := Copy(spec).(map[string]any)
	var at any = out
	for i, name := range p {
		last := i == len(p)-1
		switch x := at.(type) {
		case map[string]any:
			switch {
			case last && remove:
				delete(x, name)
			case last:
				x[name] = Copy(v)
			case x[name] == nil && remove:
				return out
			case x[name] == nil || i+2 <= len(p) && s.At(p[:i+1]).Items != nil && len(asList(x[name])) == 0:
				if sub := s.At(p[:i+1]); sub.Items != nil {
					x[name] = []any{sub.Items.first()}
				} else {
					x[name] = sub.minimal()
				}
			}
			at = x[name]
		case []any: // its first element
			switch {
			case len(x) == 0:
				return out
			case last && remove:
				return s.With(out, p[:i], x[1:], false)
			case last:
				x[0] = Copy(v)
			}
			at = x[0]
		default:
			return out
		}
	}
	return out
}

func asList(v any) []any { l, _ := v.([]any); return l }

// Copy copies a value of JSON.
func Copy(v any) any {
	switch x := v.(type) {
	case map[string]any:
		out := make(map[string]any, len(x))
		for k, e := range x {
			out[k] = Copy(e)
		}
		return out
	case []any:
		out := make([]any, len(x))
		for i, e := range x {
			out[i] = Copy(e)
		}
		return out
	}
	return v
}
