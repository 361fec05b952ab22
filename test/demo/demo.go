// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/simnode"
	"github.com/gpupilot/gpupilot/test/stack"
)

// The intervals at which the demo samples, redraws the screen, and prints a line
// without a screen.
const (
	lookEvery = 200 * time.Millisecond
	drawEvery = 400 * time.Millisecond
	sayEvery  = 5 * time.Second
)

// The default size of the screen.
const defaultWidth, defaultHeight = 100, 30

// firstTimeout bounds the time until the first replicas serve.
const firstTimeout = 2 * time.Minute

// demo is one run of the demo.
type demo struct {
	scenario scenario
	out      io.Writer
	quit     context.CancelFunc // ends the demo, as Ctrl-C does
	screen   *os.File           // nil: not a terminal

	stack  *stack.Stack
	events chan happening
	cancel context.CancelFunc // of the watching
	done   sync.WaitGroup

	began    atomic.Pointer[time.Time] // when the load began; nil: not yet
	view     view
	rejected map[string]float64
	chain    *chain // nil: classic reads GPUPilot's metrics
}

func newDemo(s scenario, out io.Writer, quit context.CancelFunc) *demo {
	d := &demo{scenario: s, out: out, quit: quit, events: make(chan happening, 64), rejected: map[string]float64{}}
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		d.screen = f
	}
	d.view = view{
		tracks: []*track{{name: llm, least: int(s.least), full: s.full}, {name: classic, least: int(s.least), full: s.full}}, labels: []string{"GPUAutoscaler", "plain HPA"},
		load: s.name, length: s.length, round: s.round(),
	}
	return d
}

// offered returns the current load; 0 until the first replicas serve.
func (d *demo) offered(now time.Time) float64 {
	began := d.began.Load()
	if began == nil {
		return 0
	}
	return d.scenario.shape.At(now.Sub(*began))
}

// start starts everything and prints the addresses.
func (d *demo) start(ctx context.Context) error {
	begin := time.Now()
	d.say("starting a Kubernetes control plane, %d simulated nodes with %d GPUs each, their agents and the controller ...", nodes, gpusPerNode)
	var workloads []simnode.Workload
	for _, name := range []string{llm, classic} {
		workloads = append(workloads, simnode.Workload{Name: name, Model: model(), Offered: d.offered, Latency: latency()})
	}
	var err error
	d.stack, err = stack.Start(ctx, stack.Config{
		Nodes: nodes, GPUs: gpusPerNode, Workloads: workloads, HPASyncPeriod: d.scenario.hpaSync,
		ControllerArgs: []string{"--gpu-price", "2"}, // USD of a GPU-hour
	})
	if err != nil {
		return err
	}
	if d.scenario.chain != "" {
		if d.chain, err = startChain(ctx, d.stack, d.scenario.chain); err != nil {
			return err
		}
		d.view.labels = []string{"objective " + objective, "the usual chain"}
		d.view.tracks[0].window = planWindow(d.scenario.startup)
	}
	if err := d.deploy(ctx); err != nil {
		return err
	}
	watching, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.cancel = cancel
	d.done.Go(func() { watchEvents(watching, d.stack.Client, d.events) })
	d.describe(time.Since(begin))
	return nil
}

// deploy creates both workloads and their autoscalers.
func (d *demo) deploy(ctx context.Context) error {
	for _, name := range []string{llm, classic} {
		dep := stack.Deployment(namespace, name, d.scenario.least, d.scenario.startup)
		if err := d.stack.Client.Create(ctx, dep); err != nil {
			return fmt.Errorf("create deployment %s: %w", name, err)
		}
	}
	autoscalers := []client.Object{d.scenario.autoscaler(), d.scenario.plainHPA()}
	if d.chain != nil {
		autoscalers = []client.Object{d.scenario.promise(), d.scenario.chainHPA()}
	}
	for _, o := range autoscalers {
		if err := d.stack.Client.Create(ctx, o); err != nil {
			return fmt.Errorf("create the autoscaler of %s: %w", o.GetName(), err)
		}
	}
	return nil
}

