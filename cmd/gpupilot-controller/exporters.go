// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/gpupilot/gpupilot/internal/autoscaler/gpuexporter"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
	"github.com/gpupilot/gpupilot/internal/window/scrape"
)

// makeExporters makes the keeper of GPUExporters.
func (p *program) makeExporters() *gpuexporter.Keeper {
	return gpuexporter.New(gpuexporter.Settings{Namespace: p.cfg.agentsIn, Image: p.cfg.agentImage}, gpuexporter.Deps{
		Live: p.clients.Live, Client: p.clients.Client, Installed: p.clients.Installed,
		Pods:   func(s labels.Selector) []*corev1.Pod { return p.pods.Select(p.cfg.agentsIn, s) },
		Agents: p.exporterAgents,
		Ask: func(ctx context.Context, agent url.URL) (*gpuexporter.Report, error) {
			return askAgent(ctx, p.exporter, agent)
		},
		Parse: parseCollectors, Defaults: defaultCollectors,
		Record: func(e gpuexporter.Event) { p.recorder.Event(e.About, e.Kind, e.Reason, "Reconcile", e.Note) },
		Log:    p.log,
	})
}

// removeTimeout bounds --remove-exporter.
const removeTimeout = time.Minute

// remove is --remove-exporter. Labels that are left are not an error: an uninstallation goes on.
func (c *config) remove(ctx context.Context, log *slog.Logger) error {
	clients, err := kube.Connect(kube.Config{Kubeconfig: c.kubeconfig, UserAgent: "gpupilot-controller/" + version, Log: log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	err = gpuexporter.Remove(ctx, clients.Live, clients.Client, c.removeExporter)
	if errors.Is(err, gpuexporter.ErrLabelsLeft) {
		log.Warn("labels are left; to remove them: kubectl label nodes --all "+gpu.NodeLabel+"-", "err", err)
		return nil
	}
	if err == nil {
		log.Info("the GPUExporter is removed", "name", c.removeExporter)
	}
	return err
}

// podChanged tells a change of a pod to all who want to know.
func (p *program) podChanged(old, pod *corev1.Pod) {
	p.control.PodChanged(old, pod)
	p.promstore.PodChanged(old, pod)
	p.exporters.PodChanged(old, pod)
}

// leadExporters runs GPUExporters while this replica leads.
func (p *program) leadExporters(g *group) {
	if !p.cfg.exporters || !p.cfg.has(roleDecide) {
		return
	}
	g.run(never(p.watchExporters))
	g.run(never(func(ctx context.Context) { p.term.Run(ctx, p.exporters.Run) }))
}

// exporterAgents lists the agents that are scraped. The name of a target consists of its
// kind, the namespace and name of its pod, its port and its path.
func (p *program) exporterAgents() []gpuexporter.Agent {
	targets := p.control.Agents()
	agents := make([]gpuexporter.Agent, 0, len(targets))
	for i := range targets {
		parts := strings.SplitN(targets[i].Name, "/", 4)
		if len(parts) < 3 {
			continue
		}
		pod, _, _ := strings.Cut(parts[2], ":")
		agents = append(agents, gpuexporter.Agent{Pod: pod, Node: targets[i].Labels.Node, URL: targets[i].URL})
	}
	return agents
}

// watchExporters requests a pass of the keeper at each change of a GPUExporter, once the
// API server serves the kind, and of a node.
func (p *program) watchExporters(ctx context.Context) {
	if p.clients.AwaitInstalled(ctx, gpuexporter.Kind()) != nil {
		return
	}
	wake := func(any) { p.exporters.Wake() }
	h := toolscache.ResourceEventHandlerFuncs{AddFunc: wake, UpdateFunc: func(_, _ any) { p.exporters.Wake() }, DeleteFunc: wake}
	if p.clients.Watch(ctx, gpuexporter.Kind(), h) == nil {
		h.UpdateFunc = func(old, obj any) {
			if before, ok := old.(*corev1.Node); ok && sameGPUs(before, obj.(*corev1.Node)) {
				return // a heartbeat
			}
			p.exporters.Wake()
		}
		_ = p.clients.Watch(ctx, &corev1.Node{}, h) // the only possible error is that of ctx
	}
}

// sameGPUs reports whether two versions of a node have the same labels and resources, as
// far as the cache keeps them.
func sameGPUs(a, b *corev1.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && equality.Semantic.DeepEqual(a.Status.Capacity, b.Status.Capacity)
}

// parseCollectors is the agent's parser of a list of metrics.
func parseCollectors(text string) (metrics int, invalid []error) {
	c, bad := exposition.ParseCollectors(text)
	for _, e := range bad {
		invalid = append(invalid, e)
	}
	return len(c.Metrics), invalid
}

// defaultCollectors is the agent's built-in list of a profile, as CSV.
func defaultCollectors(profile string) string {
	known, err := names.ParseProfile(profile)
	if err != nil {
		known = names.Profile48 // the CRD does not let another one in
	}
	c := exposition.DefaultCollectors(known)
	var b strings.Builder
	w := csv.NewWriter(&b)
	for _, m := range c.Metrics {
		_ = w.Write([]string{m.Name, string(m.Type), m.Help}) // a strings.Builder takes everything
	}
	for _, l := range c.Labels {
		_ = w.Write([]string{l.Name, string(exposition.LabelType), l.Name})
	}
	w.Flush()
	return b.String()
}

// maxReport bounds an agent's answer: 72 devices with their processes are 200 KB.
const maxReport = 4 << 20

// askAgent asks an agent for its GPUs.
func askAgent(ctx context.Context, client scrape.Doer, metrics url.URL) (*gpuexporter.Report, error) {
	at := metrics
	at.Path, at.RawQuery = "/api/v1/gpus", ""
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, errors.New("the agent does not answer") // the address is nobody's business
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent answers %d", resp.StatusCode)
	}
	return parseReport(io.LimitReader(resp.Body, maxReport))
}

// parseReport reads what internal/node/agent serves as /api/v1/gpus.
func parseReport(r io.Reader) (*gpuexporter.Report, error) {
	var doc struct {
		Error   string `json:"error"`
		Devices []struct {
			UUID  string `json:"uuid"`
			Model string `json:"model"`
			Up    bool   `json:"up"`
			MIG   *struct {
				ParentUUID string `json:"parentUuid"`
			} `json:"mig"`
		} `json:"devices"`
	}
	if err := json.NewDecoder(r).Decode(&doc); err != nil {
		return nil, errors.New("the agent's answer cannot be decoded")
	}
	report := &gpuexporter.Report{Error: bounded(doc.Error), Models: map[string]int{}}
	seen := map[string]bool{}
	for _, d := range doc.Devices {
		if !d.Up {
			report.Down++
		}
		whole, model := d.UUID, bounded(d.Model)
		if d.MIG != nil {
			whole = d.MIG.ParentUUID
		}
		if seen[whole] || report.Models[model] == 0 && len(report.Models) == maxModels {
			continue
		}
		seen[whole] = true
		report.Models[model]++
	}
	return report, nil
}

// The bounds of what an agent may put into a status.
const (
	maxModels    = 16 // of a node
	maxModelName = 128
)

func bounded(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), maxModelName)], "")
}
