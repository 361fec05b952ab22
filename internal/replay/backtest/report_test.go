// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpupilot/gpupilot/internal/replay/contender"
	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
)

func smallStudy(t *testing.T) *Study {
	t.Helper()
	tr := steady(t, 300, 10, 30, 10)
	tr.Name = "a <b> & c"
	return &Study{
		Traces: []*trace.Trace{tr}, Models: []service.Model{preset(t, "llama-8b")}, Startups: []float64{30, 60}, Low: 3, High: 6, Seeds: 2,
		Ours: []contender.Entry{contender.NewOurs("ours", onRunning(4))}, References: []contender.Entry{contender.Oracle(1, 15)},
		Peers: contender.QuickGrid().Peers([]string{"kpa"}, contender.OnRequests), KeepMinutes: true, Workers: 2,
	}
}

func TestStudy(t *testing.T) {
	s := smallStudy(t)
	cache, cached := map[string]Baseline{}, false
	s.Workers = 1
	s.StoreCached = func(k string, v Baseline) { cache[k] = v }
	cases, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cells := s.Cells(cases)
	if len(cases) != 4 || len(cells) != 2 || cells[0].Seeds != 2 || len(cache) != 4 {
		t.Fatalf("%d cases, %d cells, %d cached", len(cases), len(cells), len(cache))
	}
	if cases[0].Peak != 3 || cases[1].Peak != 6 {
		t.Errorf("peaks %g and %g, want 3 and 6", cases[0].Peak, cases[1].Peak)
	}
	// Cached peers are not replayed again, and the result is the same.
	s.LoadCached = func(k string) (Baseline, bool) { v, ok := cache[k]; return v, ok }
	s.StoreCached = func(string, Baseline) { t.Error("a cached case was replayed again") }
	again, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Cells(again); !reflect.DeepEqual(got, cells) {
		t.Errorf("with cached peers %+v, before %+v", got, cells)
	}
	// Peers that behave differently under the same names are replayed again.
	peers := slices.Clone(s.Peers)
	peers[0].New = contender.Fixed(0.7).New
	s.Peers, cached = peers, true
	s.LoadCached = func(k string) (Baseline, bool) { v, ok := cache[k]; cached = cached && ok; return v, ok }
	s.StoreCached = nil
	if _, err := s.Run(t.Context()); err != nil || cached {
		t.Errorf("cached results of another simulation were used: %v, %v", cached, err)
	}
}

func TestReport(t *testing.T) {
	s := smallStudy(t)
	cases, err := s.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Ours[0].Notes = []string{"ours is replayed without its pair <decode>"}
	s.Ours[0].Untimed = []string{"ours is replayed without its schedules"}
	notes := func(high float64, start time.Time, want bool) {
		t.Helper()
		s.High, s.Traces[0].Start = high, start
		if got := NewReport(s, cases, nil).Notes; slices.Contains(got, s.Ours[0].Untimed[0]) != want {
			t.Errorf("a load from %v on, scaled to %g replicas, has the notes %q", start, high, got)
		}
	}
	notes(0, time.Time{}, true)
	notes(6, time.Unix(1, 0), true)
	notes(0, time.Unix(1, 0), false)
	r := NewReport(s, cases, []string{"nothing"})
	var table, page, js bytes.Buffer
	if err := r.Table(&table); err != nil || !strings.Contains(table.String(), "mean (geometric)") || !strings.Contains(table.String(), "note      ours is replayed without its pair <decode>\n") {
		t.Errorf("%v\n%s", err, &table)
	}
	if err := json.NewEncoder(&js).Encode(r); err != nil || !json.Valid(js.Bytes()) || !bytes.Contains(js.Bytes(), []byte(`"notes":["ours is replayed without its pair`)) {
		t.Errorf("json: %v", err)
	}
	r.Version, r.Time = "v1.2.3", time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	if err := r.HTML(&page); err != nil {
		t.Fatal(err)
	}
	html := page.String()
	for _, want := range []string{
		"2026-03-04 05:06 UTC, gpupilot v1.2.3", "4 replays of", "1 hour in 4 replays", "<dt>policies</dt><dd>ours</dd>", "<dt>note</dt><dd>ours is replayed without its pair &lt;decode&gt;</dd>", "to peaks of 3 to 6 replicas", "over 2.5 s to the first token or 25 ms",
		"of Knative", `class="peer kpa"`, "chip",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, other := range []string{`class="peer hpa"`, "1 replays", "<th>cost"} {
		if strings.Contains(html, other) {
			t.Errorf("the page has %q", other)
		}
	}
	if strings.Contains(html, "<b> &") || !strings.Contains(html, "a &lt;b&gt; &amp; c") {
		t.Error("the trace's name is not escaped")
	}
	if i := regexp.MustCompile(`(?i)<script|https?://|url\(|NaN|%!`).FindStringIndex(html); i != nil {
		t.Errorf("the page has %q", html[i[0]:min(len(html), i[1]+60)])
	}
	svgs := regexp.MustCompile(`(?s)<svg viewBox="0 0 [0-9]{3,}.*?</svg>`).FindAllString(html, -1)
	if len(svgs) != 2*3 {
		t.Errorf("%d charts, want three for each of two start-ups", len(svgs))
	}
	// Without peers the page does not mention a front.
	s.Peers = nil
	r, page = NewReport(s, []Case{{Trace: "a", Model: "llama-8b", Hours: 1, Ours: cases[0].Ours}}, nil), bytes.Buffer{}
	if err := r.HTML(&page); err != nil {
		t.Fatal(err)
	}
	if i := regexp.MustCompile(`(?i)\bratio|>front|\(front|the front|pareto|scatter|chip |1 replays|scaled`).FindStringIndex(page.String()[strings.Index(page.String(), "<main>"):]); i != nil {
		t.Errorf("the page without peers has %q", page.String()[strings.Index(page.String(), "<main>"):][i[0]:i[1]])
	}
	for _, svg := range svgs {
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			_, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("chart is no XML: %v", err)
			}
		}
	}
}

