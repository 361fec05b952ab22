// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"context"
	"flag"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

var screenshots = flag.String("screenshots", "", "write screenshots of the page into this `folder`")

// patience bounds every wait for the browser.
const patience = time.Minute

// live is demoView, as a test changes it, always as of now.
type live struct {
	mu      sync.Mutex
	changes []func(*view.View)
	detail  func(*view.WorkloadDetail) // what lasts, and what would change it; nil: some of both
}

func newLive(changes ...func(*view.View)) *live { return &live{changes: changes} }

func (l *live) View() view.View {
	l.mu.Lock()
	defer l.mu.Unlock()
	v := demoView()
	for _, change := range l.changes {
		change(&v)
	}
	return v
}

func (l *live) set(change func(*view.View)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changes = append(l.changes, change)
}

// History is ten minutes of a load that rises.
func (l *live) History(string, string) (h view.History, ok bool) {
	now := time.Now()
	for i := range 600 {
		p := view.Point{Time: now.Add(time.Duration(i-600) * time.Second), Replicas: 2, Serving: 2, Signals: []*float64{percent(55 + 10*math.Sin(float64(i)/40))}}
		switch {
		case i > 480:
			p.Replicas, p.Serving = 8, 4
		case i > 300:
			p.Replicas, p.Serving, p.Signals = 4, 4, []*float64{percent(80 - float64(i)/40)}
		}
		h.Points = append(h.Points, p)
	}
	return h, true
}

// Workload is one of the view's, with all that lasts and what would change it.
func (l *live) Workload(namespace, name string) (d view.WorkloadDetail, ok bool) {
	v := l.View()
	for _, w := range v.Workloads {
		if w.Namespace == namespace && w.Name == name {
			d.Time, d.MaxAge, d.Workload = v.Time, v.MaxAge, w
			ok = true
		}
	}
	if l.detail != nil {
		l.detail(&d)
		return d, ok
	}
	d.Changes = []string{"9 replicas if Utilization is above 97 % for 10 s (now 87)", "5 replicas if Utilization is below 41 % for 5 min (now 87)"}
	d.Conditions = []view.Condition{
		{Type: "Ready", Status: "True", Reason: "Ready"}, {Type: "RolloutInProgress", Status: "True", Reason: "Rollout", Message: "2 of 4 replicas are new", Notable: true},
	}
	d.Spans = []view.Span{
		{Kind: view.SpanSchedule, Name: "working hours", From: v.Time.Add(-8 * time.Minute), Until: v.Time.Add(-6 * time.Minute)},
		{Kind: view.SpanCondition, Name: "ScalingLimited True: TooManyReplicas", Text: "12 is the maximum", From: v.Time.Add(-3 * time.Minute)},
	}
	return d, ok
}

func (l *live) GPUHours(from, to time.Time) []GPUHours { return fixed{}.GPUHours(from, to) }

// Device is one of the view's GPUs, with some fields.
func (l *live) Device(node, uuid string) (d view.Device, ok bool) {
	v := l.View()
	for _, n := range v.Nodes {
		for _, g := range n.GPUs {
			if n.Name != node || g.UUID != uuid {
				continue
			}
			d = view.Device{Time: v.Time, MaxAge: v.MaxAge, Node: node, GPU: g}
			for _, f := range gpu.Fields() {
				if f.Kind == gpu.Label {
					continue
				}
				x := view.DeviceField{Name: f.Name, Help: f.Help, Unit: string(f.Unit), Value: float64(f.ID%97) * 1.5, Age: 400 * time.Millisecond}
				for i := 0; f.ID%3 == 0 && i < 120; i++ {
					x.Past = append(x.Past, [2]float64{float64(5*i - 600), 50 + 40*math.Sin(float64(i+int(f.ID))/9)})
				}
				d.Fields = append(d.Fields, x)
			}
			return d, true
		}
	}
	return d, false
}

