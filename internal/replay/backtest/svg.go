// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"
)

// plot draws a chart as SVG. Colours are CSS classes, so that one drawing fits light and
// dark pages.
type plot struct {
	b                        strings.Builder
	width, height            float64
	left, right, top, bottom float64
	x, y                     axis
}

// axis maps values to positions.
type axis struct {
	lo, hi float64
	root   bool // square-root scale: it spreads small values, and can show 0
}

// position returns where a value lies between the ends, from 0 to 1.
func (a axis) position(v float64) float64 {
	lo, hi := a.lo, a.hi
	if a.root {
		lo, hi, v = math.Sqrt(lo), math.Sqrt(hi), math.Sqrt(max(0, v))
	}
	if hi <= lo {
		return 0
	}
	return min(1, max(0, (v-lo)/(hi-lo)))
}

func newPlot(width, height float64, x, y axis) *plot {
	p := &plot{width: width, height: height, left: 58, right: 14, top: 10, bottom: 42, x: x, y: y}
	fmt.Fprintf(&p.b, `<svg viewBox="0 0 %g %g" role="img">`, width, height)
	return p
}

func (p *plot) px(v float64) float64 { return p.left + p.x.position(v)*(p.width-p.left-p.right) }
func (p *plot) py(v float64) float64 {
	return p.height - p.bottom - p.y.position(v)*(p.height-p.top-p.bottom)
}

// ticks returns about n round values of the axis.
func (a axis) ticks(n int) []float64 {
	span := a.hi - a.lo
	if span <= 0 || math.IsInf(span, 0) || math.IsNaN(span) {
		return []float64{a.lo}
	}
	if a.root && a.lo == 0 {
		var out []float64
		for _, v := range []float64{0, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100} {
			if v <= a.hi {
				out = append(out, v)
			}
		}
		return out
	}
	step := math.Pow(10, math.Floor(math.Log10(span/float64(n))))
	for _, m := range []float64{1, 2, 5, 10} {
		if span/(step*m) <= float64(n) {
			step *= m
			break
		}
	}
	var out []float64
	for v := math.Ceil(a.lo/step) * step; v <= a.hi+step*1e-9; v += step {
		out = append(out, math.Round(v/step)*step)
	}
	return out
}

// axes draws the grid and its labels.
func (p *plot) axes(xTitle, yTitle string, xText, yText func(float64) string) {
	last := math.Inf(1)
	for _, v := range p.y.ticks(5) {
		y := p.py(v)
		if last-y < 20 { // labels would overlap on small screens, where they are larger
			continue
		}
		last = y
		fmt.Fprintf(&p.b, `<line class="grid" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, p.left, p.width-p.right, y, y)
		fmt.Fprintf(&p.b, `<text class="tick" text-anchor="end" x="%.1f" y="%.1f">%s</text>`, p.left-6, y+4, yText(v))
	}
	for _, v := range p.x.ticks(8) {
		fmt.Fprintf(&p.b, `<text class="tick" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`, p.px(v), p.height-p.bottom+16, xText(v))
	}
	fmt.Fprintf(&p.b, `<line class="axis" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`, p.left, p.width-p.right, p.height-p.bottom, p.height-p.bottom)
	fmt.Fprintf(&p.b, `<text class="tick" text-anchor="middle" x="%.1f" y="%.1f">%s</text>`, (p.left+p.width-p.right)/2, p.height-4, html.EscapeString(xTitle))
	fmt.Fprintf(&p.b, `<text class="tick" text-anchor="middle" transform="translate(16 %.1f) rotate(-90)">%s</text>`, (p.top+p.height-p.bottom)/2, html.EscapeString(yTitle))
}

// line draws values at 0, 1, 2, … times step. With stairs, each value lasts until the next.
func (p *plot) line(class string, step float64, values []float64, stairs bool) {
	fmt.Fprintf(&p.b, `<path class="%s" d="%s"/>`, class, p.path(step, values, stairs))
}

// area draws a line that is filled down to the axis.
func (p *plot) area(class string, step float64, values []float64) {
	if len(values) == 0 {
		return
	}
	base := p.py(p.y.lo)
	fmt.Fprintf(&p.b, `<path class="%s" d="%s L%.1f %.1f L%.1f %.1f Z"/>`, class, p.path(step, values, true),
		p.px(float64(len(values))*step), base, p.px(0), base)
}

func (p *plot) path(step float64, values []float64, stairs bool) string {
	var d strings.Builder
	last := math.NaN()
	for i, v := range values {
		x, y := p.px(float64(i)*step), p.py(v)
		switch {
		case i == 0:
			fmt.Fprintf(&d, "M%.1f %.1f", x, y)
		case stairs && y != last:
			fmt.Fprintf(&d, "H%.1fV%.1f", x, y)
		case !stairs:
			fmt.Fprintf(&d, "L%.1f %.1f", x, y)
		}
		last = y
	}
	if stairs && len(values) > 0 {
		fmt.Fprintf(&d, "H%.1f", p.px(float64(len(values))*step))
	}
	return d.String()
}

func (p *plot) done() template.HTML {
	p.b.WriteString("</svg>")
	return template.HTML(p.b.String()) // all text in it is escaped
}

// thin reduces values to at most n by the maximum of each group. It returns the size of a
// group, too.
func thin(values []float64, n int) (out []float64, per int) {
	per = max(1, (len(values)+n-1)/n)
	for i := 0; i < len(values); i += per {
		most := values[i]
		for _, v := range values[i:min(len(values), i+per)] {
			most = max(most, v)
		}
		out = append(out, most)
	}
	return out, per
}
