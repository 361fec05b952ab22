// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/kustomize/kyaml/yaml"
)

// The chart's README, which helm show readme and Artifact Hub show: the values are those of values.yaml, with its comments.
func TestReadmeIsCurrent(t *testing.T) {
	chrt, err := loadChart()
	if err != nil {
		t.Fatal(err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(readFile(t, chartDir, "values.yaml"), &doc); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, readme, chrt.Metadata.Description, chrt.Metadata.Home)
	for _, row := range valueRows("", doc.Content[0]) {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", row.value, row.preset, row.meaning)
		if row.meaning == "" && !strings.Contains(row.value, ".") {
			t.Errorf("values.yaml: %s has no comment", row.value)
		}
	}
	path := filepath.Join(chartDir, "README.md")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil { // a page, for everybody
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(b.String(), string(readFile(t, path))); diff != "" {
		t.Errorf("%s is not what values.yaml says: run make chart\n%s", path, diff)
	}
}

const readme = `<!-- Written by make chart from values.yaml. Do not edit. -->
# GPUPilot

%s.

    helm install gpupilot deploy/chart --namespace gpupilot-system --create-namespace

No image is published yet: [build and load them](%[2]s/blob/main/docs/packages.md). Read on:
[install](%[2]s/blob/main/docs/install.md),
[upgrade](%[2]s/blob/main/docs/upgrade.md),
[uninstall](%[2]s/blob/main/docs/upgrade.md#uninstall),
[all pages](%[2]s/blob/main/docs/README.md).

## Values

| value | default | meaning |
|---|---|---|
`

// valueRow is a value, with its default.
type valueRow struct{ value, preset, meaning string }

// valueRows are the values of a map, in the file's order. The first of a group has the group's comment.
func valueRows(prefix string, m *yaml.Node) (out []valueRow) {
	for i := 0; i < len(m.Content); i += 2 {
		key, v := m.Content[i], m.Content[i+1]
		row := valueRow{prefix + key.Value, flow(v), sentence(key.HeadComment, v.LineComment, key.LineComment)}
		asItIs := []string{"resources", "podSecurityContext", "securityContext"} // passed to Kubernetes as a whole
		if v.Kind != yaml.MappingNode || len(v.Content) == 0 || slices.Contains(asItIs, row.value) {
			out = append(out, row)
			continue
		}
		group := valueRows(row.value+".", v)
		group[0].meaning = sentence(row.meaning, group[0].meaning)
		out = append(out, group...)
	}
	return out
}

// flow is a value on one line.
func flow(v *yaml.Node) string {
	var parts []string
	switch {
	case v.Kind == yaml.MappingNode:
		for i := 0; i < len(v.Content); i += 2 {
			parts = append(parts, v.Content[i].Value+": "+flow(v.Content[i+1]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case v.Kind == yaml.SequenceNode:
		for _, x := range v.Content {
			parts = append(parts, flow(x))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case v.Style == yaml.DoubleQuotedStyle:
		return strconv.Quote(v.Value)
	}
	return v.Value
}

// sentence joins comments. One that goes on, in lower case, follows a semicolon.
func sentence(comments ...string) (out string) {
	for _, c := range comments {
		var words []string
		for line := range strings.Lines(c) {
			words = append(words, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "#")))
		}
		c = strings.ReplaceAll(strings.Join(words, " "), "|", `\|`)
		switch {
		case out == "" || c == "":
			out += c
		case unicode.IsLower(rune(c[0])):
			out = strings.TrimSuffix(out, ".") + "; " + c
		default:
			out += " " + c
		}
	}
	return out
}