// The table describes the replay. It has each column once and no empty one, and is at most
// 100 characters wide.
func TestTable(t *testing.T) {
	cell := Cell{
		Trace: "azure_llm_2023_conv.requests", Model: "llama-8b", Startup: 120, Ours: "gpupilot-requests", Class: contender.OnRequests, Seeds: 1,
		Ratio: new(0.5), Violations: 12.34, Front: new(24.68), Compared: 1, GPUHours: 1234.5, Turns: 12.3, FrontTurns: 45.6, Nearest: "kpa concurrency=8 60s delay=300s",
	}
	other := cell
	other.Trace, other.Startup, other.Ours = "other", 30, "a policy with a name that is too long for any table"
	study := func(cells ...Cell) *Report {
		r := &Report{Cells: cells, Models: []service.Model{preset(t, "llama-8b")}, Peers: []string{cell.Nearest}}
		r.family, r.class = map[string]contender.Family{cell.Nearest: contender.KPA}, map[string]contender.Class{cell.Nearest: contender.OnRequests}
		for _, c := range cells {
			r.Cases = append(r.Cases, Case{Trace: c.Trace, Startup: c.Startup, Hours: 1, Peak: 5, Scale: 2.5, Seed: 1})
		}
		r.addGroup("all traces", cells)
		return r
	}
	table := func(r *Report) string {
		var b strings.Builder
		if err := r.Table(&b); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(line); n > 101 {
				t.Errorf("%d columns: %s", n-1, line)
			}
		}
		return b.String()
	}
	has := func(text string, yes bool, want ...string) {
		t.Helper()
		for _, w := range want {
			if strings.Contains(text, w) != yes {
				t.Errorf("%q there: %v, want %v\n%s", w, !yes, yes, text)
			}
		}
	}
	one := table(study(cell))
	has(one, true, "azure_llm_2023_conv.requests, 1 hour in 1 replay, 1 seed\nscale     by 2.5, to a peak of 5 replicas\n", "120s", "2.5 s to the first token or 25 ms",
		"1 setting of Knative", "12.3 (45.6)", "gpupilot-requests: "+cell.Nearest)
	has(one, false, "cost", "start  policy", "all traces", "regret")
	for _, column := range []string{"missed  ", "front  ", "turns/h  "} {
		if strings.Count(one, column) != 1 {
			t.Errorf("%q is there %d times", column, strings.Count(one, column))
		}
	}
	two := study(cell, other, cell)
	two.Prices = Prices{{GPU: "a100", USD: 2}}
	dearer := other
	dearer.Ratio, dearer.Front, dearer.Outside = nil, nil, KeepsMore
	two.Cells = append(two.Cells, dearer)
	has(table(two), true, "safer ", "2 traces, 3 hours", "\nother, llama-8b\n", "start  policy", "$2469", "a policy with a na…", "regret", "(most often, 2 of 2)")
	unmatched := cell // its class has no peers
	unmatched.Class, unmatched.Ratio, unmatched.Front, unmatched.Nearest = contender.OnGPU, nil, nil, ""
	has(table(study(unmatched)), true, "12.34%      -      -")
	alone := study(cell)
	alone.Peers, alone.class = nil, nil
	has(table(alone), false, "front", "ratio", "45.6", "peers", "nearest")
}