// Minutes is days of a load that rises and falls once a day, with a gap.
func (l *live) Minutes(_, _ string, q *view.MinuteQuery) (view.Minutes, bool, error) {
	m := view.Minutes{First: q.From, Step: q.Step, Metrics: []view.MinuteMetric{
		{Name: view.ReplicasMetric, Labels: map[string]string{"state": "desired"}},
		{Name: view.ReplicasMetric, Labels: map[string]string{"state": "serving"}},
		{Name: view.SignalMetric, Labels: map[string]string{"signal": "Utilization", "unit": "%", "per": "replica"}},
	}}
	for i := range q.Steps() {
		at := q.From.Add(time.Duration(i) * q.Step)
		load := 4 + 3*math.Sin(2*math.Pi*at.Sub(at.Truncate(24*time.Hour)).Hours()/24)
		values := []float64{math.Ceil(load), math.Floor(load), 55 + 5*math.Sin(float64(i)/9)}
		if i > q.Steps()/2 && i < q.Steps()*6/10 {
			values = []float64{math.NaN(), math.NaN(), math.NaN()}
		}
		for j, v := range values {
			m.Metrics[j].Mean, m.Metrics[j].Max = append(m.Metrics[j].Mean, v), append(m.Metrics[j].Max, v+10)
		}
	}
	return m, true, nil
}

// begun is when the decisions of demoView count from: the start of the test, because the chart has ten minutes, and all tests
// together can take longer than that.
var begun = time.Now()

// demoView is much like that of make demo, with something of everything that
// can be wrong.
func demoView() view.View {
	now := time.Now()
	v := view.View{Time: now, Version: "v0.9.0", Leader: true, MaxAge: 5 * time.Second}
	const demand, held = "Utilization: 4 serving × 87 % ÷ target 60 % = 5.8, so 6 replicas", "keep at least 8 for 3 s: the load needed 8 within the scale-down window of 12 s (now 6)"
	const sentence = demand + "; " + held
	d := &view.Decision{
		Time: now, Current: 8, Replicas: 8, Serving: 4, Starting: 4, Why: held, Sentence: sentence,
		Steps: []view.Step{{Rule: scale.RuleDemand, Before: 8, After: 6, Sentence: demand}, {Rule: scale.RuleStabilization, Before: 6, After: 8, Sentence: held}},
	}
	v.Workloads = []view.Workload{
		{
			Namespace: "llm", Name: "chat", Kind: "Deployment", Target: "chat", Actuation: "Scale", Min: 1, Max: 12, Ready: true,
			Signals: []view.Signal{{Name: "Utilization", Unit: "%", Value: percent(87), Target: 60}}, Decision: d,
			StartingSince: now.Add(-40 * time.Second), Startup: 2 * time.Minute,
		},
		{
			Namespace: "batch", Name: "embed", Kind: "StatefulSet", Target: "embed", Actuation: "Advise", Min: 0, Max: 4,
			Signals: []view.Signal{{Name: "vllm:num_requests_running", Target: 8}}, Waiting: "no replica serves yet",
			Decision: &view.Decision{Time: now, Starting: 1, Current: 1, Replicas: 1, Sentence: "held"}, StartingSince: now.Add(-75 * time.Second), Startup: 2 * time.Minute,
		},
	}
	for n := range 3 {
		node := view.Node{Name: fmt.Sprintf("gpu-node-%d", n)}
		for i := range 8 {
			g := view.GPU{UUID: fmt.Sprintf("GPU-%d-%d", n, i), Utilization: percent(0), Age: time.Second}
			if (i+n)%2 == 0 {
				g.Utilization = percent(float64(12*(i+1) - 5*n))
				g.Owners = []view.Owner{{Namespace: "llm", Pod: fmt.Sprintf("chat-6b8f-%d%d", n, i)}}
			}
			node.GPUs = append(node.GPUs, g)
		}
		v.Nodes = append(v.Nodes, node)
		v.Targets = append(v.Targets, view.Target{Name: "agent/gpupilot-system/agent-" + node.Name, Kind: "agent", Node: node.Name, Up: true})
	}
	for i := range 5 {
		e := *d
		e.Time, e.Current, e.Replicas = begun.Add(-time.Duration(i*i)*7*time.Minute-time.Minute), int32(i+1), int32(i+2)
		if i%2 == 1 {
			e.Current, e.Replicas = e.Replicas, e.Current
		}
		v.Recent = append(v.Recent, view.Event{Namespace: "llm", Name: "chat", Decision: e})
	}
	return v
}

// chromium is the browser of all tests: a tab costs a tenth of what a process costs.
var chromium struct {
	sync.Once
	ctx  context.Context
	err  error
	stop func()
}

func TestMain(m *testing.M) {
	code := m.Run()
	if chromium.stop != nil {
		chromium.stop()
	}
	os.Exit(code)
}

