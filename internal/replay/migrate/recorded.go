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
	Expr   any    `json:"expr"` // a text, or a number
}

// Recorded returns the expressions of the recording rules among some documents, by the names of
// their series.
func Recorded(docs []Document) (map[string]string, error) {
	out := map[string]string{}
	for _, d := range docs {
		if d.Kind != KindPrometheusRule {
			continue
		}
		var r recordingRules
		if err := yaml.Unmarshal(d.Text, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", KindPrometheusRule, err)
		}
		for _, g := range append(r.Spec.Groups, r.Groups...) {
			for _, x := range g.Rules {
				if x.Record != "" {
					out[x.Record] = fmt.Sprint(x.Expr)
				}
			}
		}
	}
	return out, nil
}

// ReadOptions reads prometheus-adapter's file. It may have PrometheusRules beside it, separated by ---.
func ReadOptions(file string, b []byte) (o Options, err error) {
	config, o, err := splitConfig(file, b)
	if err != nil || config == nil && len(o.Recorded) > 0 {
		return o, err
	}
	o.Rules, err = adapter.Load(config, adapter.Unchecked{})
	return o, err
}

// splitConfig separates prometheus-adapter's file from recording rules.
func splitConfig(file string, b []byte) (config []byte, o Options, err error) {
	docs, err := Split(file, b)
	if err != nil {
		return nil, o, err
	}
	if o.Recorded, err = Recorded(docs); err != nil || len(o.Recorded) == 0 {
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
		found, err := Recorded(rules)
		if err != nil {
			return nil, o, err
		}
		if len(found) == 0 && len(bytes.TrimSpace(doc)) > 0 {
			config = doc
		}
	}
}

// Add adds the recording rules of other documents.
func (o *Options) Add(docs []Document) error {
	found, err := Recorded(docs)
	if err != nil || len(found) == 0 {
		return err
	}
	all := maps.Clone(o.Recorded)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, found)
	o.Recorded = all
	return nil
}
