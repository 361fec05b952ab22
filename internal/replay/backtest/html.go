// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	_ "embed"
	"fmt"
	"html"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
)

//go:embed report.html
var page string

// HTML writes a report as one page. The page has no script and loads no other file. It is
// light or dark, as the reader's system is.
func (r *Report) HTML(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"f":       func(digits int, x float64) string { return fmt.Sprintf("%.*f", digits, x) },
		"percent": percent,
		"sees":    classText,
		"verdict": verdictClass,
		"number":  func(digits int, v *float64) string { return number(fmt.Sprintf("%%.%df", digits), v) },
		"cost":    func(c Cell) string { return r.cost(&c) },
		"many":    count,
		"judged":  r.hasPeers,
		"load":    func(c Cell) string { return fmt.Sprintf("%s, %s, start-up %gs", c.Trace, c.Model, c.Startup) },
		"ms":      func(x float64) string { return shortNumber(1000 * x) },
		"price":   r.priceNote,
		"short":   shortNumber,
		"kept":    func(p Promise) string { return p.verdict() },
		"takes":   func(p Promise) string { return p.cost(r.onlyPrice()) },
		"role":    func(a Attainment) string { return a.role() },
		"over":    func(a Attainment) string { return a.cost() },
	}).Parse(page)
	if err != nil {
		return err
	}
	return t.Execute(w, r.htmlData())
}

// verdictClass returns the CSS class of a ratio, as rounded for display. A ratio within
// 0.05 of 1 is level with the front. No ratio has no colour either.
func verdictClass(r *float64) string {
	if r == nil {
		return "level"
	}
	switch ratio := math.Round(100**r) / 100; {
	case ratio < 0.95:
		return "good"
	case ratio <= 1.05:
		return "level"
	case ratio <= 1.3:
		return "fair"
	}
	return "poor"
}

// percent formats a change. Zero has no sign.
func percent(x float64) string {
	if s := fmt.Sprintf("%+.0f %%", 100*x); s != "+0 %" && s != "-0 %" {
		return s
	}
	return "0 %"
}

// classText describes what a class reads.
func classText(c contender.Class) string {
	return map[contender.Class]string{
		contender.OnRequests: "on requests: queue and running", contender.OnGPU: "on GPUs: utilisation and activity",
	}[c]
}

func (r *Report) priceNote(m service.Model) string {
	p, ok := r.Prices.Of(m.GPU)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s at $%.2f a GPU-hour (%s %s)", m.GPU, p.USD, p.Provider, p.Instance)
}

// htmlData is the data of the page.
type htmlData struct {
	*Report
	HasPeers bool
	Priced   bool
	About    []fact
	Charts   []chart
	Requests int
}

// chart is the drawing of one replay.
type chart struct {
	Case     *Case
	Verdicts []Verdict
	Replicas template.HTML
	Missed   template.HTML
	Fronts   []frontChart
	Lines    []legend
}

type frontChart struct {
	Class contender.Class
	SVG   template.HTML
	Dots  []legend
}

type legend struct{ Class, Name, Note string }

func (r *Report) htmlData() htmlData {
	v := htmlData{Report: r, HasPeers: len(r.Peers) > 0, Priced: r.hasPrices()}
	v.About = append(r.facts(), fact{"policies", strings.Join(distinct(r.Cells, func(c *Cell) string { return c.Ours }), ", ")})
	for i := range r.Cases {
		c := &r.Cases[i]
		if len(c.Ours) > 0 {
			v.Requests += c.Ours[0].Requests
		}
		if len(c.Ours) > 0 && c.Ours[0].Minutes != nil {
			v.Charts = append(v.Charts, r.chart(c))
		}
	}
	return v
}

// chartPoints is the most points of a chart. Longer replays show the maximum of several
// minutes.
const chartPoints = 720

func (r *Report) chart(c *Case) chart {
	out := chart{Case: c, Verdicts: r.judge(c)}
	lines := slices.Concat(c.Ours, c.Shown)
	for k := range lines {
		class := lineClass(k, len(c.Ours))
		out.Lines = append(out.Lines, legend{
			class, lines[k].Name,
			fmt.Sprintf("%.2f %% missed, %.1f GPU-hours", lines[k].Violations, lines[k].GPUHours),
		})
	}
	out.Replicas = replicasChart(lines, len(c.Ours))
	out.Missed = missedChart(lines, len(c.Ours))
	for _, class := range []contender.Class{contender.OnRequests, contender.OnGPU} {
		if f := r.frontChart(c, class); f.SVG != "" {
			out.Fronts = append(out.Fronts, f)
		}
	}
	return out
}

// lineClass returns the CSS class of a line. Our policies come first.
func lineClass(k, ours int) string {
	if k < ours {
		return fmt.Sprintf("s%d mine", k%6)
	}
	return fmt.Sprintf("s%d other", k%6)
}