// describe prints what runs, and the addresses at which to observe it.
func (d *demo) describe(took time.Duration) {
	d.view.title = fmt.Sprintf("%d nodes × %d simulated H200, a real control plane, up in %.1f s", nodes, gpusPerNode, took.Seconds())
	d.view.ui, d.view.kube = d.stack.ControllerURL, d.stack.Cluster.Kubeconfig()
	d.say("up after %.1f s: %d nodes with %d simulated GPUs each, %d real agents, the controller", took.Seconds(), nodes, gpusPerNode, nodes)
	for _, c := range d.view.commands() {
		d.say("  %-12s%s", c[0], c[1])
	}
	d.say("  load        %s; a replica takes %v to start and serves %g req/s at 100 %%, the target is %g %%", d.scenario.name, d.scenario.startup, capacity, target)
	d.describeAutoscalers()
	d.say("  both have %d to %d replicas and wait %v before they scale down", d.scenario.least, maxReplicas, stabilization)
	if d.scenario.length > 0 {
		d.say("  the load begins when the first replicas of each serve and lasts %v; Ctrl-C ends", d.scenario.length.Round(time.Second))
		return
	}
	d.say("  the load begins when the first replicas of each serve and repeats every %v; Ctrl-C ends", d.scenario.round())
}

func (d *demo) describeAutoscalers() {
	if d.chain != nil {
		d.say("  %-10s  GPUAutoscaler with preset vllm: %s of the requests get their first token within %v, and at most %v between tokens", llm, objective, firstLimit, tokenLimit)
		d.say("  %-10s  the usual chain: exporter every %v → Prometheus every %v → recording rule → adapter → HPA every %v", classic, chainEvery, chainEvery, slowSync)
		d.say("  prometheus  %s", d.chain.url)
		return
	}
	d.say("  %-10s  GPUAutoscaler on GPU utilisation", llm)
	note := ""
	if d.scenario.hpaSync != slowSync {
		note = fmt.Sprintf(" (Kubernetes' default is %v: this demo is short)", slowSync)
	}
	d.say("  %-10s  HorizontalPodAutoscaler on DCGM_FI_DEV_GPU_UTIL from custom.metrics.k8s.io, which looks every %v%s", classic, d.scenario.hpaSync, note)
	if d.scenario.length == 0 || d.scenario.length >= chainEnough {
		d.say("  There is no Prometheus on the PATH: with one, %s has an objective, and %s is behind the usual chain", llm, classic)
	}
}

// play waits for the first replica of each workload to serve and then lets the
// load run, until its end or ctx's.
func (d *demo) play(ctx context.Context) error {
	if d.screen != nil {
		d.openScreen()
		defer d.closeScreen()
	}
	patience := time.After(firstTimeout)
	look, show := time.NewTicker(lookEvery), time.NewTicker(d.showEvery())
	defer look.Stop()
	defer show.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.stack.Cluster.Failed():
			return fmt.Errorf("the control plane failed: %w", d.stack.Cluster.Err())
		case <-patience:
			if d.began.Load() == nil {
				return fmt.Errorf("after %v no replica of %s or of %s serves", firstTimeout, llm, classic)
			}
		case h := <-d.events:
			d.hear(h)
		case <-look.C:
			if err := d.look(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			if d.scenario.length > 0 && d.view.elapsed >= d.scenario.length {
				return nil
			}
		case <-show.C:
			d.show()
		}
	}
}

// look samples both workloads, and starts the load when both serve.
func (d *demo) look(ctx context.Context) error {
	now := time.Now()
	began := d.began.Load()
	if began != nil {
		d.view.elapsed = now.Sub(*began)
	}
	ready := true
	for _, t := range d.view.tracks {
		replicas, err := d.stack.Replicas(ctx, namespace, t.name)
		if err != nil {
			return fmt.Errorf("look at %s: %w", t.name, err)
		}
		s, _ := d.stack.Nodes.Status(t.name)
		x := sample{
			at: d.view.elapsed, offered: s.Offered, need: d.scenario.need(s.Offered), replicas: int(replicas),
			serving: s.Serving, util: s.Load.Utilization, queue: s.Load.Queue, rejected: s.Rejected - d.rejected[t.name],
			ended: s.Ended, missed: s.Missed,
		}
		d.rejected[t.name] = s.Rejected
		if t.now = x; began != nil {
			t.add(x)
		}
		ready = ready && s.Serving >= int(d.scenario.least)
	}
	if began == nil && ready {
		d.began.Store(&now)
	}
	return nil
}

