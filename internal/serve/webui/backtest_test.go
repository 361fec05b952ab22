// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

// replays answers with a replay of llm/chat, which takes a few requests.
type replays struct {
	asked atomic.Int64
	price float64
}

func (r *replays) Backtest(namespace, name string) (b view.Backtest, known bool) {
	if namespace == "batch" {
		return view.Backtest{State: view.BacktestRefused, Text: "less than an hour of the load is recorded"}, true
	}
	if namespace != "llm" || name != "chat" {
		return b, false
	}
	switch r.asked.Add(1) {
	case 1:
		return view.Backtest{State: view.BacktestWaiting, Text: "1 other replay comes first"}, true
	case 2:
		return view.Backtest{State: view.BacktestRunning, Text: "2 of 7 parts of the history are replayed"}, true
	}
	held, at := 412.5, time.Date(2026, 1, 15, 8, 0, 0, 0, time.UTC)
	b = view.Backtest{
		State: view.BacktestDone, Time: at, From: at.AddDate(0, 0, -14), To: at, Hours: 26.8, Parts: 7, Recorded: &held, Objective: 99, Price: r.price,
		Kept: "Yes: 0.41 % of the requests missed a limit (95 % interval 0.22 to 0.60), and 1 % may. Kept in 7 of 7 parts of the history.",
		Cost: "398 GPU-hours in 14 days. The workload held 413.", Saved: "18 % of the GPU-hours of an HPA with the same targets, which does not keep the objective: 3.10 % of its requests missed a limit.",
		Change: "Nothing",
		Policies: []view.BacktestPolicy{
			{Name: "this policy", Missed: 0.41, Kept: 7, GPUHours: 398},
			{Name: "objective 95 %", Missed: 2.9, Kept: 1, GPUHours: 331.2, More: -16.8},
			{Name: "objective 99.5 %", Missed: 0.2, Kept: 7, GPUHours: 440, More: 10.6},
			{Name: "HPA, same targets", Missed: 3.1, Kept: 2, GPUHours: 485, More: 21.9},
		},
		Notes: []string{"The server is a model.", "The query <img src=x onerror=alert(1)> decides nothing in the replay."},
	}
	for i := range b.Policies {
		if x := &b.Policies[i]; r.price > 0 {
			cost := r.price * x.GPUHours
			x.Cost = &cost
		}
	}
	return b, true
}

// Whoever may see a namespace may ask for its replays, and nobody else.
func TestBacktestRights(t *testing.T) {
	p := New(fixed{}, access(&cluster{users: map[string][]string{"ann": {"llm"}}}))
	f := func(token, path string, want int) *view.Backtest {
		t.Helper()
		w := ask(p.Handler(), path, "Authorization", "Bearer "+token)
		if w.Code != want {
			t.Errorf("%s of %s: %d %s, want %d", path, token, w.Code, w.Body, want)
		}
		var b view.Backtest
		if err := json.Unmarshal(w.Body.Bytes(), &b); err != nil {
			t.Error(err)
		}
		return &b
	}
	const path = "/api/v1/backtest?namespace=llm&name=chat"
	f("ann", path, http.StatusNotFound) // nothing replays
	r := &replays{}
	p.Backtests = r
	f("nobody", path, http.StatusUnauthorized)
	f("ann", "/api/v1/backtest?namespace=other&name=chat", http.StatusForbidden)
	f("ann", "/api/v1/backtest?namespace=llm", http.StatusBadRequest)
	f("ann", "/api/v1/backtest?namespace=llm&name=other", http.StatusNotFound)
	if n := r.asked.Load(); n != 0 {
		t.Errorf("%d replays were begun by requests that are refused", n)
	}
	if b := f("ann", path, http.StatusOK); b.State != view.BacktestWaiting {
		t.Errorf("%+v", b)
	}
}

// The view answers in words, then with a table; its address is a link to it, the keyboard suffices, and a phone shows all of it.
func TestBrowserBacktest(t *testing.T) {
	b := openBrowser(t)
	p := New(newLive(), nil)
	r := &replays{price: 2.5}
	p.Backtests = r
	url := servePage(t, p)
	b.size(1280, 900, "light")
	b.do(chromedp.Navigate(url + "#backtest"))
	b.wants(`document.querySelector("#backtest-state").innerText === "Choose a workload." && document.querySelector("#backtest").hidden`)
	b.wants(`[...document.querySelectorAll("#backtest-names option")].map((o) => o.value).join() === "batch/embed,llm/chat"`)
	b.wants(`document.querySelector('#views a[href="#backtest"]').getAttribute("aria-current") === "page"`)
	state := func(text string) string {
		return fmt.Sprintf(`document.querySelector("#backtest-state").innerText === %q`, text)
	}
	b.do(chromedp.Focus("#backtest-q"), chromedp.KeyEvent("batch/embed\r"))
	b.wants(state("No replay: less than an hour of the load is recorded."))
	eval[string](b, `$("backtest-q").value = ""`)
	b.do(chromedp.Focus("#backtest-q"), chromedp.KeyEvent("llm/nope\r"))
	b.wants(state("there is no GPUAutoscaler llm/nope"))
	eval[string](b, `$("backtest-q").value = ""`)
	b.do(chromedp.Focus("#backtest-q"), chromedp.KeyEvent("llm/chat\r"))
	b.wants(state("Waiting: 1 other replay comes first."))
	b.wants(state("Running: 2 of 7 parts of the history are replayed."))
	b.wants(`document.querySelectorAll("#backtest-rows tr").length === 4 && location.hash === "#backtest?of=llm%2Fchat"`)
	b.wants(`[...document.querySelectorAll("#backtest-answers dt")].map((e) => e.innerText).join() === "Is the objective kept?,What does it cost?,What does it save?,What to change?"`)
	b.wants(`document.querySelector("#backtest-answers dd").innerText.startsWith("Yes: 0.41 %")`)
	b.wants(`document.querySelector("#backtest-rows tr:nth-child(2)").innerText.replace(/\s+/g, " ") === "objective 95 % missed in 1 of 7 parts 2.90 % 331.2 $828 −17 %"`)
	b.wants(`document.querySelector("#backtest-notes").innerText.includes("<img src=x")`)
	b.shoot("backtest-light")
	asked := r.asked.Load()

	// A link shows the same; the workload's details have it, too.
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(url+"#backtest?of=llm/chat"))
	b.wants(`document.querySelectorAll("#backtest-rows tr").length === 4 && document.querySelector("#backtest-q").value === "llm/chat"`)
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(url+"#workloads?open=llm/chat"))
	b.do(chromedp.Click(`.detail a[href="#backtest?of=llm%2Fchat"]`))
	b.wants(`document.querySelectorAll("#backtest-rows tr").length === 4`)
	if n := r.asked.Load() - asked; n > 4 {
		t.Errorf("the page asked %d times for a result that it has", n)
	}
	for _, width := range []int64{360, 600, 1280, 2560} {
		b.size(width, 900, "dark")
		b.wants(fmt.Sprintf("innerWidth === %d", width))
		b.fits(fmt.Sprint("a backtest at ", width, " px"))
		b.shoot(fmt.Sprint("backtest-dark-", width))
	}
	q := New(newLive(), nil) // without a price
	q.Backtests = &replays{}
	b.do(chromedp.Navigate("about:blank"), chromedp.Navigate(servePage(t, q)+"#backtest?of=llm/chat"))
	b.wants(`document.querySelectorAll("#backtest-rows tr").length === 4 && [...document.querySelectorAll("#backtest .usd")].every((x) => x.hidden)`)
}