func startChromium(path string) {
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(patience),
		// Without a GPU, its emulation takes a fifth of the CPU time.
		chromedp.DisableGPU, chromedp.Flag("disable-gpu-compositing", true), chromedp.Flag("disable-software-rasterizer", true))
	allocator, release := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, cancel := chromedp.NewContext(allocator)
	chromium.ctx, chromium.err = ctx, chromedp.Do(ctx) //nolint:fatcontext // the context of the one browser, in which each test opens a tab
	chromium.stop = func() { cancel(); release() }
}

// browser is a tab that looks at the page.
type browser struct {
	t   *testing.T
	ctx context.Context
}

// openBrowser opens a tab with cookies and storage of its own, or skips the test where there is no browser. What the page
// says on its console is an error, except of answers that are no success.
func openBrowser(t *testing.T) *browser {
	t.Helper()
	begun = time.Now()
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "headless-shell"} {
		if p, err := exec.LookPath(name); err == nil {
			path = p
			break
		}
	}
	if path == "" {
		if os.Getenv("GPUPILOT_REQUIRE_CHROMIUM") == "1" {
			t.Fatal("GPUPILOT_REQUIRE_CHROMIUM is 1 and no chromium is in PATH")
		}
		t.Skip("no chromium in PATH: Debian's package chromium has it")
	}
	if chromium.Do(func() { startChromium(path) }); chromium.err != nil {
		t.Fatal(chromium.err)
	}
	ctx, cancel := chromedp.NewContext(chromium.ctx, chromedp.WithNewBrowserContext())
	if err := chromedp.Do(ctx); err != nil { // whose context is the tab's
		t.Fatal(err)
	}
	events, stop := context.WithCancel(ctx)
	thrown, logged := chromedp.Events(events, runtime.ExceptionThrown), chromedp.Events(events, cdplog.EntryAdded)
	var all sync.WaitGroup
	all.Go(func() {
		for ev, err := range thrown {
			if err == nil {
				t.Errorf("the page threw: %s %+v", ev.ExceptionDetails.Text, ev.ExceptionDetails.Exception)
			}
		}
	})
	all.Go(func() {
		for ev, err := range logged {
			if err == nil && strings.Contains(ev.Entry.Text, "Content Security Policy") {
				t.Errorf("the page broke its policy: %s", ev.Entry.Text)
			}
		}
	})
	t.Cleanup(func() { stop(); all.Wait(); cancel() })
	return &browser{t, ctx}
}

func (b *browser) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// eval is the value of an expression of JavaScript.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatal(err)
	}
	return v
}

// size is the window's, in a colour scheme.
func (b *browser) size(width, height int64, scheme string) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, height), func(ctx context.Context, t *chromedp.Target) (none chromedp.Void, err error) {
		_, err = cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return none, err
	})
}

// wants waits until an expression of JavaScript is true, also while the page is
// being loaded anew.
func (b *browser) wants(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	for {
		_, err := chromedp.Run(ctx, chromedp.Poll[bool](expression, chromedp.WithPollingInterval(50*time.Millisecond), chromedp.WithPollingTimeout(0)))
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			b.t.Fatalf("not so: %s (%v); the page says\n%s", expression, err, eval[string](b, `document.body?.innerText ?? ""`))
		}
		time.Sleep(50 * time.Millisecond) // while a page loads, its parts are missing
	}
}

// fits fails if anything is wider than the window.
func (b *browser) fits(what string) {
	b.t.Helper()
	widths := eval[[]int](b, "[document.documentElement.scrollWidth, innerWidth]")
	if widths[0] > widths[1] {
		b.t.Errorf("%s: the page is %d px wide in a window of %d", what, widths[0], widths[1])
	}
}

func (b *browser) shoot(name string) {
	b.t.Helper()
	if *screenshots == "" {
		return
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o644); err != nil {
		b.t.Fatal(err)
	}
}

func serve(t *testing.T, src Source, access Access) (url string) {
	t.Helper()
	return servePage(t, New(src, access))
}

func servePage(t *testing.T, p *Page) (url string) {
	t.Helper()
	s := httptest.NewServer(p.Handler())
	t.Cleanup(func() {
		s.CloseClientConnections() // streams do not end by themselves
		s.Close()
	})
	return s.URL
}

