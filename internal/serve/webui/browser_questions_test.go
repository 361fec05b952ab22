// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// explained is a fixed view whose workloads say why they have their replicas.
type explained struct{ fixed }

func (e explained) Workload(namespace, name string) (d view.WorkloadDetail, ok bool) {
	v := e.View()
	for _, w := range v.Workloads {
		if w.Namespace == namespace && w.Name == name {
			return view.WorkloadDetail{Time: v.Time, MaxAge: v.MaxAge, Workload: w, Changes: []string{"5 replicas if Utilization is below 75 % for 10 s (now 87)"}}, true
		}
	}
	return d, false
}

// The five questions that people ask are answered by the page at once or by a click, at 24 GPUs and
// at 80,000.
func TestBrowserFiveQuestions(t *testing.T) {
	b := openBrowser(t)
	b.size(1280, 900, "light")
	for _, nodes := range []int{3, 10_000} {
		v := largeFleet(nodes)
		for i := range v.Nodes {
			for j := range v.Nodes[i].GPUs {
				g := &v.Nodes[i].GPUs[j]
				if g.USDPerHour = percent(2); g.Utilization != nil && *g.Utilization == 0 {
					g.Utilization = percent(1)
				}
			}
		}
		n := &v.Nodes[nodes/2]
		n.GPUs[3].TemperatureC, n.Fault = percent(91), "GPULost: GPU 5"
		n.GPUs[5].Lost, n.FaultSince = true, time.Now().Add(-2*time.Hour)
		three, hot := 3, "91 °C on "+n.Name+", GPU 3"
		n.GPUs[3].Index = &three
		n.GPUs[4].Utilization, n.GPUs[4].Owners[0].Pod, n.GPUs[4].HeldSince = percent(0), "notebook-ann", time.Now().Add(-3*time.Hour)
		n.GPUs[4].IdleSince, n.GPUs[4].IdleAtLeast = time.Now().Add(-150*time.Minute), true
		v.Workloads[0].Problem = "SignalsReadable is False: no sample of pod chat-1"
		p := New(explained{fixed{v}}, nil)
		p.Prices, _ = price.Parse("2")
		url := servePage(t, p)
		if nodes == 3 { // names that differ at their end are cut at their beginning, and a page without a price says so
			b.do(chromedp.Navigate(serve(t, fixed{largeFleet(nodes)}, nil) + "#fleet"))
			b.wants(`document.querySelector("#glance").innerText.includes("no --gpu-price")`)
			b.wants(`[...document.querySelectorAll("#fleet .who b")].some((e) => e.scrollWidth > e.clientWidth) && [...document.querySelectorAll("#fleet .who b bdi")].every((e) => e.getBoundingClientRect().right <= e.parentNode.getBoundingClientRect().right + 1)`)
			b.wants(`[...document.querySelectorAll("#fleet .gpu b")].every((e) => getComputedStyle(e).direction === "ltr")`) // 31 %, not % 31
		}
		glance := func(want string) {
			t.Helper()
			b.wants(fmt.Sprintf(`[...document.querySelectorAll("#glance li")].some((e) => e.innerText.startsWith(%q))`, want))
		}

		// What is broken: at the top of the first view.
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(url))
		b.wants(`document.body.innerText.includes("SignalsReadable is False: no sample of pod chat-1")`)
		lostLine := fmt.Sprintf(` of %s, 1 GPU, since (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d \(2 h\): GPULost: GPU 5; 1 of 8 GPUs stale`, n.Pool)
		b.wants(fmt.Sprintf(`/%s/.test($("problem-list").innerText) && $("problem-list").getBoundingClientRect().bottom < innerHeight`, lostLine)) // also beside a hundred nodes with another one

		// Which GPU is hot, who idles and what it costs: on every view.
		cost := map[int]string{3: "$36.00", 10_000: "$120,000"}[nodes]
		for _, view := range []string{"decisions", "fleet", "workloads"} {
			b.do(chromedp.Click(`#views a[href="#` + view + `"]`))
			glance(map[int]string{3: "with problems: 1 node (1 GPU), 1 workload", 10_000: "with problems: 101 nodes (801 GPUs), 1 workload"}[nodes])
			glance("hottest: " + hot)
			glance(fmt.Sprintf("most idle-held: %s/notebook-ann, 1 GPU, $2.00/h, ≥ $5.00 since idle", n.GPUs[4].Owners[0].Namespace))
			glance("held GPUs: " + cost + "/h, of it $2.00/h idle-held; free GPUs: another " + map[int]string{3: "$12.00", 10_000: "$39,600"}[nodes] + "/h")
		}
		b.wants(`!$("view-workloads").hidden`)
		b.shoot(fmt.Sprintf("questions-%d-workloads", nodes))
		b.do(chromedp.Click(`#views a[href="#fleet"]`))
		b.wants(fmt.Sprintf(`/%s/.test($("problems").innerText) && [...document.querySelectorAll("#problems button")].some((e) => e.innerText === %q)`, lostLine, n.Name))
		if nodes == 3 { // a problem leads to its node
			b.do(chromedp.Click("#problems button:first-child"))
			b.wants(fmt.Sprintf(`document.activeElement.closest("#fleet .node").innerText.includes(%q)`, n.Name))
		} else { // the most GPUs first
			b.wants(`/^gke-fleet-a3-highgpu-8g-00007.internal and 99 other nodes of a3-highgpu-7, 800 GPUs, the first since /.test($("problems").innerText)`)
			b.wants(`document.querySelector("#problems-more").innerText === "show all 101 nodes with problems"`)
		}

		// Who idles.
		b.wants(fmt.Sprintf(`document.querySelector("#holders tr").innerText.replace(/\s+/g, " ").startsWith("%s/notebook-ann 1 $2.00 ")`, n.GPUs[4].Owners[0].Namespace))

		b.wants(`((cells) => /^.*:.* or earlier \(2.5 h\)$/.test(cells[3].innerText) && cells[4].innerText === "≥ $5.00" && /:.* \(3 h\)$/.test(cells[5].innerText))(document.querySelector("#holders tr").children)`)
		b.wants(`$("holders-sum").innerText === "1 GPU, 1 pod, $2.00 an hour, ≥ $5.00 since idle"`)
		b.wants(`$("hours-box").querySelector("h2").innerText.toLowerCase().includes("of workloads") && /Pods without a workload, such as notebooks, .* are not in it/.test($("hours-box").innerText)`)

		// One word for a GPU without a fresh value.
		b.wants(`!/no value|no fresh value|without a value/.test(document.body.innerText) && /, \d+ stale$/.test($("summary").innerText) && document.querySelector(".legend").innerText.includes("stale: ")`)
		if nodes == 3 {
			b.wants(`[...document.querySelectorAll("#fleet .gpu.idle")].some((e) => /, idle-held, .*, held since .*, idle since .* or earlier \(2.5 h\),/.test(e.getAttribute("aria-label")))`)
		}

		// The hottest GPU, and what is known about it.
		if nodes == 3 { // its cell has a mark that needs no colour, and words
			b.wants(`document.querySelectorAll("#fleet .hot").length === 1 && getComputedStyle(document.querySelector("#fleet .hot")).boxShadow !== "none"`)
			b.wants(fmt.Sprintf(`document.querySelector("#fleet .hot").innerText.includes("91 °C") && document.querySelector("#fleet .hot").getAttribute("aria-label").startsWith("GPU 3, %s, on %s, the hottest GPU, ")`, n.GPUs[3].UUID, n.Name))
			b.wants(`[...document.querySelectorAll("#fleet .gpu:not(.hot)")].every((e) => !e.innerText.includes("°C") && !e.getAttribute("aria-label").includes("hottest"))`)
		}
		lost := fmt.Sprintf(`((l) => l.length === 1 && l[0].innerText.trim().startsWith("lost") && !l[0].innerText.includes("%%") && l[0].getAttribute("aria-label").includes("%s on %s, lost: it cannot be read any more, ") && !l[0].getAttribute("aria-label").includes("utilisation"))([...document.querySelectorAll("#fleet .gpu.lost")])`, n.GPUs[5].UUID, n.Name)
		b.wants(`document.querySelector(".legend").innerText.includes("lost: it cannot be read any more")`)
		if nodes == 3 { // a lost GPU has no value
			b.wants(lost)
		}
		b.shoot(fmt.Sprintf("questions-%d-fleet", nodes))
		b.size(390, 900, "dark")
		b.wants("innerWidth === 390")
		b.fits(fmt.Sprint(nodes, " nodes on a phone"))
		if nodes == 3 {
			b.shoot("questions-3-fleet-390")
		}
		b.size(1280, 900, "light")
		b.wants("innerWidth === 1280")
		if nodes > 3 {
			b.do(chromedp.SetValue("#nodes-sort", "temperature"))
			eval[bool](b, `$("nodes-sort").dispatchEvent(new Event("change"))`)
			b.wants(fmt.Sprintf(`document.querySelector("#fleet .node").innerText.includes(%q) && document.querySelector("#fleet .node").innerText.includes("up to 91 °C, the hottest GPU")`, n.Name))
			b.wants(`document.querySelectorAll("#fleet .hot").length === 1 && [...document.querySelector("#fleet .cells").children].findIndex((e) => e.classList.contains("hot")) === 3`)
			b.do(chromedp.Click("#fleet .node button"))
			b.wants(`document.querySelector("#fleet .gpus .hot").innerText.includes("91 °C")`)
			b.wants(`[...document.querySelector("#fleet .cells").children].findIndex((e) => e.classList.contains("lost")) === 5 && ` + lost)
			b.shoot("lost")
		}
		b.do(chromedp.Click(`#glance a[href^="#gpu"]`))
		b.wants(fmt.Sprintf(`location.hash.startsWith("#gpu") && location.hash.includes(%q)`, n.GPUs[3].UUID))

		// Why a workload has its replicas: in its row, and above all else when it is open, with what would change that.
		b.do(chromedp.Click(`#views a[href="#workloads"]`))
		why := v.Workloads[2]
		b.wants(`document.querySelector("#workloads-q").offsetParent !== null`) // the view is shown
		b.do(chromedp.Focus("#workloads-q"), chromedp.KeyEvent(why.Name))
		b.wants(`document.querySelectorAll("#workloads .workload").length === 1`)
		b.do(chromedp.Click(row(why.Namespace+"/"+why.Name) + " button"))
		b.wants(fmt.Sprintf(`document.querySelector("#workloads .workload td:nth-child(2)").innerText.replace(/\s+/g, " ").endsWith(%q)`, why.Decision.Why))
		b.wants(fmt.Sprintf(`document.querySelector(".detail").innerText.replace(/\s+/g, " ").startsWith(%q)`,
			fmt.Sprintf("Why %d replicas %s 5 replicas if Utilization is below 75 %% for 10 s (now 87)", why.Decision.Replicas, why.Decision.Why)))
		for _, s := range why.Decision.Steps {
			b.wants(fmt.Sprintf(`document.querySelector("#view-workloads").innerText.includes(%q)`, s.Sentence))
		}
		b.shoot(fmt.Sprintf("questions-%d-workload", nodes))
	}
}

