// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/promql/adapter"
)

// recordingRules is what is read of a PrometheusRule, or of a file of Prometheus.
type recordingRules struct {
	Spec   ruleGroups `json:"spec"`
	Groups []struct {
		Rules []recordingRule `json:"rules"`
	} `json:"groups"`
}

type ruleGroups struct {
	Groups []struct {
		Rules []recordingRule `json:"rules"`
	} `json:"groups"`
}

type recordingRule struct {
	Record string `json:"record"`
	Alert  string `json:"alert"`
	Expr   any    `json:"expr"` // a text, or a number
}

// Recorded returns the expressions of the recording rules among some documents, by the names of
// their series, and those of the alerts.
func Recorded(docs []Document) (recorded, alerts map[string]string, err error) {
	recorded, alerts = map[string]string{}, map[string]string{}
	for _, d := range docs {
		if d.Kind != KindPrometheusRule {
			continue
		}
		var r recordingRules
		if err := yaml.Unmarshal(d.Text, &r); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", KindPrometheusRule, err)
		}
		for _, g := range append(r.Spec.Groups, r.Groups...) {
			for _, x := range g.Rules {
				if x.Record != "" {
					recorded[x.Record] = fmt.Sprint(x.Expr)
				}
				if x.Alert != "" {
					alerts[x.Alert] = fmt.Sprint(x.Expr)
				}
			}
		}
	}
	return recorded, alerts, nil
}

// ReadOptions reads prometheus-adapter's file. It may have PrometheusRules beside it, separated by ---.
func ReadOptions(file string, b []byte) (o Options, err error) {
	config, o, err := splitConfig(file, b)
	if err != nil || config == nil && o.hasRules() {
		return o, err
	}
	o.Rules, err = adapter.Load(config, adapter.Unchecked{})
	return o, err
}

func (o *Options) hasRules() bool { return len(o.Recorded)+len(o.Alerts) > 0 }

// splitConfig separates prometheus-adapter's file from the rules of Prometheus.
func splitConfig(file string, b []byte) (config []byte, o Options, err error) {
	docs, err := Split(file, b)
	if err != nil {
		return nil, o, err
	}
	if o.Recorded, o.Alerts, err = Recorded(docs); err != nil || !o.hasRules() {
		return b, o, err
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(b)))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return config, o, nil
		}
		if err != nil {
			return nil, o, fmt.Errorf("%s: %w", file, err)
		}
		rules, err := Split(file, doc)
		if err != nil {
			return nil, o, err
		}
		found, alerts, err := Recorded(rules)
		if err != nil {
			return nil, o, err
		}
		if len(found)+len(alerts) == 0 && len(bytes.TrimSpace(doc)) > 0 {
			config = doc
		}
	}
}

// Add adds the rules of other documents, and returns how many they are.
func (o *Options) Add(docs []Document) (n int, err error) {
	recorded, alerts, err := Recorded(docs)
	if err != nil {
		return 0, err
	}
	// The maps may be those of other Options.
	o.Recorded, o.Alerts = merge(o.Recorded, recorded), merge(o.Alerts, alerts)
	return len(recorded) + len(alerts), nil
}

func merge(a, b map[string]string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}