// values returns one number per minute.
func values(minutes []service.Minute, f func(*service.Minute) float64) []float64 {
	out := make([]float64, len(minutes))
	for i := range minutes {
		out[i] = f(&minutes[i])
	}
	return out
}

func replicasChart(lines []Result, ours int) template.HTML {
	need, per := thin(values(lines[0].Minutes, func(p *service.Minute) float64 { return p.Need }), chartPoints)
	step := float64(per) * service.MinuteSeconds / 3600
	most := slices.Max(append(need, 1))
	for k := range lines {
		most = max(most, slices.Max(values(lines[k].Minutes, func(p *service.Minute) float64 { return p.Replicas })))
	}
	p := newPlot(1000, 260, axis{hi: float64(len(need)) * step}, axis{hi: most * 1.05})
	p.axes("hours", "replicas", shortNumber, shortNumber)
	p.area("need", step, need)
	for k := range lines {
		heights, _ := thin(values(lines[k].Minutes, func(p *service.Minute) float64 { return p.Replicas }), chartPoints)
		p.line("line "+lineClass(k, ours), step, heights, true)
	}
	return p.done()
}

func missedChart(lines []Result, ours int) template.HTML {
	share := func(p *service.Minute) float64 {
		if p.Arrived == 0 {
			return 0
		}
		return 100 * float64(p.Violations) / float64(p.Arrived)
	}
	first, per := thin(values(lines[0].Minutes, share), chartPoints)
	step := float64(per) * service.MinuteSeconds / 3600
	p := newPlot(1000, 160, axis{hi: float64(len(first)) * step}, axis{hi: 100, root: true})
	p.axes("hours", "missed %", shortNumber, shortNumber)
	for k := range lines {
		heights, _ := thin(values(lines[k].Minutes, share), chartPoints)
		p.line("line "+lineClass(k, ours), step, heights, true)
	}
	return p.done()
}

// frontChart draws every setting of the peers in a class as a point, with their front, the
// oracles and our policies. It is empty if the peers or our policies have none of the class.
func (r *Report) frontChart(c *Case, class contender.Class) frontChart {
	out := frontChart{Class: class}
	points := slices.DeleteFunc(slices.Clone(c.Peers), func(p Point) bool { return r.class[p.Name] != class })
	if len(points) == 0 || !slices.ContainsFunc(c.Ours, func(o Result) bool { return o.Class == class }) {
		return out
	}
	front := NewFront(points)
	// Settings that cost more than the front's last point and ours are cut off.
	most := front[len(front)-1].GPUHours
	for i := range c.Ours {
		most = max(most, c.Ours[i].GPUHours)
	}
	most *= 1.05
	p := newPlot(480, 300, axis{hi: most}, axis{hi: 100, root: true})
	p.axes("GPU-hours", "requests that missed a limit, %", shortNumber, shortNumber)
	for _, f := range peerFamilies() {
		of := slices.DeleteFunc(slices.Clone(points), func(x Point) bool { return r.family[x.Name] != f.Family })
		for _, x := range of {
			if x.GPUHours <= most {
				p.dot("peer "+string(f.Family), 2.5, &x)
			}
		}
		if len(of) > 0 {
			out.Dots = append(out.Dots, legend{Class: "peer " + string(f.Family), Name: f.Text})
		}
	}
	p.front(front)
	for i := range c.References {
		if o := &c.References[i]; o.Family == contender.OracleSchedule {
			x := pointOf(o)
			p.dot("oracle", 4, &x)
		}
	}
	for i := range c.Ours {
		if o := &c.Ours[i]; o.Class == class {
			x, colour := pointOf(o), fmt.Sprintf("ours f%d", i%6)
			p.dot(colour, 7, &x)
			out.Dots = append(out.Dots, legend{Class: colour, Name: o.Name})
		}
	}
	out.SVG = p.done()
	return out
}

// front draws a line through the front's points.
func (p *plot) front(front Front) {
	d := ""
	for i, x := range front {
		d += fmt.Sprintf("%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[i == 0], p.px(x.GPUHours), p.py(x.Violations))
	}
	fmt.Fprintf(&p.b, `<path class="front" d="%s"/>`, d)
}

// dot draws a result. Its tooltip has the numbers.
func (p *plot) dot(class string, radius float64, x *Point) {
	title := fmt.Sprintf("%s: %.2f %% missed, %.1f GPU-hours", x.Name, x.Violations, x.GPUHours)
	fmt.Fprintf(&p.b, `<circle class="%s" cx="%.1f" cy="%.1f" r="%g"><title>%s</title></circle>`,
		class, p.px(x.GPUHours), p.py(x.Violations), radius, html.EscapeString(title))
}