// HPAs that read our metrics are listed, those that fail first and among the problems, as far as the viewer may see them.
func TestBrowserHPAs(t *testing.T) {
	b := openBrowser(t)
	src := newLive(func(v *view.View) {
		metric := func(value *float64) []view.Signal {
			return []view.Signal{{Name: "DCGM_FI_DEV_GPU_UTIL", Value: value, Target: 60}}
		}
		v.HPAs = []view.HPA{
			{
				Namespace: "llm", Name: "misspelt", Kind: "Deployment", Target: "rerank", Min: 1, Max: 4, Current: 3, Desired: 3, Metrics: []view.Signal{{Name: "DCGM_FI_DEV_GPU_UTL", Target: 60}},
				Problem: "it keeps 3 replicas: metric DCGM_FI_DEV_GPU_UTL is not known: no profile has a GPU field of this name, no autoscaler reads a pod metric of this name, and no rule has it; did you mean DCGM_FI_DEV_GPU_UTIL? (FailedGetPodsMetric)",
			},
			{Namespace: "batch", Name: "full", Kind: "Deployment", Target: "embed", Min: 1, Max: 8, Current: 8, Desired: 8, Metrics: metric(percent(97)), Note: "at its maximum, maxReplicas: 8: its metrics ask for more"},
			{Namespace: "llm", Name: "classic", Kind: "Deployment", Target: "classic", Min: 1, Max: 8, Current: 3, Desired: 4, Metrics: metric(percent(71.5))},
		}
	})
	b.size(1280, 900, "light")
	b.do(chromedp.Navigate(serve(t, src, &cluster{users: map[string][]string{"all": {"batch", "llm"}, "llm": {"llm"}}})))
	login := func(token string) {
		t.Helper()
		b.do(chromedp.SetValue("#token", token), chromedp.Click("#login-form button"))
	}
	login("all")
	b.wants(`[...document.querySelectorAll("#hpas th b")].map((e) => e.innerText).join() === "llm/misspelt,batch/full,llm/classic"`)
	text := eval[string](b, `document.querySelector("#hpas-box").innerText + document.querySelector("#problem-list").innerText`)
	for _, want := range []string{"3 HPAs, 1 with a problem", "Deployment rerank", "did you mean DCGM_FI_DEV_GPU_UTIL?", "3 → 4", "1 to 8", "DCGM_FI_DEV_GPU_UTIL 72, target 60", "DCGM_FI_DEV_GPU_UTL –, target 60", "llm/misspelt: HPA: it keeps 3 replicas"} {
		if !strings.Contains(strings.ToLower(text), strings.ToLower(want)) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	b.shoot("hpas-1280")
	b.size(390, 844, "dark")
	b.fits("HPAs")
	b.shoot("hpas-390-dark")
	src.set(func(v *view.View) { v.HPAs = v.HPAs[2:] }) // the stream removes what is gone
	b.wants(`document.querySelectorAll("#hpas tr").length === 1 && !document.querySelector("#problem-list").innerText.includes("misspelt")`)
	eval[bool](b, `document.querySelector("#logout").click() || true`)
	src.set(func(v *view.View) { v.HPAs = append(v.HPAs, view.HPA{Namespace: "batch", Name: "secret"}) })
	b.wants(`getComputedStyle(document.querySelector("#login")).display !== "none"`)
	login("llm")
	b.wants(`document.querySelector("#hpas").innerText.includes("llm/classic") && !document.querySelector("#hpas").innerText.includes("batch")`)
}
