// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
)

// A fleet of 10,000 nodes is drawn as sums, with what is asked for by page. The
// keyboard reaches all of it, and what has the focus keeps it while values change.
func TestBrowserLargeFleet(t *testing.T) {
	b := openBrowser(t)
	fleet := largeFleet(10000)
	for i := range 600 { // more than a view has room for
		w := fleet.Workloads[0]
		w.Namespace, w.Name = fmt.Sprintf("zone-%d", i%40), fmt.Sprintf("embed-%03d", i)
		fleet.Workloads = append(fleet.Workloads, w)
	}
	url := serve(t, fixed{fleet}, nil)
	b.size(1280, 900, "light")
	b.do(chromedp.Navigate(url + "#fleet"))
	rows := func(n int) string { return fmt.Sprintf(`document.querySelectorAll("#fleet .node").length === %d`, n) }
	b.wants(rows(50) + ` && document.querySelectorAll("#pools tr").length === 10`)
	b.wants(`document.querySelector("#summary").innerText.includes("10,000 nodes, 80,000 GPUs: ")`)
	b.wants(`document.querySelectorAll("#problems li").length === 1 && document.querySelector("#problems-more").innerText === "show all 100 nodes with problems"`)
	b.wants(`/1 to 50 of 10,000 nodes/.test(document.querySelector("#nodes-count").innerText)`)
	b.wants(`document.querySelector("#glance").innerText.includes("55 °C on gke-fleet-a3-highgpu-8g-00000.internal, GPU-00000000")`) // its exporter does not tell its number
	if n := eval[int](b, `document.querySelectorAll("*").length`); n > 4000 {
		t.Errorf("the page has %d elements", n)
	}
	b.shoot("large-light")

	// A pool, from its row, by keyboard.
	b.do(chromedp.Focus("#pools tr:nth-child(4) button"), chromedp.KeyEvent("\r"))
	b.wants(`/1 to 50 of 1,000 nodes/.test(document.querySelector("#nodes-count").innerText) && document.querySelector("#nodes-pool").value === "=a3-highgpu-3"`)
	b.do(chromedp.Click("#nodes-on"))
	b.wants(`/51 to 100 of 1,000 nodes/.test(document.querySelector("#nodes-count").innerText) && !document.querySelector("#nodes-back").disabled`)
	b.do(chromedp.Click("#problems-more"))
	b.wants(`/1 to 50 of 100 nodes/.test(document.querySelector("#nodes-count").innerText) && document.activeElement.id === "nodes-q"`)
	b.do(chromedp.KeyEvent("00907"))
	b.wants(rows(1) + ` && document.querySelector("#fleet .node").innerText.includes("8 of 8 GPUs stale")`)

	// One node's GPUs and pods.
	b.do(chromedp.Focus("#fleet .node button"), chromedp.KeyEvent("\r"))
	b.wants(`document.querySelectorAll("#fleet .gpu").length === 8 && document.querySelector("#fleet .gpu").innerText.includes("chat-6b8f-00907-0")`)
	b.wants(`document.querySelector("#fleet .node button").getAttribute("aria-expanded") === "true"`)
	seen := eval[string](b, `document.querySelector("#fleet .strip").dataset.seen = "yes"`)
	b.wants(`document.querySelector("#fleet .strip").dataset.seen !== "` + seen + `" && document.activeElement === document.querySelector("#fleet .node button")`) // drawn anew
	b.shoot("large-node")
	b.do(chromedp.KeyEvent("\r"))
	b.wants(`document.querySelectorAll("#fleet .gpu").length === 0`)

	// Workloads that the view lacks are found, and loaded.
	b.do(chromedp.Click(`#views a[href="#workloads"]`))
	b.wants(`/^\d+ of 800 workloads, those with problems first$/.test(document.querySelector("#workloads-count").innerText)`)
	b.do(chromedp.Focus("#workloads-q"), chromedp.KeyEvent("team-7/chat-1"))
	b.wants(`document.querySelector("#workloads-count").innerText === "2 matches, of 800 workloads" && document.querySelector("#workloads-more").hidden`)
	eval[bool](b, `$("workloads-q").value = "", $("workloads-q").dispatchEvent(new Event("input"))`)
	b.wants(`document.querySelectorAll("#workloads .workload").length >= 50`)
	b.do(chromedp.Click("#workloads-more"))
	b.wants(`document.querySelectorAll("#workloads .workload").length >= 100`)

	b.do(chromedp.Click(`#views a[href="#fleet"]`))
	b.wants(rows(50))
	for _, width := range []int64{360, 600, 1280} {
		b.size(width, 900, "dark")
		b.wants(fmt.Sprintf("innerWidth === %d", width))
		b.fits(fmt.Sprint("a large fleet at ", width, " px"))
	}
	b.shoot("large-dark")
	b.size(360, 900, "dark")
	b.wants("innerWidth === 360")
	b.fits("a large fleet on a phone")
	b.shoot("large-360-dark")
}

