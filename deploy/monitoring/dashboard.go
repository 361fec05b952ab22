// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// board is one dashboard: rows of panels, below variables.
type board struct {
	name        string // of the file, and the uid after gpupilot-
	title       string
	description string
	variables   []variable
	marks       []mark
	rows        []row
}

// mark is what is marked in the panels over time: Grafana calls it an annotation.
type mark struct {
	name, expr, title, text, color string
	exact                          bool // the values are the times, in milliseconds
}

// changes marks each GPUAutoscaler's last change of replicas, as long as it is the last one, and overrides.
func changes(matchers string) []mark {
	return []mark{
		{"Replicas changed", most(perWorkload+", direction, rule", "gpupilot_autoscaler_last_scale_timestamp_seconds"+matchers) + " * 1000", "{{namespace}}/{{name}} {{direction}}", "{{rule}}", "blue", true},
		{"Override", most(perWorkload, strings.Replace("gpupilot_autoscaler_condition"+matchers, "}", `,type="Overridden"}`, 1)) + " == 1", "{{namespace}}/{{name}}", "an override holds its replicas", "purple", false},
	}
}

// list is the marks as Grafana has them. Its types lack what only Prometheus's annotations have.
func list(marks []mark) (out []map[string]any) {
	for _, m := range marks {
		out = append(out, map[string]any{
			"name": m.name, "expr": m.expr, "titleFormat": m.title, "textFormat": m.text, "iconColor": m.color, "useValueForTime": m.exact,
			"datasource": prometheusSource(), "enable": true, "step": "30s",
		})
	}
	return out
}

type row struct {
	title     string
	collapsed bool
	panels    []panel
}

func dashboards() []board { return []board{fleet(), node(), workload()} }

// The Grafana that the JSON is for: the first with the state of these panels' options.
const (
	grafanaVersion = "10.0.0"
	inputName      = "DS_PROMETHEUS"
)

// prometheusSource is what every panel asks: the choice of the variable datasource.
func prometheusSource() common.DataSourceRef {
	return common.DataSourceRef{Type: new("prometheus"), Uid: new("${datasource}")}
}

func (b *board) build() (dashboard.Dashboard, error) {
	d := dashboard.NewDashboardBuilder(b.title).Uid("gpupilot-"+b.name).Description(b.description).
		Tags([]string{"gpupilot", "gpu", "nvidia"}).Editable().Timezone("browser").
		Time("now-1h", "now").Refresh("30s").Tooltip(dashboard.DashboardCursorSyncCrosshair).
		Link(dashboard.NewDashboardLinkBuilder("GPUPilot").Type(dashboard.DashboardLinkTypeDashboards).
			Tags([]string{"gpupilot"}).AsDropdown(true).IncludeVars(true).KeepTime(true)).
		Variables(b.variables)
	for _, r := range b.rows {
		add := dashboard.NewRowBuilder(r.title).Collapsed(r.collapsed)
		if !r.collapsed {
			d.WithRow(add)
		}
		for _, p := range r.panels {
			if r.collapsed {
				add.WithPanel(p.build())
			} else {
				d.WithPanel(p.build())
			}
		}
		if r.collapsed {
			d.WithRow(add)
		}
	}
	return d.Build()
}

// export is the dashboard as Grafana exports it for others: with __inputs, which an
// import asks for, and __requires.
func (b *board) export() ([]byte, error) {
	built, err := b.build()
	if err != nil {
		return nil, err
	}
	var id uint32
	kinds := map[string]bool{}
	each(&built, func(p *dashboard.Panel) {
		id++
		p.Id = new(id)
		kinds[p.Type] = true
	})
	raw, err := json.Marshal(built)
	if err != nil {
		return nil, err
	}
	var fields map[string]any
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, err
	}
	fields["__inputs"] = []map[string]string{{
		"name": inputName, "label": "Prometheus", "description": "Prometheus, or what answers its API, with the metrics of GPUs",
		"type": "datasource", "pluginId": "prometheus", "pluginName": "Prometheus",
	}}
	requires := []map[string]string{
		{"type": "grafana", "id": "grafana", "name": "Grafana", "version": grafanaVersion},
		{"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"},
	}
	for _, k := range panelKinds {
		if kinds[k.plugin] {
			requires = append(requires, map[string]string{"type": "panel", "id": k.plugin, "name": k.name, "version": ""})
		}
	}
	fields["__requires"] = requires
	fields["annotations"] = map[string]any{"list": list(b.marks)}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false) // queries have > and &
	e.SetIndent("", "  ")
	if err := e.Encode(fields); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return out.Bytes(), nil
}

// each calls f for every panel, rows' panels included.
func each(d *dashboard.Dashboard, f func(*dashboard.Panel)) {
	for i := range d.Panels {
		switch p := d.Panels[i]; {
		case p.Panel != nil:
			f(p.Panel)
		case p.RowPanel != nil:
			for j := range p.RowPanel.Panels {
				f(&p.RowPanel.Panels[j])
			}
		}
	}
}

// datasource is the variable for the Prometheus. An import sets it to the answer to
// __inputs; a provisioned dashboard, which has no answer, to the first Prometheus.
func datasource() cog.Builder[dashboard.VariableModel] {
	placeholder := "${" + inputName + "}"
	return dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus").
		Current(dashboard.VariableOption{Text: text(placeholder), Value: text(placeholder)})
}

func text(s string) dashboard.StringOrArrayOfString {
	return dashboard.StringOrArrayOfString{String: new(s)}
}

// choice is a variable with some of the values that a query finds, all of them at first.
func choice(name, label, query, regex string) cog.Builder[dashboard.VariableModel] {
	v := dashboard.NewQueryVariableBuilder(name).Label(label).Datasource(prometheusSource()).
		Query(dashboard.StringOrMap{String: new(query)}).Definition(query).
		Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortNaturalAsc).
		Multi(true).IncludeAll(true).AllValue(".*").
		Current(dashboard.VariableOption{Text: text("All"), Value: text("$__all")})
	if regex != "" {
		v.Regex(regex)
	}
	return v
}