const (
	listed  = `document.querySelectorAll("#workloads .workload").length > 0`
	charted = `document.querySelectorAll("canvas").length > 0`
	celled  = `document.querySelectorAll("#fleet .gpu").length > 0`
)

// row is a workload's row, as a selector.
func row(key string) string { return `.workload[data-key="` + key + `"]` }

// A token lets in, a wrong one is told so; it stays in the tab's memory and
// leaves with the logout.
func TestBrowserLogin(t *testing.T) {
	b := openBrowser(t)
	src := newLive()
	url := serve(t, src, &cluster{users: map[string][]string{"good": {"llm"}}})
	login := func(token string) {
		t.Helper()
		b.do(chromedp.SetValue("#token", token), chromedp.Click("#login-form button"))
	}
	hidden := func(id string) string {
		return `getComputedStyle(document.querySelector("` + id + `")).display === "none"`
	}
	b.size(1280, 800, "light")
	b.do(chromedp.Navigate(url))
	b.wants("!(" + hidden("#login") + ") && " + hidden("main") + " && " + hidden("#login-error"))
	b.shoot("login")
	login("bad")
	b.wants(`document.querySelector("#login-error").innerText.includes("not accepted") && ` + hidden("main"))
	b.size(360, 800, "dark")
	b.fits("login")
	b.shoot("login-wrong-360-dark")
	login(" good ")
	b.wants(hidden("#login") + ` && document.querySelectorAll("#workloads .workload").length === 1`)
	b.wants(`document.querySelector("#summary").innerText.includes("in llm")`)
	b.do(chromedp.Click(row("llm/chat") + " button"))
	b.wants(charted) // the histories have the token, too
	if where := eval[string](b, `[location.href, document.cookie, JSON.stringify(localStorage)].join(" ")`); strings.Contains(where, "good") {
		t.Errorf("the token is in %s", where)
	}
	b.do(chromedp.Reload())
	b.wants(`document.querySelectorAll("#workloads .workload").length === 1`)
	b.do(chromedp.Click("#logout"))
	b.wants("!(" + hidden("#login") + `) && sessionStorage.length === 0`)
}

// lengthen adds names, errors and numbers as long as they can be.
func lengthen(v *view.View) {
	long := strings.Repeat("x", 253)
	v.Targets = append(v.Targets,
		view.Target{Name: "pod/llm/" + long + ":8000/metrics", Kind: "pod", Error: "scrape " + long + ` (http://10.0.0.1:8000/metrics): Get "http://10.0.0.1:8000/metrics": dial tcp 10.0.0.1:8000: connect: connection refused`, LastSuccess: time.Now().Add(-time.Hour)},
		view.Target{Name: "pod/batch/embed-0:8000/metrics", Kind: "pod", Error: "connection refused", Starting: time.Now().Add(-75 * time.Second)})
	w := v.Workloads[0]
	w.Namespace, w.Name, w.Target, w.Problem = strings.Repeat("n", 63), long, long, "no fresh value of "+long
	w.Signals = []view.Signal{{Name: long, Unit: strings.Repeat("u", 40), Target: 1e9, Value: percent(123456789)}, w.Signals[0]}
	d := *w.Decision
	d.Sentence, d.Steps = long, []view.Step{{Rule: "Signal", Sentence: long}}
	w.Decision = &d
	v.Workloads = append(v.Workloads, w)
	v.Recent = append(v.Recent, view.Event{Namespace: w.Namespace, Name: w.Name, Decision: d})
	v.Nodes = append(v.Nodes, view.Node{Name: long, GPUs: []view.GPU{{UUID: long, Owners: []view.Owner{{Namespace: w.Namespace, Pod: long}}}}})
	v.Leader, v.LeaderID, v.Version = false, long, long
}

