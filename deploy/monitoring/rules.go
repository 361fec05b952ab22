// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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
	runbook     string // the page below docs/runbooks, and its heading: gpu.md#idle-gpus
}

func ruleFiles() []ruleFile {
	return []ruleFile{
		{"gpu", []group{{"gpupilot-gpu-errors", append(lostAlerts(), errorAlerts()...)}, {"gpupilot-gpu-use", useAlerts()}}},
		{"agent", []group{{"gpupilot-agent", agentAlerts()}}},
		{"autoscaler", []group{{"gpupilot-autoscaler", autoscalerAlerts()}, {"gpupilot-idle", idleAlerts()}, {"gpupilot-controller", controllerAlerts()}}},
	}
}

// exporterAlerts are those of a GPUExporter's PrometheusRule: of agents, and of GPUs that cannot be read.
func exporterAlerts() []alert { return append(agentAlerts(), lostAlerts()...) }

// documentation is where the pages are read, and runbooks where those of alerts are.
const (
	documentation = "https://github.com/gpupilot/gpupilot/blob/main/docs/"
	runbooks      = documentation + "runbooks/"
)

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
		Alert       string          `yaml:"alert" json:"alert"`
		Expr        string          `yaml:"expr" json:"expr"`
		For         string          `yaml:"for,omitempty" json:"for,omitempty"`
		Labels      yamlLabels      `yaml:"labels" json:"labels"`
		Annotations yamlAnnotations `yaml:"annotations" json:"annotations"`
	}
	yamlLabels struct {
		Severity severity `yaml:"severity" json:"severity"`
	}
	yamlAnnotations struct {
		Summary     string `yaml:"summary" json:"summary"`
		Description string `yaml:"description" json:"description"`
		RunbookURL  string `yaml:"runbook_url" json:"runbook_url"`
	}
)

const ruleHeader = `# SPDX-License-Identifier: Apache-2.0
#
# Written by: cd deploy/monitoring && go run .
# For rule_files of a prometheus.yml as it is; the chart makes a PrometheusRule of it.
`

func (a *alert) rule() yamlRule {
	return yamlRule{
		Alert: a.name, Expr: strings.TrimSpace(a.expr), For: a.hold, Labels: yamlLabels{a.severity},
		Annotations: yamlAnnotations{a.summary, a.description, runbooks + a.runbook},
	}
}

func (f *ruleFile) render() ([]byte, error) {
	var file yamlFile
	for _, g := range f.groups {
		out := yamlGroup{Name: g.name}
		for _, a := range g.alerts {
			out.Rules = append(out.Rules, a.rule())
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

// rulesJSON is a list of rules, as the controller reads it.
func rulesJSON(alerts []alert) ([]byte, error) {
	var rules []yamlRule
	for _, a := range alerts {
		rules = append(rules, a.rule())
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(rules)
	return b.Bytes(), err
}

// policyRule begins a line of a policy that has a rule, as CEL.
const policyRule = "      {'alert': "

// withRules replaces a policy's rules.
func withRules(policy []byte, alerts []alert) ([]byte, error) {
	var out strings.Builder
	done := false
	for line := range strings.Lines(string(policy)) {
		if !strings.HasPrefix(line, policyRule) {
			out.WriteString(line)
			continue
		}
		for i := 0; i < len(alerts) && !done; i++ {
			r, comma := alerts[i].rule(), ","
			if i == len(alerts)-1 {
				comma = ""
			}
			hold := ""
			if r.For != "" {
				hold = ", 'for': dyn(" + cel(r.For) + ")"
			}
			fmt.Fprintf(&out, "%sdyn(%s), 'expr': dyn(%s)%s, 'labels': dyn({'severity': %s}), 'annotations': dyn({'summary': %s, 'description': %s, 'runbook_url': %s})}%s\n",
				policyRule, cel(r.Alert), cel(r.Expr), hold, cel(string(r.Labels.Severity)), cel(r.Annotations.Summary), cel(r.Annotations.Description), cel(r.Annotations.RunbookURL), comma)
		}
		done = true
	}
	if !done {
		return nil, errors.New("no rule is there")
	}
	return []byte(out.String()), nil
}

// cel is a string of CEL. Helm's templates begin with {{.
func cel(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`, "{{", "{' + '{").Replace(s) + "'"
}
