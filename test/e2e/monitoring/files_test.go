// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// chart is the folder of the dashboards and the rules.
const chart = "../../../deploy/chart"

// panelQuery is one query of a panel.
type panelQuery struct {
	dashboard, panel string
	expr             string
}

func (q *panelQuery) String() string { return q.dashboard + ": " + q.panel }

// dashboardFile is what a test needs of a dashboard.
type dashboardFile struct {
	Title      string
	Panels     []panelFile
	Templating struct {
		List []struct{ Name, Type, Query string }
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
}

type panelFile struct {
	Title   string
	Targets []struct{ Expr string }
	Panels  []panelFile
}

// panelQueries reads the queries of all panels, as they are in the files.
func panelQueries() (out []panelQuery, err error) {
	files, err := filepath.Glob(filepath.Join(chart, "dashboards", "*.json"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%d dashboards (%w)", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var d dashboardFile
		if err := json.Unmarshal(b, &d); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".json")
		for _, v := range d.Templating.List {
			if v.Type == "query" {
				out = append(out, panelQuery{name, "variable " + v.Name, variableQuery(v.Query)})
			}
		}
		for _, a := range d.Annotations.List {
			out = append(out, panelQuery{name, "annotation " + a.Name, a.Expr})
		}
		out = append(out, queriesOf(name, d.Panels)...)
	}
	return out, nil
}

func queriesOf(dashboard string, panels []panelFile) (out []panelQuery) {
	for _, p := range panels {
		for _, t := range p.Targets {
			out = append(out, panelQuery{dashboard, p.Title, t.Expr})
		}
		out = append(out, queriesOf(dashboard, p.Panels)...)
	}
	return out
}

// variableQuery is the PromQL of label_values(QUERY, LABEL) and of query_result(QUERY).
// The label cluster is there only where a Prometheus adds it: its query has to find the
// series alone.
func variableQuery(v string) string {
	if inner, ok := strings.CutPrefix(v, "query_result("); ok {
		return strings.TrimSuffix(inner, ")")
	}
	inner := strings.TrimSuffix(strings.TrimPrefix(v, "label_values("), ")")
	i := strings.LastIndex(inner, ", ")
	query, label := inner[:i], inner[i+2:]
	if label == "cluster" {
		return query
	}
	return fmt.Sprintf(`count by (%s) (%s) and on (%[1]s) label_replace(%[2]s, %[1]q, "$1", %[1]q, "(.+)")`, label, query)
}

// chosen replaces Grafana's variables as Grafana does; those that are not given are All.
func chosen(expr string, variables map[string]string) string {
	all := map[string]string{
		"cluster": ".*", "job": ".*", "node": ".*", "gpu": ".*", "namespace": ".*", "name": ".*",
		"__rate_interval": "5s", "__range": "1m",
	}
	for name, value := range variables {
		all[name] = value
	}
	var pairs []string
	for _, name := range []string{"__rate_interval", "__range", "cluster", "job", "node", "gpu", "namespace", "name"} {
		pairs = append(pairs, "$"+name, all[name])
	}
	return strings.NewReplacer(pairs...).Replace(expr)
}

// rule is one alerting rule.
type rule struct {
	Alert       string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

// ruleFiles are the rules by the path of their file.
func ruleFiles() (map[string][]rule, error) {
	files, err := filepath.Glob(filepath.Join(chart, "rules", "*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("%d files of rules (%w)", len(files), err)
	}
	out := map[string][]rule{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var content struct{ Groups []struct{ Rules []rule } }
		if err := yaml.Unmarshal(b, &content); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, g := range content.Groups {
			out[file] = append(out[file], g.Rules...)
		}
	}
	return out, nil
}