// Nothing is wider than the window, however long names and errors are.
func TestBrowserWidths(t *testing.T) {
	b := openBrowser(t)
	url := serve(t, newLive(lengthen), nil)
	long := strings.Repeat("n", 63) + "/" + strings.Repeat("x", 253)
	for _, at := range []struct{ view, ready string }{
		{"workloads?open=" + long, charted},
		{"fleet", celled + ` && document.querySelectorAll("#targets li").length === 2`},
		{"decisions", `document.querySelectorAll("#decisions > li").length === 6`},
		{"gpu?node=gpu-node-0&uuid=GPU-0-0", `document.querySelectorAll("#gpu svg").length > 10`},
	} {
		b.do(chromedp.Navigate(url + "#" + at.view))
		b.wants(at.ready)
		for _, width := range []int64{360, 600, 1280, 2560} {
			b.size(width, 900, "light")
			eval[int](b, `document.querySelectorAll("details").forEach((d) => { d.open = true; }), 1`)
			b.wants(fmt.Sprintf("innerWidth === %d", width))
			b.wants(`[...document.querySelectorAll(".uplot")].every((c) => c.offsetWidth <= c.parentElement.clientWidth)`)
			b.fits(fmt.Sprint(at.view, " at ", width, " px"))
			b.shoot(fmt.Sprint("long-", at.view[:3], "-", width))
		}
	}
}

// age adds values that are old, and what starts.
func age(v *view.View) {
	v.Nodes[0].GPUs[0].Age = 42 * time.Second
	v.Nodes[0].GPUs[2].Utilization = nil
	v.Targets = append(v.Targets,
		view.Target{Name: "pod/llm/chat-1:8000/metrics", Kind: "pod", Error: "connection refused", Starting: time.Now().Add(-40 * time.Second)},
		view.Target{Name: "agent/gpupilot-system/agent-gone", Kind: "agent", Error: "no answer within 5s", LastSuccess: time.Now().Add(-42 * time.Second)})
	old := v.Workloads[0]
	d := *old.Decision
	d.Time = time.Now().Add(-30 * time.Second)
	old.Name, old.Decision, old.StartingSince = "hung", &d, time.Time{}
	v.Workloads = append(v.Workloads, old)
	v.Recent = append(v.Recent, view.Event{Namespace: "llm", Name: "chat", Decision: view.Decision{Time: time.Now().AddDate(0, 0, -3), Current: 1, Replicas: 2, Sentence: "three days ago"}})
}

// Values that are old say so: on their cell, on their card. Pods that start are
// no errors. Times are ISO 8601 and 24 h.
func TestBrowserShowsWhatIsOld(t *testing.T) {
	b := openBrowser(t)
	src := newLive(age)
	url := serve(t, src, nil)
	b.size(1280, 900, "light")
	b.do(chromedp.Navigate(url))
	b.wants(listed)
	b.wants(`document.querySelector('` + row("llm/hung") + `').classList.contains("old") && document.querySelector('` + row("llm/hung") + `').innerText.includes("last decision")`)
	b.wants(`!document.querySelector('` + row("llm/chat") + `').classList.contains("old")`)
	b.wants(`/starting\s+40 s, usually 120 s/.test(document.querySelector('` + row("llm/chat") + `').innerText)`)
	b.wants(`[...document.querySelectorAll("#problem-list li")].map((e) => e.innerText).join().includes("llm/hung: last decision")`)
	b.shoot("old-light")
	b.do(chromedp.Click(`#views a[href="#fleet"]`))
	b.wants(`document.querySelectorAll(".gpu.old").length === 2 && document.querySelector(".gpu.old").innerText.includes("stale, 42 s")`)
	b.wants(`document.querySelectorAll("#targets .bad").length === 1 && /chat-1.*starting, 40 s/.test(document.querySelector("#targets li:not(.bad)").innerText)`)
	b.do(chromedp.Click(`#views a[href="#decisions"]`))
	b.wants(`document.querySelectorAll("#decisions time").length === 6`)
	b.wants(`[...document.querySelectorAll("#decisions time")].every((t) => /^(\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d$/.test(t.innerText))`)
	b.wants(`/^\d{4}-/.test([...document.querySelectorAll("#decisions time")].at(-1).innerText)`)
	b.wants(`/^\d\d:\d\d:\d\d\n\d{4}-\d\d-\d\d$/.test(ticks(null, [Date.now() / 1000], 0, 0, 5)[0])`)
}

