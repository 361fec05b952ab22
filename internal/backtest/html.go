// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

//go:embed report.html
var page string

// HTML writes a report as one page that needs nothing else: no script, no
// fetched file, light or dark as the reader's system is.
func (r *Report) HTML(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"f":       func(digits int, x float64) string { return fmt.Sprintf("%.*f", digits, x) },
		"percent": percent,
		"count":   grouped,
		"sees":    sees,
		"verdict": verdictClass,
		"cost":    func(c Cell) string { return r.cost(&c) },
		"many":    many,
		"judged":  r.compared,
		"load":    func(c Cell) string { return fmt.Sprintf("%s, %s, start-up %gs", c.Trace, c.Model, c.Startup) },
		"ms":      func(x float64) string { return short(1000 * x) },
		"price":   r.priceNote,
		"short":   short,
		"role":    func(k Keeper) string { return k.role() },
		"over":    func(k Keeper) string { return k.cost() },
	}).Parse(page)
	if err != nil {
		return err
	}
	return t.Execute(w, r.view())
}

// verdictClass is the colour of a ratio as it is shown: within a twentieth of 1
// is level with the best of hindsight.
func verdictClass(ratio float64) string {
	switch ratio = math.Round(100*ratio) / 100; {
	case ratio < 0.95:
		return "good"
	case ratio <= 1.05:
		return "level"
	case ratio <= 1.3:
		return "fair"
	}
	return "poor"
}

// percent is a change; none has no sign.
func percent(x float64) string {
	if s := fmt.Sprintf("%+.0f %%", 100*x); s != "+0 %" && s != "-0 %" {
		return s
	}
	return "0 %"
}

// grouped writes a number in groups of three digits.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "\u202f" + s[i:] // a narrow space that does not break
	}
	return s
}

// sees says what a class looks at.
func sees(c Class) string {
	return map[Class]string{OnRequests: "on requests: queue and running", OnGPU: "on GPUs: utilisation and activity"}[c]
}

func (r *Report) priceNote(m Model) string {
	p, ok := r.Prices.Of(m.GPU)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s at $%.2f a GPU-hour (%s %s)", m.GPU, p.USD, p.Provider, p.Instance)
}

// view is what the page shows.
type view struct {
	*Report
	HasPeers bool
	Priced   bool
	About    []fact
	Charts   []chart
	Requests int
}

// chart is one replay, drawn.
type chart struct {
	Case     *Case
	Verdicts []Verdict
	Replicas template.HTML
	Missed   template.HTML
	Fronts   []frontChart
	Lines    []legend
}

type frontChart struct {
	Class Class
	SVG   template.HTML
	Dots  []legend
}

type legend struct{ Class, Name, Note string }

func (r *Report) view() view {
	v := view{Report: r, HasPeers: len(r.Peers) > 0, Priced: r.priced()}
	v.About = append(r.facts(), fact{"policies", strings.Join(each(r.Cells, func(c *Cell) string { return c.Ours }), ", ")})
	for i := range r.Cases {
		c := &r.Cases[i]
		if len(c.Ours) > 0 {
			v.Requests += c.Ours[0].Requests
		}
		if len(c.Ours) > 0 && c.Ours[0].Points != nil {
			v.Charts = append(v.Charts, r.chart(c))
		}
	}
	return v
}

// chartPoints is how many minutes a chart shows apart.
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
	for _, class := range []Class{OnRequests, OnGPU} {
		if f := r.frontChart(c, class); f.SVG != "" {
			out.Fronts = append(out.Fronts, f)
		}
	}
	return out
}

// lineClass is how the k-th line is drawn: ours come first and stand out.
func lineClass(k, ours int) string {
	if k < ours {
		return fmt.Sprintf("s%d mine", k%6)
	}
	return fmt.Sprintf("s%d other", k%6)
}

// pick is one number of each minute.
func pick(points []Point, f func(*Point) float64) []float64 {
	out := make([]float64, len(points))
	for i := range points {
		out[i] = f(&points[i])
	}
	return out
}

func hours(v float64) string { return short(v) }

