// SPDX-License-Identifier: Apache-2.0

package adapter

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Config is prometheus-adapter's configuration file.
type Config struct {
	Rules         []DiscoveryRule `json:"rules,omitempty"`
	ExternalRules []DiscoveryRule `json:"externalRules,omitempty"`
	ResourceRules *ResourceRules  `json:"resourceRules,omitempty"`
}

// DiscoveryRule turns series into metrics of the custom or external metrics API.
type DiscoveryRule struct {
	// SeriesQuery is a PromQL selector of the series that the rule is about.
	SeriesQuery string `json:"seriesQuery"`
	// SeriesFilters are conditions for the names of the series.
	SeriesFilters []RegexFilter `json:"seriesFilters,omitempty"`
	// Resources maps labels to Kubernetes resources.
	Resources ResourceMapping `json:"resources,omitempty"`
	// Name maps the names of series to names of metrics.
	Name NameMapping `json:"name,omitempty"`
	// MetricsQuery is a Go template of a PromQL query, with the delimiters << and >>.
	MetricsQuery string `json:"metricsQuery,omitempty"`
}

// RegexFilter is one condition: exactly one of the fields is set. The expressions are
// not anchored.
type RegexFilter struct {
	Is    string `json:"is,omitempty"`
	IsNot string `json:"isNot,omitempty"`
}

// ResourceMapping maps labels to Kubernetes resources.
type ResourceMapping struct {
	// Template is a Go template of a label's name, with .Group and .Resource.
	Template string `json:"template,omitempty"`
	// Overrides are the resources of some labels.
	Overrides map[string]GroupResource `json:"overrides,omitempty"`
	// Namespaced is false if an external metric is not limited to the namespace of its
	// request. The default is true.
	Namespaced *bool `json:"namespaced,omitempty"`
}

// GroupResource is a resource, in the singular or the plural.
type GroupResource struct {
	Group    string `json:"group,omitempty"`
	Resource string `json:"resource"`
}

// NameMapping maps the names of series to names of metrics.
type NameMapping struct {
	// Matches is a regular expression; empty: .*
	Matches string `json:"matches,omitempty"`
	// As is the metric's name, in which $1 is the first group of Matches.
	As string `json:"as,omitempty"`
}

// ResourceRules are the rules of metrics.k8s.io, which GPUPilot does not serve.
type ResourceRules struct {
	CPU    ResourceRule `json:"cpu"`
	Memory ResourceRule `json:"memory"`
	Window string       `json:"window,omitempty"`
}

// ResourceRule is the rule of one resource, such as cpu.
type ResourceRule struct {
	ContainerQuery string          `json:"containerQuery,omitempty"`
	NodeQuery      string          `json:"nodeQuery,omitempty"`
	Resources      ResourceMapping `json:"resources,omitempty"`
	ContainerLabel string          `json:"containerLabel,omitempty"`
}

// The bounds of one file.
const (
	maxFile  = 4 << 20 // bytes
	maxRules = 1000    // of rules and of externalRules
	maxText  = 8 << 10 // bytes of a query or of a regular expression
)

// Parse reads a configuration file: the file itself, the ConfigMap that holds it, or
// the values of the Helm chart. Unknown fields are warnings, because prometheus-adapter
// ignores them.
func Parse(b []byte) (c Config, warnings []string, err error) {
	if len(b) > maxFile {
		return Config{}, nil, fmt.Errorf("the file has %d bytes; at most %d are allowed", len(b), maxFile)
	}
	if b, err = configOf(b); err != nil {
		return Config{}, nil, err
	}
	text, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return Config{}, nil, err
	}
	unknown, err := json.UnmarshalStrict(text, &c)
	if err != nil {
		return Config{}, nil, err
	}
	for _, u := range unknown {
		warnings = append(warnings, u.Error()+": it is ignored, as by prometheus-adapter")
	}
	for path, n := range map[string]int{"rules": len(c.Rules), "externalRules": len(c.ExternalRules)} {
		if n > maxRules {
			return Config{}, nil, field.TooMany(field.NewPath(path), n, maxRules)
		}
	}
	if len(c.Rules) == 0 && len(c.ExternalRules) == 0 && c.ResourceRules == nil {
		return Config{}, nil, errors.New("the file has no rules, externalRules or resourceRules: give prometheus-adapter's config.yaml, " +
			"the ConfigMap that holds it, or the values of its Helm chart")
	}
	return c, warnings, nil
}

// container is what a configuration can be in: a ConfigMap, or the values of the chart.
type container struct {
	Kind  string            `json:"kind"`
	Data  map[string]string `json:"data"`
	Rules *chartRules       `json:"rules"`
}

// chartRules is the value rules of the prometheus-community chart.
type chartRules struct {
	Default  *bool           `json:"default"`
	Existing string          `json:"existing"`
	Custom   []DiscoveryRule `json:"custom"`
	External []DiscoveryRule `json:"external"`
	Resource *ResourceRules  `json:"resource"`
}

// configOf returns the configuration that a ConfigMap or the chart's values hold, else
// the text itself.
func configOf(b []byte) ([]byte, error) {
	var head struct {
		Kind  string `json:"kind"`
		Rules any    `json:"rules"`
	}
	if err := yaml.Unmarshal(b, &head); err != nil {
		return nil, err
	}
	_, isChart := head.Rules.(map[string]any)
	if head.Kind == "" && !isChart {
		return b, nil
	}
	var c container
	switch {
	case head.Kind == "ConfigMap":
		if err := yaml.Unmarshal(b, &c); err != nil {
			return nil, err
		}
		return configInData(c.Data)
	case head.Kind != "":
		return nil, fmt.Errorf("kind %q is not ConfigMap: give prometheus-adapter's config.yaml or the ConfigMap that holds it", head.Kind)
	}
	if err := yaml.Unmarshal(b, &c); err != nil {
		return nil, err
	}
	if c.Rules.Existing != "" {
		return nil, fmt.Errorf("rules.existing: the rules are in the ConfigMap %q: give that", c.Rules.Existing)
	}
	if c.Rules.Default == nil || *c.Rules.Default {
		return nil, errors.New("rules.default: the chart adds its default rules to these values. Give the ConfigMap that it installs instead: " +
			"kubectl get configmap -n NAMESPACE RELEASE-prometheus-adapter -o yaml")
	}
	return yaml.Marshal(Config{Rules: c.Rules.Custom, ExternalRules: c.Rules.External, ResourceRules: c.Rules.Resource})
}

// configInData returns the only YAML file in a ConfigMap.
func configInData(data map[string]string) ([]byte, error) {
	if text, ok := data["config.yaml"]; ok {
		return []byte(text), nil
	}
	var keys []string
	for key := range data {
		if strings.HasSuffix(key, ".yaml") || strings.HasSuffix(key, ".yml") {
			keys = append(keys, key)
		}
	}
	if len(keys) != 1 {
		return nil, errors.New("data: the ConfigMap has no config.yaml")
	}
	return []byte(data[keys[0]]), nil
}