// What is deleted goes, the last of its kind as well.
func TestBrowserDeletedGo(t *testing.T) {
	b := openBrowser(t)
	src := newLive()
	url := serve(t, src, nil)
	rows := func(n int) string {
		return fmt.Sprintf(`document.querySelectorAll("#workloads .workload").length === %d`, n)
	}
	b.do(chromedp.Navigate(url + "#workloads?open=batch/embed"))
	b.wants(rows(2) + " && " + charted)
	src.set(func(v *view.View) { v.Workloads = v.Workloads[:1] })
	b.wants(rows(1) + ` && !document.querySelector(".detail")`)
	src.set(func(v *view.View) { v.Workloads, v.Nodes, v.Targets, v.Recent = nil, nil, nil, nil })
	b.wants(rows(0))
	b.wants(`document.querySelector("#workloads-none").innerText.includes("No GPUAutoscaler")`)
	src.set(func(v *view.View) { v.Workloads = demoView().Workloads })
	b.wants(rows(2) + " && " + charted) // its address has it open

	src.set(func(v *view.View) { v.Workloads = nil })
	b.do(chromedp.Click(`#views a[href="#fleet"]`))
	b.wants(`document.querySelectorAll(".gpu, #targets li").length === 0 && document.querySelector("#fleet").innerText.includes("No node reports GPUs")`)
	b.do(chromedp.Click(`#views a[href="#decisions"]`))
	b.wants(`document.querySelector("#decisions").innerText === "No change of replicas yet."`)
	src.set(func(v *view.View) { v.Leader = false }) // the leader knows the changes
	b.wants(`document.querySelector("#decisions").innerText.includes("does not lead")`)
	src.set(func(v *view.View) {
		v.Recent = []view.Event{{Namespace: "llm", Name: "chat", Advice: true, Decision: view.Decision{Time: v.Time, Current: 1, Replicas: 3}}}
	})
	b.wants(`document.querySelector("#decisions .advice")?.innerText === "advice 1 → 3" && !document.querySelector("#decisions .up")`)
}

// A controller that hangs, or is gone, shows on the whole page; it recovers.
func TestBrowserControllerAway(t *testing.T) {
	b := openBrowser(t)
	src := newLive()
	var hang sync.RWMutex
	page := New(src, nil).Handler()
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/stream" {
			http.Error(w, "a proxy in between does not know it", http.StatusNotFound) // the page polls
			return
		}
		hang.RLock()
		defer hang.RUnlock()
		page.ServeHTTP(w, r)
	})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	first := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = first.Serve(l) }()
	defer func() { _ = first.Close() }()
	b.size(1280, 900, "light")
	b.do(chromedp.Navigate("http://" + l.Addr().String() + "#fleet"))
	b.wants(celled)
	hang.Lock()
	const dead = `document.body.classList.contains("dead") && document.querySelector("#banner").innerText.includes("No answer from the controller for")`
	b.wants(dead)
	b.wants(`document.querySelectorAll(".gpu:not(.old)").length === 0`) // their values grow old, too
	b.shoot("away")
	hang.Unlock()
	b.wants(`!document.body.classList.contains("dead") && document.querySelector("#banner").hidden`)
	_ = first.Close()
	b.wants(dead)
	b.fits("away")
	l, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Skip("the port was taken meanwhile")
	}
	second := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = second.Serve(l) }()
	defer func() { _ = second.Close() }()
	b.wants(`!document.body.classList.contains("dead")`)
}

// The stream brings what changes, without any request for the view. After a stream that
// ends, the page goes on; where there is none, it polls.
func TestBrowserStream(t *testing.T) {
	b := openBrowser(t)
	src := newLive()
	var views, streams atomic.Int64
	var broken atomic.Bool
	page := New(src, nil).Handler()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/view":
			views.Add(1)
		case "/api/v1/stream":
			streams.Add(1)
			if broken.Load() {
				http.Error(w, "no", http.StatusBadGateway)
				return
			}
		}
		page.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	b.do(chromedp.Navigate(s.URL))
	b.wants(listed)
	problem := func(text string) {
		t.Helper()
		src.set(func(v *view.View) { v.Workloads[0].Problem = text })
		b.wants(`document.querySelector("#problem-list").innerText.includes("` + text + `")`)
	}
	problem("one")
	before := views.Load()
	problem("two")
	problem("three")
	if n := views.Load(); n != before || streams.Load() != 1 {
		t.Errorf("%d requests for the view beside %d streams", n-before, streams.Load())
	}
	s.CloseClientConnections()
	problem("four")
	broken.Store(true)
	s.CloseClientConnections()
	problem("five")
	before = views.Load()
	problem("six")
	problem("seven")
	if views.Load() == before {
		t.Error("the page does not poll without a stream")
	}
}

