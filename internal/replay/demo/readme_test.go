// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"flag"
	"image"
	"image/png"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/serve/webui/static"
	"github.com/gpupilot/gpupilot/internal/terminal/remote"
)

var (
	update  = flag.Bool("update", false, "write the object and its explanation into README.md")
	picture = flag.String("picture", "", "write README's picture into this `file`, with chromium")
)

const readme = "../../../README.md"

// README shows the object of the demo, and how gpupilot explain shows one of its decisions: the first one after ten minutes
// that changes the replicas. -update writes both.
func TestReadme(t *testing.T) {
	want := "```yaml\n" + object + "```\n\n```\n$ gpupilot explain llm/chat\n" + explained(t) + "```\n"
	b, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(b), "```yaml\n"+v1alpha1Head)
	_, after, found := strings.Cut(rest, "$ gpupilot explain llm/chat\n")
	_, after, closed := strings.Cut(after, "```\n")
	switch {
	case !found || !closed:
		t.Fatal("README has no object with its explanation")
	case *update:
		if err := os.WriteFile(readme, []byte(before+want+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case !strings.Contains(string(b), want):
		t.Errorf("README does not show this: write it with go test ./internal/replay/demo -update\n%s", want)
	}
}

const v1alpha1Head = "apiVersion: gpupilot.dev/v1alpha1\n"

// explained is what gpupilot explain prints of the object while that decision is the last one, up to what would change it: that
// comes from the state in the object's status, which the demo does not write.
func explained(t *testing.T) string {
	t.Helper()
	load, err := LoadNamed("morning")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Load: load, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	for d.second < 600 || !d.last.Changes() {
		if d.advance(d.live.Seconds()) {
			t.Fatal("nothing changes after ten minutes")
		}
	}
	var a v1alpha1.GPUAutoscaler
	if err := yaml.UnmarshalStrict([]byte(object), &a); err != nil {
		t.Fatal(err)
	}
	last := &v1alpha1.DecisionStatus{Time: metav1.NewMicroTime(d.last.Time), Reason: string(d.last.Rule)}
	for _, s := range d.last.Steps {
		last.Steps = append(last.Steps, v1alpha1.StepStatus{Rule: string(s.Rule), Before: s.Before, After: s.After, Message: s.Sentence()})
	}
	for _, in := range d.last.Inputs {
		last.Inputs = append(last.Inputs, v1alpha1.InputStatus{
			Signal: in.Signal, Unit: in.Unit, Value: strconv.FormatFloat(in.Value, 'g', 3, 64), Target: strconv.FormatFloat(in.Target, 'g', 3, 64),
			Replicas: in.Fresh, AgeMilliseconds: in.Age.Milliseconds(), Deciding: in.Deciding,
		})
	}
	a.Status = v1alpha1.GPUAutoscalerStatus{
		CurrentReplicas: d.last.Current, ServingReplicas: d.last.Serving, StartingReplicas: d.last.Starting, DesiredReplicas: &d.last.Replicas, LastDecision: last,
	}
	var out strings.Builder
	remote.Write(&out, &a, d.last.Time.Add(time.Second))
	text, _, _ := strings.Cut(out.String(), "what would change it")
	return text
}

// README's picture is the page of gpupilot demo at half past eight, down to the changes: they chain. -picture takes it.
func TestPicture(t *testing.T) {
	load, err := LoadNamed("morning")
	if err != nil {
		t.Fatal(err)
	}
	prices, err := price.Parse("2")
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Config{Load: load, Seed: 1, Prices: prices})
	if err != nil {
		t.Fatal(err)
	}
	for !d.advance(1800) {
	}
	s := d.State(0)
	for i, c := range s.Changes[1:] {
		if c.From != s.Changes[i].To {
			t.Errorf("%d → %d follows %d → %d", c.From, c.To, s.Changes[i].From, s.Changes[i].To)
		}
	}
	if last := s.Changes[len(s.Changes)-1]; int(last.To) != s.Contestants[0].Replicas || len(s.Changes) < 4 {
		t.Errorf("%d changes, the last one to %d; there are %d replicas", len(s.Changes), last.To, s.Contestants[0].Replicas)
	}
	if *picture != "" {
		page := httptest.NewServer(static.WithFiles(d.Handler()))
		t.Cleanup(page.Close)
		shoot(t, page.URL)
	}
}

// shoot takes the picture of a page.
func shoot(t *testing.T, url string) {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox)...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(1400, 1000), chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](`document.querySelectorAll("#decisions li").length > 3 && document.querySelectorAll("canvas").length === 2`)); err != nil {
		t.Fatal(err)
	}
	end, err := chromedp.Run(ctx, chromedp.Evaluate[float64](`document.querySelector("#h-object").getBoundingClientRect().top + scrollY`))
	if err != nil {
		t.Fatal(err)
	}
	b, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	whole, err := png.Decode(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	part := whole.(interface {
		SubImage(image.Rectangle) image.Image
	}).SubImage(image.Rect(0, 0, whole.Bounds().Dx(), int(end)))
	if err := (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, part); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(*picture, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