// maxNotes bounds the events on the screen.
const maxNotes = 200

// hear records the Events of an autoscaler after the load has started. Before that, an
// HPA reports that its only pod has no metrics yet.
func (d *demo) hear(h happening) {
	if d.began.Load() == nil {
		return
	}
	n := note{at: d.view.elapsed, who: h.who, text: h.text}
	d.view.notes = append(d.view.notes, n)
	d.view.notes = d.view.notes[max(0, len(d.view.notes)-maxNotes):]
	if d.screen == nil {
		d.say("%s  > %s: %s", clock(n.at), n.who, n.text)
	}
}

func (d *demo) showEvery() time.Duration {
	if d.screen != nil {
		return drawEvery
	}
	return sayEvery
}

func (d *demo) show() {
	if d.screen == nil {
		if d.began.Load() != nil {
			d.say("%s", d.view.line())
		}
		return
	}
	width, height, err := term.GetSize(int(d.screen.Fd()))
	if err != nil {
		width, height = defaultWidth, defaultHeight
	}
	var b strings.Builder
	b.WriteString("\x1b[H") // home
	for i, line := range d.view.render(width, height) {
		if i == height {
			break
		}
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + "\x1b[K") // and clear to the line's end
	}
	b.WriteString("\x1b[J") // and below
	_, _ = io.WriteString(d.screen, b.String())
}

// openScreen changes to the terminal's second screen, so that the first one
// keeps its history.
func (d *demo) openScreen()  { _, _ = io.WriteString(d.screen, "\x1b[?1049h\x1b[?25l") }
func (d *demo) closeScreen() { _, _ = io.WriteString(d.screen, "\x1b[?25h\x1b[?1049l") }

// finish prints the summary, and reports whether the demo showed what it should.
func (d *demo) finish(interrupted bool) error {
	if len(d.view.tracks[0].samples) == 0 {
		return nil
	}
	if d.screen != nil { // what the second screen showed is gone
		width, _, err := term.GetSize(int(d.screen.Fd()))
		if err != nil {
			width = defaultWidth
		}
		for _, n := range d.view.notes {
			d.say("%s", strings.Join(n.lines(width), "\n"))
		}
	}
	a, b := d.view.tracks[0].summarise(), d.view.tracks[1].summarise()
	d.say("\n%v of load, %s\n", d.view.elapsed.Round(time.Second), d.scenario.name)
	printSummary(d.out, d.view.labels, d.view.tracks[0], a, b)
	d.say("")
	if interrupted || d.scenario.length == 0 {
		return nil
	}
	bad := verdict(a, b, int(d.scenario.least), d.scenario.recorded, d.chain != nil)
	if len(bad) == 0 && d.chain != nil && !d.scenario.recorded {
		d.say("%s kept its objective, and went up to what the load needed and back down; nothing is expected of %s", llm, classic)
		return nil
	}
	if len(bad) == 0 && d.chain != nil {
		d.say("%s went up and back down; nothing is expected of %s", llm, classic)
		return nil
	}
	if len(bad) == 0 {
		d.say("both workloads went up to what the load needed and back down")
		return nil
	}
	return errors.Join(errVerdict, errors.New(strings.Join(bad, "; ")))
}

// close ends everything. After a failure the end of the controller's log is already in
// the error.
func (d *demo) close() {
	if d.cancel != nil {
		d.cancel()
	}
	d.done.Wait()
	if d.stack != nil {
		d.keepLogs()
		d.stack.Close()
	}
	if d.chain != nil {
		d.chain.close()
	}
}

// keepLogs copies the controller's log to DEMO_LOGS.
func (d *demo) keepLogs() {
	dir := os.Getenv("DEMO_LOGS")
	if dir == "" {
		return
	}
	b, err := os.ReadFile(d.stack.ControllerLog())
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "controller.log"), b, 0o644)
	}
	if err != nil {
		d.say("logs not kept: %v", err)
	}
}

// say writes a line. If the output is a closed pipe, the demo ends.
func (d *demo) say(format string, a ...any) {
	if _, err := fmt.Fprintf(d.out, format+"\n", a...); err != nil {
		d.quit()
	}
}