// Pictures of the views in three widths and both colours, to look at.
func TestBrowserPicture(t *testing.T) {
	if *screenshots == "" {
		t.Skip("only with -screenshots")
	}
	b := openBrowser(t)
	url := serve(t, newLive(func(v *view.View) {
		v.Targets = append(v.Targets, view.Target{Name: "pod/batch/embed-0:8000/metrics", Kind: "pod", Error: "connection refused", Starting: time.Now().Add(-75 * time.Second)})
	}), nil)
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{390, 1280, 2560} {
			b.size(width, 1000, scheme)
			for view, ready := range map[string]string{
				"workloads": listed, "workloads?open=llm/chat": charted + ` && document.querySelectorAll(".mark").length > 0`, "fleet": celled, "decisions": `document.querySelectorAll("#decisions time").length > 1`,
				"gpu?node=gpu-node-0&uuid=GPU-0-0": `document.querySelectorAll("#gpu svg").length > 10`,
			} {
				b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(url+"#"+view))
				b.wants(ready)
				b.wants(fmt.Sprintf("innerWidth === %d", width))
				b.fits(fmt.Sprint(view, width))
				name := strings.Map(func(r rune) rune {
					if strings.ContainsRune("?=/&", r) {
						return '-'
					}
					return r
				}, view)
				b.shoot(fmt.Sprint("ui-", name, "-", width, "-", scheme))
			}
		}
	}
}

// A chart shows the last decisions, or the minutes of a day or of 14 days. The address has
// the range, the row that is open and the decision that is picked.
func TestBrowserRanges(t *testing.T) {
	b := openBrowser(t)
	b.size(1280, 900, "light")
	url := serve(t, newLive(), nil)
	b.do(chromedp.Navigate(url))
	b.wants(listed)
	b.do(chromedp.Focus(row("llm/chat")+" button"), chromedp.KeyEvent("\r"))
	b.wants(charted)
	points := func(more string) string { return `detail?.plot.chart?.data[0].length ` + more }
	press := func(n int) {
		b.do(chromedp.Click(fmt.Sprintf(`.detail .ranges button:nth-child(%d)`, n)))
		b.wants(fmt.Sprintf(`document.querySelectorAll('.detail .ranges [aria-pressed=true]').length === 1 &&
			document.querySelector('.detail .ranges button:nth-child(%d)').getAttribute("aria-pressed") === "true"`, n))
	}
	press(2)
	b.wants(points("=== 721"))
	if missing := eval[int](b, `detail.plot.chart.data[3].filter((x) => x === null).length`); missing < 50 {
		t.Errorf("%d missing values, want the gap of minutes", missing)
	}
	b.shoot("day")
	press(3)
	b.wants(points("=== 673"))
	b.size(360, 900, "dark")
	b.fits("14 days")
	b.shoot("fortnight-360-dark")
	b.size(1280, 900, "light")
	link := eval[string](b, `location.href`)
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link))
	b.wants(points("=== 673")) // a link shows the same
	press(1)
	b.wants(points(">= 599"))
	b.wants(`detail.points.length >= 599 && (window.before = detail.points.at(-1).time) && true`)
	b.wants(`detail.points.at(-1).time > window.before`) // the view continues the chart

	// A decision is a mark, which opens by keyboard.
	b.wants(`document.querySelectorAll(".mark").length > 1`)
	b.do(chromedp.Focus(".mark:nth-child(1)"), chromedp.KeyEvent("\r"))
	b.wants(`document.querySelector(".picked .steps li").innerText.includes("Utilization") && document.querySelector(".mark").getAttribute("aria-pressed") === "true"`)
	b.wants(`document.querySelectorAll(".bands li").length === 2 && document.querySelector(".detail .notable").innerText.includes("RolloutInProgress is True")`)
	b.wants(`document.querySelector(".reason").innerText.includes("9 replicas if Utilization is above 97 %")`)
	link = eval[string](b, `location.href`)
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(link))
	b.wants(`document.querySelector(".picked .steps li")?.innerText.includes("Utilization")`)
	b.do(chromedp.Focus(row("llm/chat")+" button"), chromedp.KeyEvent("\r"))
	b.wants(`!document.querySelector(".detail")`)
}

