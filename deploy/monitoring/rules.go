// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v3"
)

// severity says who has to act when.
type severity string

const (
	critical severity = "critical" // now: GPUs or scaling have stopped
	warning  severity = "warning"  // today
	info     severity = "info"     // when somebody looks: often an application's own fault
)

// ruleFile is a file of rule groups, as Prometheus reads it.
type ruleFile struct {
	name   string
	groups []group
}

type group struct {
	name   string
	alerts []alert
}

// alert is one alerting rule. Its texts are Prometheus's templates.
type alert struct {
	name        string
	expr        string
	hold        string // for: how long the expression must hold; empty: not at all
	severity    severity
	summary     string
	description string
	runbook     string // the page below docs/runbooks, without .md
}

func ruleFiles() []ruleFile {
	return []ruleFile{
		{"gpu", []group{{"gpupilot-gpu-errors", append(lostAlerts(), errorAlerts()...)}, {"gpupilot-gpu-use", useAlerts()}}},
		{"agent", []group{{"gpupilot-agent", agentAlerts()}}},
		{"autoscaler", []group{{"gpupilot-autoscaler", autoscalerAlerts()}, {"gpupilot-controller", controllerAlerts()}}},
	}
}

// runbooks is where the pages of alerts are read.
const runbooks = "https://github.com/gpupilot/gpupilot/blob/main/docs/runbooks/"

// The form of a file: yaml keeps the order of fields.
type (
	yamlFile struct {
		Groups []yamlGroup `yaml:"groups"`
	}
	yamlGroup struct {
		Name  string     `yaml:"name"`
		Rules []yamlRule `yaml:"rules"`
	}
	yamlRule struct {
		Alert       string          `yaml:"alert"`
		Expr        string          `yaml:"expr"`
		For         string          `yaml:"for,omitempty"`
		Labels      yamlLabels      `yaml:"labels"`
		Annotations yamlAnnotations `yaml:"annotations"`
	}
	yamlLabels struct {
		Severity severity `yaml:"severity"`
	}
	yamlAnnotations struct {
		Summary     string `yaml:"summary"`
		Description string `yaml:"description"`
		RunbookURL  string `yaml:"runbook_url"`
	}
)

const ruleHeader = `# SPDX-License-Identifier: Apache-2.0
#
# Written by: cd deploy/monitoring && go run .
# For rule_files of a prometheus.yml as it is; the chart makes a PrometheusRule of it.
`

func (f *ruleFile) render() ([]byte, error) {
	var file yamlFile
	for _, g := range f.groups {
		out := yamlGroup{Name: g.name}
		for _, a := range g.alerts {
			out.Rules = append(out.Rules, yamlRule{
				Alert: a.name, Expr: strings.TrimSpace(a.expr), For: a.hold, Labels: yamlLabels{a.severity},
				Annotations: yamlAnnotations{a.summary, a.description, runbooks + a.runbook + ".md"},
			})
		}
		file.Groups = append(file.Groups, out)
	}
	b := bytes.NewBufferString(ruleHeader)
	e := yaml.NewEncoder(b)
	e.SetIndent(2)
	if err := e.Encode(file); err != nil {
		return nil, err
	}
	return b.Bytes(), e.Close()
}
