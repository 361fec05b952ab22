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
	levels  levels // none: no value is better than another one
	link    link   // of each value
	queries []query
	columns []column // of a table, in order; others are hidden
}

// levels are the colours of values: the first one's below the second one's from, and so on.
type levels []level

type level struct {
	from  float64 // of the first one: any
	color string
}

const (
	fine    = "green"
	noticed = "yellow"
	bad     = "orange"
	worst   = "red"
)

// upTo are levels of what is better the lower it is.
func upTo(fromBad, fromWorst float64) levels {
	return levels{{0, fine}, {fromBad, bad}, {fromWorst, worst}}
}

// none are levels of what must not be there.
var none = levels{{0, fine}, {1, worst}}

// some are levels of what should not be there for long.
var some = levels{{0, fine}, {1, bad}}

func (l levels) thresholds() *dashboard.ThresholdsConfigBuilder {
	steps := make([]dashboard.Threshold, len(l))
	for i, x := range l {
		steps[i] = dashboard.Threshold{Color: x.color}
		if i > 0 {
			steps[i].Value = &x.from
		}
	}
	return dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(steps)
}

// link is where a value leads. The address has Grafana's variables.
type link struct{ title, url string }

// inTime keeps the time range and the data source of a dashboard in a link to another one.
const inTime = "&${__url_time_range}&${datasource:queryparam}"

func (l link) dataLinks() []cog.Builder[dashboard.DashboardLink] {
	if l.url == "" {
		return nil
	}
	return []cog.Builder[dashboard.DashboardLink]{dashboard.NewDashboardLinkBuilder(l.title).Type(dashboard.DashboardLinkTypeLink).Url(l.url)}
}

var (
	// toNode leads from a series of a node to its GPUs.
	toNode = link{"GPUs of the node", "/d/gpupilot-node?var-node=${__field.labels.hostname}${__field.labels.Hostname}" + inTime}
	// toRunbooks leads to the alerts and what to do.
	toRunbooks = link{"Runbooks", runbooks + "README.md"}
)

// query is one target. Legends are Grafana's, such as {{gpu}}.
type query struct{ expr, legend string }

// column renames a label, or the value of a query, of a table.
type column struct {
	from, to string // from: a label, or "Value #A" of the first query
	unit     string
	levels   levels
	link     link
}

// overrides are what a column has of its own.
func (c *column) overrides() (out []dashboard.DynamicConfigValue) {
	if c.unit != "" {
		out = append(out, dashboard.DynamicConfigValue{Id: "unit", Value: c.unit})
	}
	if len(c.levels) > 0 {
		out = append(out, dashboard.DynamicConfigValue{Id: "thresholds", Value: c.levels.thresholds()},
			dashboard.DynamicConfigValue{Id: "custom.cellOptions", Value: map[string]any{"type": "color-text"}})
	}
	if c.link.url != "" {
		out = append(out, dashboard.DynamicConfigValue{Id: "links", Value: []map[string]any{{"title": c.link.title, "url": c.link.url}}})
	}
	return out
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
		Unit(p.unit).Height(8).Span(p.columnsWide(12)).ShowPoints(common.VisibilityModeNever).LineWidth(1).FillOpacity(10).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeTable).
			Placement(common.LegendPlacementRight).Calcs([]string{"lastNotNull", "max"})).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending)).
		Targets(p.targets())
	if len(p.levels) == 0 || p.levels[0].color == fine { // else the worst is below 0
		b.Min(0)
	}
	if p.full {
		b.Max(1)
	}
	if len(p.levels) > 0 {
		b.Thresholds(p.levels.thresholds()).ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeDashed))
	}
	if l := p.link.dataLinks(); l != nil {
		b.DataLinks(l)
	}
	if p.kind == areas {
		b.FillOpacity(60).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
	}
	return b
}

func (p panel) stat() cog.Builder[dashboard.Panel] {
	b := stat.NewPanelBuilder().Title(p.title).Description(p.about).Datasource(prometheusSource()).
		Unit(p.unit).Height(4).Span(p.columnsWide(4)).GraphMode(common.BigValueGraphModeNone).ColorMode(common.BigValueColorModeNone).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).Targets(p.targets())
	if len(p.levels) > 0 {
		b.Thresholds(p.levels.thresholds()).ColorMode(common.BigValueColorModeValue)
	}
	if l := p.link.dataLinks(); l != nil {
		b.DataLinks(l)
	}
	return b
}

func (p panel) timeline() cog.Builder[dashboard.Panel] {
	b := statetimeline.NewPanelBuilder().Title(p.title).Description(p.about).Datasource(prometheusSource()).
		Unit(p.unit).Height(8).Span(p.columnsWide(12)).ShowValue(common.VisibilityModeNever).MergeValues(true).Targets(p.targets())
	if len(p.levels) > 0 {
		b.Thresholds(p.levels.thresholds()).ColorScheme(dashboard.NewFieldColorBuilder().Mode(dashboard.FieldColorModeIdThresholds))
	}
	if l := p.link.dataLinks(); l != nil {
		b.DataLinks(l)
	}
	return b
}

// table joins the queries by their labels, and shows the columns that are named.
func (p panel) table() cog.Builder[dashboard.Panel] {
	index, names, keep := map[string]any{}, map[string]any{}, []string{}
	b := table.NewPanelBuilder().Title(p.title).Description(p.about).Datasource(prometheusSource()).
		Height(8).Span(p.columnsWide(12)).Filterable(true).Targets(p.targets())
	for i, c := range p.columns {
		index[c.from], names[c.from] = i, c.to
		keep = append(keep, c.from)
		if o := c.overrides(); len(o) > 0 {
			b.OverrideByName(c.to, o)
		}
	}
	return b.
		WithTransformation(dashboard.DataTransformerConfig{Id: "merge", Options: map[string]any{}}).
		WithTransformation(dashboard.DataTransformerConfig{Id: "filterFieldsByName", Options: map[string]any{"include": map[string]any{"names": keep}}}).
		WithTransformation(dashboard.DataTransformerConfig{Id: "organize", Options: map[string]any{"indexByName": index, "renameByName": names}})
}
