// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"text/template"

	"github.com/prometheus/prometheus/model/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Kind is a Kubernetes resource with its other names.
type Kind struct {
	schema.GroupResource // in the plural
	Singular             string
	Namespaced           bool
}

// Kinds finds resources.
type Kinds interface {
	// Find finds a resource by its name in the singular or the plural. An empty group
	// means the first group that has the resource.
	Find(group, resource string) (Kind, bool)
}

// Builtin are the resources of Kubernetes that a label can name, and LeaderWorkerSets.
type Builtin struct{}

// Find implements Kinds.
func (Builtin) Find(group, resource string) (Kind, bool) {
	for _, k := range builtinKinds {
		if (resource == k.Resource || resource == k.Singular) && (group == "" || group == k.Group) {
			return k, true
		}
	}
	return Kind{}, false
}

// builtinKinds are sorted by group, the core group first. prometheus-adapter asks the API
// server for them. This table needs no cluster, so that the CLI reads files as well.
var builtinKinds = []Kind{
	namespaced("", "pods", "pod"),
	{schema.GroupResource{Resource: "namespaces"}, "namespace", false},
	{schema.GroupResource{Resource: "nodes"}, "node", false},
	namespaced("", "services", "service"),
	{schema.GroupResource{Resource: "persistentvolumes"}, "persistentvolume", false},
	namespaced("", "persistentvolumeclaims", "persistentvolumeclaim"),
	namespaced("", "replicationcontrollers", "replicationcontroller"),
	namespaced("", "configmaps", "configmap"),
	namespaced("", "secrets", "secret"),
	namespaced("", "endpoints", "endpoints"),
	namespaced("", "serviceaccounts", "serviceaccount"),
	namespaced("apps", "deployments", "deployment"),
	namespaced("apps", "statefulsets", "statefulset"),
	namespaced("apps", "replicasets", "replicaset"),
	namespaced("apps", "daemonsets", "daemonset"),
	namespaced("autoscaling", "horizontalpodautoscalers", "horizontalpodautoscaler"),
	namespaced("batch", "jobs", "job"),
	namespaced("batch", "cronjobs", "cronjob"),
	namespaced("leaderworkerset.x-k8s.io", "leaderworkersets", "leaderworkerset"),
	namespaced("networking.k8s.io", "ingresses", "ingress"),
}

func namespaced(group, plural, singular string) Kind {
	return Kind{schema.GroupResource{Group: group, Resource: plural}, singular, true}
}

// namespaces is the resource of a namespace.
var namespaces = schema.GroupResource{Resource: "namespaces"}

// mapping maps labels to resources and back.
type mapping struct {
	kinds   Kinds
	byLabel map[string]Kind // the overrides
	labels  map[schema.GroupResource]string
	form    *template.Template // of a label; nil: only the overrides
	pattern *regexp.Regexp     // of a label of that form
}

// labelName is a label's name that PromQL reads without quotes.
var labelName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

func newMapping(in *ResourceMapping, kinds Kinds, path *field.Path) (m *mapping, warnings []string, errs field.ErrorList) {
	m = &mapping{kinds: kinds, byLabel: map[string]Kind{}, labels: map[schema.GroupResource]string{}}
	for label, gr := range in.Overrides {
		at := path.Child("overrides").Key(label)
		if !labelName.MatchString(label) {
			errs = append(errs, field.Invalid(at, label, "is not the name of a label"))
		}
		kind, ok := kinds.Find(gr.Group, gr.Resource)
		if !ok {
			warnings = append(warnings, fmt.Sprintf("%s: %q is no resource of Kubernetes, and the API server serves no custom resource of this group and name: "+
				"the label is not used until it does", at.Child("resource"), gr.String()))
			continue
		}
		if other, taken := m.labels[kind.GroupResource]; taken && other < label {
			label = other // of two labels for a resource the first one selects; both are read
		}
		m.labels[kind.GroupResource] = label
	}
	for label, gr := range in.Overrides {
		if kind, ok := kinds.Find(gr.Group, gr.Resource); ok {
			m.byLabel[label] = kind
		}
	}
	if in.Template == "" {
		return m, warnings, errs
	}
	if err := m.setTemplate(in.Template); err != nil {
		errs = append(errs, field.Invalid(path.Child("template"), in.Template, err.Error()))
	}
	return m, warnings, errs
}

func (m *mapping) setTemplate(text string) (err error) {
	if m.form, err = parseTemplate(text); err != nil {
		return err
	}
	pattern, err := execute(m.form, schema.GroupResource{Group: "(?P<group>.+?)", Resource: "(?P<resource>.+?)"})
	if err != nil {
		return err
	}
	if m.pattern, err = regexp.Compile("^" + pattern + "$"); err != nil {
		return err
	}
	if m.pattern.SubexpIndex("resource") < 0 {
		return errors.New("must contain <<.Resource>>")
	}
	return nil
}

// kindOf returns the resource whose name a label holds.
func (m *mapping) kindOf(label string) (Kind, bool) {
	if k, ok := m.byLabel[label]; ok {
		return k, true
	}
	if m.pattern == nil || !labelName.MatchString(label) {
		return Kind{}, false
	}
	groups := m.pattern.FindStringSubmatch(label)
	if groups == nil {
		return Kind{}, false
	}
	group := ""
	if i := m.pattern.SubexpIndex("group"); i >= 0 {
		group = strings.ReplaceAll(groups[i], "_", ".") // groups have no underscores
	}
	return m.kinds.Find(group, groups[m.pattern.SubexpIndex("resource")])
}

// label returns the label with the name of a resource.
func (m *mapping) label(gr schema.GroupResource) (string, error) {
	if l, ok := m.labels[gr]; ok {
		return l, nil
	}
	if m.form == nil {
		return "", fmt.Errorf("resources: no label for %s: add it to overrides", gr)
	}
	kind, ok := m.kinds.Find(gr.Group, gr.Resource)
	if !ok {
		return "", fmt.Errorf("resources: %s is not a known resource", gr)
	}
	l, err := execute(m.form, schema.GroupResource{Group: groupInLabel.Replace(gr.Group), Resource: kind.Singular})
	if err != nil {
		return "", fmt.Errorf("resources.template: %w", err)
	}
	if !labelName.MatchString(l) {
		return "", fmt.Errorf("resources.template: %q is not the name of a label", l)
	}
	return l, nil
}

var groupInLabel = strings.NewReplacer(".", "_", "-", "_")

// kindsOf returns the resources that a series belongs to.
func (m *mapping) kindsOf(ls labels.Labels) (out []Kind) {
	seen := map[schema.GroupResource]bool{}
	ls.Range(func(l labels.Label) {
		if k, ok := m.kindOf(l.Name); ok && !seen[k.GroupResource] {
			seen[k.GroupResource] = true
			out = append(out, k)
		}
	})
	return out
}

// maxOutput bounds the text that a template produces, in bytes.
const maxOutput = 64 << 10

// limitedBuffer refuses more than maxOutput bytes.
type limitedBuffer struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxOutput {
		return 0, fmt.Errorf("the template produces more than %d bytes", maxOutput)
	}
	return b.Buffer.Write(p)
}

func execute(t *template.Template, data any) (string, error) {
	var out limitedBuffer
	if err := t.Execute(&out, data); err != nil {
		return "", err
	}
	return out.String(), nil
}