// The page with a fleet of 10,000 nodes is light. Paint and frames depend on the machine: they
// are in the log.
func TestBrowserWeight(t *testing.T) {
	b := openBrowser(t)
	url := serve(t, fixed{largeFleet(10000)}, nil)
	b.size(1280, 900, "light")
	for _, view := range []struct{ name, ready string }{{"workloads", listed}, {"fleet", `document.querySelectorAll("#fleet .node").length === 50`}} {
		b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(url+"#"+view.name))
		b.wants(view.ready)
		weight := eval[float64](b, `[...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")].reduce((n, e) => n + e.transferSize, 0)`)
		paint := eval[float64](b, `performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1`)
		eval[bool](b, `window.frames60 = 0, window.took = 0, (() => {
			let n = 0, began = performance.now();
			const step = () => { scrollTo(0, (n * 40) % document.documentElement.scrollHeight); n++; if (performance.now() - began < 1000) requestAnimationFrame(step); else { window.took = performance.now() - began; window.frames60 = n; } };
			requestAnimationFrame(step);
		})(), true`)
		b.wants(`window.took > 0`)
		t.Logf("%s: %.0f kB, first paint %.0f ms, %.0f frames/s while it scrolls", view.name, weight/1000, paint, eval[float64](b, `window.frames60 / window.took * 1000`))
		if weight > 300_000 {
			t.Errorf("%s weighs %.0f bytes, want at most 300,000", view.name, weight)
		}
	}
}

// The fleet's view sums up the week in words, beside the week before, and has costs where the controller has a price.
func TestBrowserCosts(t *testing.T) {
	b := openBrowser(t)
	p := New(fixed{largeFleet(20)}, nil)
	url := servePage(t, p)
	b.size(1280, 900, "light")
	week := func(text string) string {
		return fmt.Sprintf(`document.querySelector("#hours-sum").innerText.replace(/\u202f/g, " ") === %q`, text)
	}
	b.do(chromedp.Navigate(url + "#fleet"))
	b.wants(week("Serving pods of workloads held 110 GPU-hours, 40.0 of them without using the GPU: 36 %. The most: a with 40.0. In the 7 days before it was 10 %, less than now."))
	b.wants(`document.querySelectorAll("#hours-box .usd, #holders-box .usd").length > 2 && [...document.querySelectorAll("#hours-box .usd, #holders-box .usd")].every((x) => x.hidden)`)
	q := New(fixed{largeFleet(20)}, nil)
	q.Prices, _ = price.Parse("2.5")
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(servePage(t, q)+"#fleet"))
	b.wants(week("Serving pods of workloads held 110 GPU-hours ($275), 40.0 of them without using the GPU: 36 %, $100. The most: a with 40.0. In the 7 days before it was 10 %, less than now."))
	b.wants(`document.querySelector("#hours tr td.usd").innerText === "$100" && !document.querySelector("#hours tr td.usd").hidden`)
	b.shoot("costs")
	b.size(360, 900, "dark")
	b.wants("innerWidth === 360")
	b.fits("costs on a phone")
}

