// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/promql/adapter"
	"github.com/gpupilot/gpupilot/internal/replay/contender"
)

// Result is the translation of one object.
type Result struct {
	// Kind is HorizontalPodAutoscaler or ScaledObject.
	Kind string
	Name string
	// Object is the equivalent.
	Object *v1alpha1.GPUAutoscaler
	// Notes are about what differs or has no equivalent, in the order of the fields.
	Notes []Note
	// Peer simulates the original; its metrics are those that can be simulated.
	Peer contender.HPAObject
	// Unsimulated has the metrics that cannot be simulated, with the reason.
	Unsimulated []Note
	// Guessed are the metrics that are taken for series of their names, because no file of
	// prometheus-adapter was given.
	Guessed []string
	usable  bool
}

// Err returns why the API would refuse the equivalent, with all that has none; nil if it
// accepts it.
func (r *Result) Err() error {
	if r.usable {
		return nil
	}
	var lost []string
	for _, n := range r.Notes {
		if n.Lost {
			lost = append(lost, n.Field+": "+n.Text)
		}
	}
	return fmt.Errorf("%s %s has no equivalent:\n  %s", r.Kind, plain(r.Name), strings.Join(lost, "\n  "))
}

// Note is about one field of the original.
type Note struct {
	Field string `json:"field"`
	Text  string `json:"text"`
	// Lost is true if the field has no equivalent.
	Lost bool `json:"lost,omitempty"`
}

// plain is a text without what a terminal would obey: anybody may have written the object.
func plain(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || unicode.Is(unicode.Cf, c) || c == '\u2028' || c == '\u2029' {
			return ' '
		}
		return c
	}, text)
}

func (r *Result) note(field, format string, args ...any) {
	r.Notes = append(r.Notes, Note{Field: plain(field), Text: plain(fmt.Sprintf(format, args...))})
}

func (r *Result) lose(field, format string, args ...any) {
	r.Notes = append(r.Notes, Note{Field: plain(field), Text: plain(fmt.Sprintf(format, args...)), Lost: true})
}

// loseOnce adds a note, unless the field has one.
func (r *Result) loseOnce(field, text string) {
	if !slices.ContainsFunc(r.Notes, func(n Note) bool { return n.Lost && n.Field == field }) {
		r.lose(field, "%s", text)
	}
}

func (r *Result) unsimulated(field, format string, args ...any) {
	r.Unsimulated = append(r.Unsimulated, Note{Field: plain(field), Text: plain(fmt.Sprintf(format, args...))})
}

// The kinds of objects that are translated.
const (
	KindHPA          = "HorizontalPodAutoscaler"
	KindScaledObject = "ScaledObject"
	// KindPrometheusRule has recording rules, which tell whose series a metric is.
	KindPrometheusRule = "PrometheusRule"
)

// Options are what is known beside the object.
type Options struct {
	// Rules are those of prometheus-adapter, which tell the queries behind the names of
	// custom and external metrics; nil: unknown.
	Rules *adapter.RuleSet
	// Recorded are the expressions of recording rules, by the names of their series.
	Recorded map[string]string
	// Alerts are the expressions of alerts, by their names.
	Alerts map[string]string
	// Namespace is that of objects which name none; empty: the one to which they are applied.
	Namespace string
}

// Document is one object of a file.
type Document struct {
	Kind string
	Text []byte // JSON or YAML
}

// Split splits a YAML file into its objects; also those of a List.
func Split(file string, b []byte) (out []Document, err error) {
	docs := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b)))
	for {
		doc, err := docs.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		var head struct {
			Kind  string           `json:"kind"`
			Items []map[string]any `json:"items"`
			// Groups are those of a file of Prometheus, which has no kind.
			Groups []any `json:"groups"`
		}
		if err := yaml.Unmarshal(doc, &head); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, item := range head.Items {
			text, err := yaml.Marshal(item)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			kind, _ := item["kind"].(string)
			out = append(out, Document{kind, text})
		}
		if head.Kind == "" && len(head.Groups) > 0 {
			head.Kind = KindPrometheusRule
		}
		if head.Kind != "" && !strings.HasSuffix(head.Kind, "List") {
			out = append(out, Document{head.Kind, doc})
		}
	}
	return out, nil
}

// Convert translates an object of one of the kinds.
func Convert(d Document, o Options) (*Result, error) {
	switch d.Kind {
	case KindHPA:
		return convertHPA(d.Text, o)
	case KindScaledObject:
		return convertScaledObject(d.Text, o)
	}
	return nil, fmt.Errorf("kind %q is not %s or %s", d.Kind, KindHPA, KindScaledObject)
}

// objectMeta is what is read of an object's metadata.
type objectMeta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	Labels          map[string]string `json:"labels"`
	Annotations     map[string]string `json:"annotations"`
	Finalizers      []string          `json:"finalizers"`
	OwnerReferences []struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Name       string `json:"name"`
		UID        string `json:"uid"`
		Controller *bool  `json:"controller"`
		Blocks     *bool  `json:"blockOwnerDeletion"`
	} `json:"ownerReferences"`
}

// newResult starts a result with the name and the target of the original.
func newResult(kind string, m *objectMeta, target v1alpha1.CrossVersionObjectReference) *Result {
	r := &Result{Kind: kind, Name: m.Name, Object: &v1alpha1.GPUAutoscaler{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUAutoscaler"},
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace},
	}}
	r.Object.Spec.ScaleTargetRef = target
	return r
}

// addPeerMetric adds a metric of the simulated original, if the simulated service has it.
func (r *Result) addPeerMetric(m contender.HPAMetric, field string) {
	if err := contender.Simulates(m.Source); err != nil {
		r.unsimulated(field, "%v", err)
		return
	}
	r.Peer.Metrics = append(r.Peer.Metrics, m)
}