// The list is sorted by its heads, and searched.
func TestBrowserSorts(t *testing.T) {
	b := openBrowser(t)
	b.size(1280, 900, "light")
	src := newLive(func(v *view.View) {
		for i := range 61 {
			w := v.Workloads[0]
			w.Name = fmt.Sprintf("chat-%02d", i)
			w.Signals = []view.Signal{{Name: "Utilization", Unit: "%", Value: percent(float64(i)), Target: 60}}
			w.StartingSince = time.Time{}
			if i == 30 {
				w.Problem = "the Deployment chat-30 does not exist"
			}
			v.Workloads = append(v.Workloads, w)
		}
	})
	b.do(chromedp.Navigate(serve(t, src, nil)))
	first := func(key string) string {
		return `document.querySelector("#workloads .workload")?.dataset.key === "` + key + `"`
	}
	b.wants(first("llm/chat-30") + ` && document.querySelectorAll("#workloads .workload").length === 63`)
	if tall := eval[int](b, `document.querySelector("#workloads-table").offsetHeight`); tall > 3200 {
		t.Errorf("63 workloads are %d px high", tall)
	}
	b.shoot("dense")
	b.wants(`document.querySelector("#problem-list").innerText.includes("llm/chat-30: the Deployment chat-30 does not exist")`)
	b.do(chromedp.Click(`[data-sort=load]`))
	b.wants(first("llm/chat") + ` && document.querySelector("[data-sort=load]").parentElement.getAttribute("aria-sort") === "ascending"`)
	b.do(chromedp.Click(`[data-sort=load]`))
	b.wants(first("batch/embed")) // without a value
	b.do(chromedp.Focus("#workloads-q"), chromedp.KeyEvent("CHAT-4"))
	b.wants(`document.querySelectorAll("#workloads .workload").length === 10 && document.querySelector("#workloads-count").innerText === "10 matches, of 63 workloads"`)
	b.wants(`location.hash.includes("q=CHAT-4") && document.activeElement.id === "workloads-q"`)
	b.size(360, 900, "dark")
	b.fits("a dense list")
	b.shoot("dense-360-dark")
}

// An objective that is missed shows its budget and burn rates in red, and what the servers
// do not count. One that is kept shows no problem.
func TestBrowserObjectives(t *testing.T) {
	b := openBrowser(t)
	b.size(1280, 900, "light")
	kept := view.Objective{
		Signal: "vllm requests", Objective: "99%", Over: "28d", Attained: "99.41%", BudgetLeft: "41%", Cost: "3.2",
		Burns: []view.Burn{{Window: "1h", Rate: 0.6}, {Window: "6h", Rate: 0.7}, {Window: "3d", Rate: 0.7}},
	}
	missed := view.Objective{
		Signal: "vllm requests", Objective: "99%", Over: "28d", Attained: "98.61% to 98.90%", BudgetLeft: "-39% to -10%", Missed: true, Burning: true, Cost: "3.2",
		Burns:    []view.Burn{{Window: "1h", Rate: 16.2}, {Window: "6h", Rate: 3.4}, {Window: "3d", Rate: 0.9}},
		Problems: []string{"timeToFirstToken 2s lies between the edges 1s and 2.5s of the servers' histogram: misses count from 2.5s on. Set 1s or 2.5s, or the servers' buckets"},
	}
	src := newLive(func(v *view.View) {
		v.Workloads[0].Objectives, v.Workloads[1].Objectives = []view.Objective{kept}, []view.Objective{missed}
	})
	b.do(chromedp.Navigate(serve(t, src, nil)))
	b.wants(`document.querySelectorAll("#objectives-rows tr").length === 2 && document.querySelector("#objectives-sum").innerText === "1 of 2 objectives kept"`)
	b.wants(`document.querySelector("#objectives-rows tr").innerText.includes("batch/embed") && document.querySelectorAll("#objectives-rows .bad").length === 1`)
	b.wants(`document.querySelector("#problem-list").innerText.includes("batch/embed: objective missed: 98.61% to 98.90% of the requests are within the limits, the goal is 99%")`)
	b.wants(`((t) => t.includes("98.61% to 98.90% (goal 99%)") && t.includes("-39% to -10% (28d)") && t.includes("3.2 replicas"))(document.querySelector("#objectives-rows tr").innerText)`)
	b.do(chromedp.Click("#objectives-rows a"))
	b.wants(`document.querySelector(".detail .problem")?.textContent.includes("1s and 2.5s")`)
	b.shoot("objectives")
	b.size(360, 900, "dark")
	b.fits("objectives")
	b.shoot("objectives-360-dark")
}