// Nodes of a pool with the same fault are one line with their number, their GPUs and since when, the most GPUs first, and
// a line opens its nodes. Many workloads with problems hide no node's fault.
func TestBrowserProblemsOfOneKind(t *testing.T) {
	b := openBrowser(t)
	fleet := largeFleet(10000)
	for i := range fleet.Targets {
		if !fleet.Targets[i].Up {
			fleet.Targets[i].LastSuccess = fleet.Time.Add(-3 * time.Hour)
			fleet.Targets[i].Error = fmt.Sprintf("no answer within 5s: dial tcp 10.0.%d.%d:9400: i/o timeout", i/250, i%250)
		}
	}
	odd, other := &fleet.Nodes[5003], &fleet.Nodes[4003]
	odd.Fault, other.Fault = "GPULost: "+odd.GPUs[2].UUID+" cannot be read any more", "GPULost: "+other.GPUs[5].UUID+" cannot be read any more"
	fleet.Nodes[6001].FaultSince = fleet.Time.Add(-time.Hour)
	fleet.Nodes[6001].Fault = "RowRemapFailure: " + fleet.Nodes[6001].GPUs[0].UUID + ": a row of its memory could not be remapped"
	for i := range 9 {
		fleet.Workloads[i].Problem = "SignalsReadable is False: no sample"
	}
	url := serve(t, fixed{fleet}, nil)
	b.size(1280, 900, "light")
	b.do(chromedp.Navigate(url + "#workloads"))
	text := func(list string) string {
		return `[...document.querySelectorAll("` + list + ` li")].map((e) => e.innerText.replace(/\s+/g, " "))`
	}
	down, lost := fleet.Nodes[7].Name+" and 99 other nodes of a3-highgpu-7, 800 GPUs, the first since ", other.Name+" and 1 other node of a3-highgpu-3, 2 GPUs: GPULost: "
	b.wants(fmt.Sprintf(`((l) => l.length === 8 && l.slice(3).every((s) => s.includes("SignalsReadable")) && l[0].startsWith(%q) && / \(3 h\): agent: no answer within 5s: dial tcp 10.0.0.7:9400: i.o timeout; 8 of 8 GPUs stale show *$/.test(l[0]) && l[1].startsWith(%q) && l[2].startsWith(%q))(%s)`,
		down, lost, fleet.Nodes[6001].Name+" of a3-highgpu-1, 1 GPU, since ", text("#problem-list")))
	b.wants(`document.querySelector("#problem-more").innerText === "show 4 more problems" && document.querySelector("#problem-list").getBoundingClientRect().bottom < innerHeight`)
	b.shoot("alike-workloads")
	b.wants(`document.querySelector("#problem-list li:nth-child(3) .show").hidden`)
	b.do(chromedp.Focus(`#problem-list li:nth-child(2) .show[aria-label="show the 2 nodes"]`), chromedp.KeyEvent("\r"))
	only := func(n int) string {
		return fmt.Sprintf(`document.querySelector("#nodes-count").innerText === "1 to %d of %d nodes" && document.querySelectorAll("#fleet .node").length === %d`, min(n, 50), n, min(n, 50))
	}
	b.wants(only(2) + fmt.Sprintf(` && document.querySelector("#nodes-alike").innerText === "show all nodes, not only those like %s"`, other.Name))
	b.do(chromedp.Click("#nodes-alike"))
	b.wants(`document.querySelector("#nodes-count").innerText === "1 to 50 of 10,000 nodes" && document.querySelector("#nodes-alike").hidden && document.activeElement.id === "nodes-q"`)

	// The same on the fleet.
	b.wants(fmt.Sprintf(`((l) => l.length === 3 && l[0].startsWith(%q) && l[1].startsWith(%q))(%s)`, down, lost, text("#problems")))
	b.do(chromedp.Focus(`#problems li:nth-child(1) button[aria-label="show the 100 nodes"]`), chromedp.KeyEvent("\r"))
	b.wants(only(100) + ` && document.activeElement.id === "nodes-alike" && location.hash.includes("alike=")`)
	b.shoot("alike-fleet")
	b.size(360, 900, "dark")
	b.wants("innerWidth === 360")
	b.fits("problems of one kind on a phone")
}

// A workload at its maximum that needs more says how many. GPUs have their index, and nodes come before workloads in the
// list of problems.
func TestBrowserLimitsAndIndexes(t *testing.T) {
	b := openBrowser(t)
	v := demoView()
	v.Workloads[0].AtLimit = "at its maximum, needs 14"
	v.Workloads[1].Problem = "spec.signals[0].gpu.metric: Unsupported value"
	for n := range v.Nodes {
		for i := range v.Nodes[n].GPUs {
			v.Nodes[n].GPUs[i].Index = &[]int{i}[0]
		}
	}
	v.Nodes[2].Fault = "GPULost: GPU-2-3 cannot be read any more"
	v.Nodes[1].GPUs[1].UUID = "MIG-1/gi7"
	url := serve(t, fixed{v}, nil)
	for _, width := range []int64{1280, 390} {
		b.size(width, 900, "light")
		b.do(chromedp.Navigate(url + "#workloads"))
		b.wants(`[...document.querySelectorAll(".workload")].some((r) => r.querySelector("td b").innerText === "at its maximum, needs 14" && r.querySelector("td b").className === "note")`)
		b.wants(`((l) => l.length === 2 && l[0].startsWith("gpu-node-2") && l[1].startsWith("batch/embed"))([...document.querySelectorAll("#problem-list li")].map((e) => e.innerText))`)
		b.shoot(fmt.Sprintf("limit-workloads-%d", width))
		b.do(chromedp.Navigate(url + "#fleet"))
		b.wants(`[...document.querySelectorAll("#fleet .node:nth-child(2) .gpu small")].map((e) => e.innerText).join() === "0,1.7,2,3,4,5,6,7"`)
		b.wants(`[...document.querySelectorAll("#fleet .gpu b")].every((e) => e.scrollWidth <= e.clientWidth)`)
		b.shoot(fmt.Sprintf("limit-fleet-%d", width))
	}
}
