// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

// kind is how a panel shows its queries.
type kind int

const (
	lines  kind = iota // over time
	areas              // over time, stacked
	single             // one number now
	rows               // a table of now
	states             // over time, one band a series
)

// panelKinds are Grafana's names of the panels' plugins.
var panelKinds = []struct{ plugin, name string }{
	{"stat", "Stat"}, {"state-timeline", "State timeline"}, {"table", "Table"}, {"timeseries", "Time series"},
}

// panel is one panel. Widths are of Grafana's 24 columns.
type panel struct {
	kind    kind
	title   string
	about   string // its description
	unit    string // Grafana's, such as percentunit; see unitOf
	width   uint32 // 0: 12 of 24 columns, single: 4
	full    bool   // the axis goes to 1, for shares
	queries []query
	columns []column // of a table, in order; others are hidden
}

// query is one target. Legends are Grafana's, such as {{gpu}}.
type query struct{ expr, legend string }

// column renames a label, or the value of a query, of a table.
type column struct {
	from, to string // from: a label, or "Value #A" of the first query
	unit     string
}

func (p panel) build() cog.Builder[dashboard.Panel] {
	switch p.kind {
	case single:
		return p.stat()
	case rows:
		return p.table()
	case states:
		return p.timeline()
	default:
		return p.series()
	}
}

// targets are the queries, as A, B, …
func (p panel) targets() (out []cog.Builder[variants.Dataquery]) {
	for i, q := range p.queries {
		t := prometheus.NewDataqueryBuilder().Expr(q.expr).RefId(string(rune('A' + i))).Datasource(prometheusSource())
		switch p.kind {
		case rows:
			t.Instant().Format(prometheus.PromQueryFormatTable)
		case single:
			t.Instant()
		default:
			t.Range().LegendFormat(q.legend)
		}
		out = append(out, t)
	}
	return out
}

func (p panel) columnsWide(otherwise uint32) uint32 {
	if p.width > 0 {
		return p.width
	}
	return otherwise
}

func (p panel) series() cog.Builder[dashboard.Panel] {
	b := timeseries.NewPanelBuilder().Title(p.title).Description(p.about).Datasource(prometheusSource()).
		Unit(p.unit).Height(8).Span(p.columnsWide(12)).Min(0).ShowPoints(common.VisibilityModeNever).LineWidth(1).FillOpacity(10).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeTable).
			Placement(common.LegendPlacementRight).Calcs([]string{"lastNotNull", "max"})).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Targets(p.targets())
	if p.full {
		b.Max(1)
	}
	if p.kind == areas {
		b.FillOpacity(60).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
	}
	return b
}

func (p panel) stat() cog.Builder[dashboard.Panel] {
	return stat.NewPanelBuilder().Title(p.title).Description(p.about).Datasource(prometheusSource()).
		Unit(p.unit).Height(4).Span(p.columnsWide(4)).GraphMode(common.BigValueGraphModeNone).ColorMode(common.BigValueColorModeNone).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).Targets(p.targets())
}

func (p panel) timeline() cog.Builder[dashboard.Panel] {
	return statetimeline.NewPanelBuilder().Title(p.title).Description(p.about).Datasource(prometheusSource()).
		Unit(p.unit).Height(8).Span(p.columnsWide(12)).ShowValue(common.VisibilityModeNever).MergeValues(true).Targets(p.targets())
}

// table joins the queries by their labels, and shows the columns that are named.
func (p panel) table() cog.Builder[dashboard.Panel] {
	index, names, keep := map[string]any{}, map[string]any{}, []string{}
	b := table.NewPanelBuilder().Title(p.title).Description(p.about).Datasource(prometheusSource()).
		Height(8).Span(p.columnsWide(12)).Filterable(true).Targets(p.targets())
	for i, c := range p.columns {
		index[c.from], names[c.from] = i, c.to
		keep = append(keep, c.from)
		if c.unit != "" {
			b.OverrideByName(c.to, []dashboard.DynamicConfigValue{{Id: "unit", Value: c.unit}})
		}
	}
	return b.
		WithTransformation(dashboard.DataTransformerConfig{Id: "merge", Options: map[string]any{}}).
		WithTransformation(dashboard.DataTransformerConfig{Id: "filterFieldsByName", Options: map[string]any{"include": map[string]any{"names": keep}}}).
		WithTransformation(dashboard.DataTransformerConfig{Id: "organize", Options: map[string]any{"indexByName": index, "renameByName": names}})
}
