// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	strict "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// unread are fields of the source that the translation does not know, with their values.
type unread []Note

// decode decodes an object as the API server does. What its type does not have is unread. written is the whole object.
func decode(text []byte, into any) (out unread, written any, err error) {
	b, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, nil, err
	}
	unknown, err := strict.UnmarshalStrict(b, into)
	if err != nil {
		return nil, nil, err
	}
	if err := json.Unmarshal(b, &written); err != nil {
		return nil, nil, err
	}
	for _, u := range unknown {
		m := unknownField.FindStringSubmatch(u.Error())
		if m == nil || slices.ContainsFunc(ofServer, func(p string) bool { return m[1] == p || strings.HasPrefix(m[1], p+".") }) {
			continue
		}
		out = append(out, Note{Field: m[1], Text: valueAt(written, m[1])})
	}
	return out, written, nil
}

var unknownField = regexp.MustCompile(`^unknown field "(.*)"$`)

// ofServer are the fields of all objects, and those that the API server sets.
var ofServer = []string{
	"apiVersion", "kind", "status", "metadata.uid", "metadata.resourceVersion", "metadata.generation", "metadata.creationTimestamp", "metadata.managedFields", "metadata.selfLink",
	"metadata.deletionTimestamp", "metadata.deletionGracePeriodSeconds",
}

var pathStep = regexp.MustCompile(`([^.\[\]]+)|\[(\d+)\]`)

// valueAt is the value at a path, such as spec.metrics[0].name, for a note.
func valueAt(all any, path string) string {
	for _, m := range pathStep.FindAllStringSubmatch(path, -1) {
		switch x := all.(type) {
		case map[string]any:
			all = x[m[1]]
		case []any:
			i, err := strconv.Atoi(m[2])
			if err != nil || i >= len(x) {
				return "?"
			}
			all = x[i]
		}
	}
	return shown(all)
}

// maxShown bounds a value in a note, in bytes. A query has no more.
const maxShown = 4096

// shown is a value in a note.
func shown(x any) string {
	b, err := json.Marshal(x)
	if err != nil {
		return "?"
	}
	if text, ok := x.(string); ok {
		b = []byte(text)
	}
	if len(b) > maxShown {
		return string(b[:maxShown]) + "…"
	}
	return string(b)
}

// leftOver names the fields that the translation does not know, and the metadata that is not copied.
func (r *Result) leftOver(fields unread, m *objectMeta) {
	for _, n := range fields {
		r.lose(n.Field, "%s: has no equivalent", n.Text)
	}
	if len(m.Labels) > 0 {
		r.note("metadata.labels", "%s: not copied, because a tool that selects by them may take the GPUAutoscaler for its own", pairs(m.Labels, nil))
	}
	if len(m.Finalizers) > 0 {
		r.note("metadata.finalizers", "%s: not copied", strings.Join(m.Finalizers, ", "))
	}
	if text := pairs(m.Annotations, readAnnotation); text != "" {
		r.note("metadata.annotations", "%s: not copied", text)
	}
	for _, o := range m.OwnerReferences {
		r.note("metadata.ownerReferences", "%s %s (%s) made this %s, and may make it again: change that first", o.Kind, o.Name, o.APIVersion, r.Kind)
	}
}

// readAnnotation reports whether an annotation is read, or is of a tool that writes all objects.
func readAnnotation(key string) bool {
	return strings.HasPrefix(key, "autoscaling.alpha.kubernetes.io/") || key == "kubectl.kubernetes.io/last-applied-configuration" || slices.Contains(pauseAnnotations, key)
}

// pairs lists a map as key=value, sorted, without the keys that are left out.
func pairs(m map[string]string, leaveOut func(string) bool) string {
	var out []string
	for key, value := range m {
		if leaveOut == nil || !leaveOut(key) {
			out = append(out, fmt.Sprintf("%s=%s", key, shown(value)))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}
