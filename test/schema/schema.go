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
		return (s.Type.has("integer") || s.Type.has("number")) && in && (s.Format != "int32" || x == int64(int32(x)))
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
