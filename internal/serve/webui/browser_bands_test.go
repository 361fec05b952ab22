// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/shown"
	"github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// lasting are conditions as the controller writes them: each is looked at, and is a band while it lasts.
func lasting() []metav1.Condition {
	f := func(kind string, status metav1.ConditionStatus, reason, message string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	}
	return []metav1.Condition{
		f(v1alpha1.ConditionAbleToScale, "True", "Able", "Deployment chat is scaled by HorizontalPodAutoscaler gpupilot-chat of this GPUAutoscaler"),
		f(v1alpha1.ConditionOverridden, "True", "Overridden", "6 replicas until 18:00 (incident 4711)"),
		f(v1alpha1.ConditionRollout, "True", "Rollout", "2 of 4 replicas are new"),
		f(v1alpha1.ConditionDraining, "True", "Draining", "1 of 4 replicas leaves, at 16:45 at the latest"),
		f(v1alpha1.ConditionIdle, "True", v1alpha1.ReasonIdleSoon, "0 replicas stay at 16:40, if nobody uses it"),
		f(v1alpha1.ConditionPaired, "False", v1alpha1.ReasonPairNotFound, "no GPUAutoscaler decode in the namespace"),
	}
}

// bandsOf are the bands of lasting, as the controller makes them.
func bandsOf(d *view.WorkloadDetail) {
	var spans shown.Spans
	spans.Observe(d.Time.Add(-3*time.Minute), shown.SpansOf(lasting(), nil, nil))
	d.Conditions, d.Spans = shown.Conditions(lasting()), spans.List()
}

var bands = []string{
	"Overridden True: Overridden", "RolloutInProgress True: Rollout", "Draining True: Draining", "Idle True: IdleSoon", "Paired False: " + v1alpha1.ReasonPairNotFound,
}

// The JSON of a workload names the bands of overrides, rollouts, drains, idleness and pairs.
func TestBandsAreNamed(t *testing.T) {
	src := newLive()
	src.detail = bandsOf
	var d view.WorkloadDetail
	if w := ask(New(src, nil).Handler(), "/api/v1/workload?namespace=llm&name=chat"); json.Unmarshal(w.Body.Bytes(), &d) != nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if len(d.Spans) != len(bands) {
		t.Fatalf("%+v, want the bands %q", d.Spans, bands)
	}
	for i, want := range bands {
		name, _, _ := strings.Cut(want, " ")
		if s := d.Spans[i]; s.Kind != view.SpanCondition || s.Name != want || !s.Until.IsZero() || s.Text == "" {
			t.Errorf("band %+v, want %q until now", s, want)
		}
		if c := d.Conditions[i+1]; c.Type != name || !c.Notable {
			t.Errorf("condition %+v, want %s to be looked at", c, name)
		}
	}
	if c := d.Conditions[0]; c.Notable {
		t.Errorf("%+v is as usual", c)
	}
}

// A reader sees the bands by name below the chart, who sets the replicas, and what a deletion does to them.
func TestBrowserBands(t *testing.T) {
	b := openBrowser(t)
	b.size(1280, 900, "light")
	src := newLive(func(v *view.View) {
		w := &v.Workloads[0]
		w.Actuation, w.HPA, w.StartingSince = "HPA", target.HPAName(w.Name), time.Time{}
		w.Deletion = "Deployment llm/chat gets 3 replicas again, as before it"
	})
	src.detail = bandsOf
	b.do(chromedp.Navigate(serve(t, src, nil)))
	b.wants(listed)
	b.wants(fmt.Sprintf(`document.querySelector(%q).innerText.includes("HorizontalPodAutoscaler gpupilot-chat sets the replicas")`, row("llm/chat")))
	b.do(chromedp.Focus(row("llm/chat")+" button"), chromedp.KeyEvent("\r"))
	b.wants(charted)
	b.wants(fmt.Sprintf(`document.querySelectorAll(".bands li").length === %d`, len(bands)))
	for i, want := range bands {
		name, rest, _ := strings.Cut(want, " ")
		status, _, _ := strings.Cut(rest, ":")
		text := lasting()[i+1].Message
		b.wants(fmt.Sprintf(`[...document.querySelectorAll(".bands li")].some((e) => e.innerText.startsWith(%q) && e.innerText.includes("until now: " + %q))`, want, text))
		b.wants(fmt.Sprintf(`[...document.querySelectorAll(".detail .notable")].some((e) => e.innerText.includes(%q))`, name+" is "+status))
	}
	b.wants(`document.querySelector(".detail .cols details").textContent.includes("is scaled by HorizontalPodAutoscaler gpupilot-chat of this GPUAutoscaler")`)
	b.wants(`document.querySelector(".detail").innerText.includes("When the GPUAutoscaler is deleted, Deployment llm/chat gets 3 replicas again, as before it.")`)
	b.shoot("bands")
	b.size(360, 900, "dark")
	b.fits("bands")
}