func replicasChart(lines []Result, ours int) template.HTML {
	need, per := thin(pick(lines[0].Points, func(p *Point) float64 { return p.Need }), chartPoints)
	step := float64(per) * pointSeconds / 3600
	most := slices.Max(append(need, 1))
	for k := range lines {
		most = max(most, slices.Max(pick(lines[k].Points, func(p *Point) float64 { return p.Replicas })))
	}
	p := newPlot(1000, 260, axis{hi: float64(len(need)) * step}, axis{hi: most * 1.05})
	p.axes("hours", "replicas", hours, short)
	p.area("need", step, need)
	for k := range lines {
		values, _ := thin(pick(lines[k].Points, func(p *Point) float64 { return p.Replicas }), chartPoints)
		p.line("line "+lineClass(k, ours), step, values, true)
	}
	return p.done()
}

func missedChart(lines []Result, ours int) template.HTML {
	share := func(p *Point) float64 {
		if p.Arrived == 0 {
			return 0
		}
		return 100 * float64(p.Violations) / float64(p.Arrived)
	}
	first, per := thin(pick(lines[0].Points, share), chartPoints)
	step := float64(per) * pointSeconds / 3600
	p := newPlot(1000, 160, axis{hi: float64(len(first)) * step}, axis{hi: 100, root: true})
	p.axes("hours", "missed %", hours, short)
	for k := range lines {
		values, _ := thin(pick(lines[k].Points, share), chartPoints)
		p.line("line "+lineClass(k, ours), step, values, true)
	}
	return p.done()
}

// frontChart is every peer's setting as a point, their front, and ours; empty
// where peers or ours have none of the class.
func (r *Report) frontChart(c *Case, class Class) frontChart {
	out := frontChart{Class: class}
	marks := slices.DeleteFunc(slices.Clone(c.Peers), func(m Mark) bool { return r.class[m.Name] != class })
	if len(marks) == 0 || !slices.ContainsFunc(c.Ours, func(o Result) bool { return o.Class == class }) {
		return out
	}
	front := Front(marks)
	// Beyond the front's dearest point and ours nothing is worth showing.
	dear := front[len(front)-1].GPUHours
	for i := range c.Ours {
		dear = max(dear, c.Ours[i].GPUHours)
	}
	p := newPlot(480, 300, axis{hi: dear * 1.05}, axis{hi: 100, root: true})
	p.axes("GPU-hours", "requests that missed a limit, %", short, short)
	for _, f := range families {
		n := len(marks)
		marks = slices.DeleteFunc(marks, func(m Mark) bool {
			if r.family[m.Name] != f.Name {
				return false
			}
			if m.GPUHours <= dear*1.05 {
				p.dot("peer "+f.Name, 2.5, m.GPUHours, m.Violations, mark(m))
			}
			return true
		})
		if len(marks) < n {
			out.Dots = append(out.Dots, legend{Class: "peer " + f.Name, Name: f.Text})
		}
	}
	p.front(front)
	for i := range c.Also {
		if o := &c.Also[i]; o.Family == "oracle" {
			p.dot("oracle", 4, o.GPUHours, o.Violations, mark(markOf(o)))
		}
	}
	for i := range c.Ours {
		if o := &c.Ours[i]; o.Class == class {
			colour := fmt.Sprintf("ours f%d", i%6)
			p.dot(colour, 7, o.GPUHours, o.Violations, mark(markOf(o)))
			out.Dots = append(out.Dots, legend{Class: colour, Name: o.Name})
		}
	}
	out.SVG = p.done()
	return out
}

// front joins the front's points.
func (p *plot) front(marks []Mark) {
	d := ""
	for i, m := range marks {
		d += fmt.Sprintf("%s%.1f %.1f", map[bool]string{true: "M", false: "L"}[i == 0], p.px(m.GPUHours), p.py(m.Violations))
	}
	fmt.Fprintf(&p.b, `<path class="front" d="%s"/>`, d)
}

func mark(m Mark) string {
	return fmt.Sprintf("%s: %.2f %% missed, %.1f GPU-hours", m.Name, m.Violations, m.GPUHours)
}