// Outside of the front there is nothing to interpolate: there is no ratio, but text.
func TestNoRatioOutsideOfTheFront(t *testing.T) {
	const cheap, dear, kpa = "cheap", "dear", "kpa concurrency=8 60s delay=300s"
	s := &Study{
		Models: []service.Model{preset(t, "llama-8b")},
		Peers:  []contender.Entry{{Name: kpa, Family: contender.KPA, Class: contender.OnRequests}},
	}
	ours := func(name string, gpuHours, violations float64) Result {
		return Result{Name: name, Class: contender.OnRequests, Outcome: service.Outcome{GPUHours: gpuHours, Violations: violations}, Minutes: make([]service.Minute, 2)}
	}
	c := func(trace string, seed uint64, cheapHours, dearMissed float64) Case {
		return Case{
			Trace: trace, Model: "llama-8b", Startup: 60, Seed: seed, Hours: 1, Peers: []Point{{kpa, 10, 5, 1}},
			Ours: []Result{ours(cheap, cheapHours, 8), ours(dear, 12, dearMissed)},
		}
	}
	r := NewReport(s, []Case{c("a", 1, 9, 4), c("b", 1, 9, 4), c("b", 2, 10, 8)}, nil)
	var table, page, js strings.Builder
	if err := errors.Join(r.Table(&table), r.HTML(&page), json.NewEncoder(&js).Encode(r.Cells)); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		table.String(): {
			"cheap    8.00%      -  cheaper", "dear     4.00%      -    safer", "cheap    8.00%  5.00%     1.59", "cheap       2  1.59  1.59   1.59   8.00%  5.00%",
			"cheap cheaper than every peer setting in 1 of 2 cells: no ratio there", "dear keeps more than any peer setting in 1 of 2 cells: no ratio there",
			"cheaper: than every peer setting;",
		},
		page.String(): {
			"cheap cheaper than every peer setting</span>", `<td class="level">keeps more than any peer setting</td>`, `<td>5.00</td><td class="poor">1.59</td>`,
			"It is cheaper than every peer setting in 1 of 2 cells: no ratio there.",
		},
		js.String(): {`"class":"requests","outsideOfFront":"cheaper than every peer setting","seedsCompared":0,"violationsPercent":8`, `"ratio":1.588`, `"frontViolationsPercent":5`},
	} {
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%q is missing in\n%s", w, text)
			}
		}
	}
	if n := strings.Count(js.String(), `"ratio"`); n != 2 {
		t.Errorf("%d ratios, want those of the cells of b: %s", n, &js)
	}
	// A policy without any ratio has no summary of ratios.
	only := Summarise(s.Cells([]Case{c("a", 1, 9, 4)}))
	if x := only[0]; x.Geometric != nil || x.Worst != nil || x.Front != nil || x.WorstCell != "" || x.Cheaper != 1 {
		t.Errorf("summary %+v", x)
	}
}

func TestReportNumbers(t *testing.T) {
	for ratio, want := range map[float64]string{0.94: "good", 0.946: "level", 0.95: "level", 1: "level", 1.05: "level", 1.2: "fair", 1.31: "poor"} {
		if got := verdictClass(&ratio); got != want {
			t.Errorf("%g: %q, want %q", ratio, got, want)
		}
	}
	for h, want := range map[float64]string{0.34: "20 minutes", 1: "1 hour", 1.5: "1.5 hours", 2: "2 hours", 3000.2: "3\u202f000 hours"} {
		if got := hoursText(h); got != want {
			t.Errorf("%g: %q, want %q", h, got, want)
		}
	}
	for x, want := range map[float64]string{0.004: "0 %", -0.001: "0 %", 0.5: "+50 %", -0.11: "-11 %"} {
		if got := percent(x); got != want {
			t.Errorf("%g: %q, want %q", x, got, want)
		}
	}
	for n, want := range map[int]string{7: "7", 1234: "1\u202f234", 1587656: "1\u202f587\u202f656", 123456: "123\u202f456"} {
		if got := GroupDigits(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestPrices(t *testing.T) {
	p, err := ReadPrices("p", strings.NewReader("provider,instance_type,gpu_name,usd_per_gpu_hour\naws,p4d,a100,2.74\nlambda,gpu_8x,A100,1.29\n"))
	if err != nil {
		t.Fatal(err)
	}
	if best, ok := p.Of("a100"); !ok || best.USD != 1.29 || best.Provider != "lambda" {
		t.Errorf("%+v %v", best, ok)
	}
	if _, ok := p.Of("h100"); ok {
		t.Error("a price for a GPU that is not listed")
	}
	for in, want := range map[string]string{"gpu_name,usd_per_gpu_hour\na,-1\n": "p:2:3", "a,b\n": "p:1: want"} {
		if _, err := ReadPrices("p", strings.NewReader(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}
