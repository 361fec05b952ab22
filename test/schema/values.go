// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

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
