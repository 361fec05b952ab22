// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/gpupilot/gpupilot/internal/autoscaler/gpuexporter"
	"github.com/gpupilot/gpupilot/internal/autoscaler/kube"
	"github.com/gpupilot/gpupilot/internal/base/group"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
)

// makeExporters makes the keeper of GPUExporters.
func (p *program) makeExporters() *gpuexporter.Keeper {
	return gpuexporter.New(gpuexporter.Settings{Namespace: p.cfg.agentsIn, Image: p.cfg.agentImage}, gpuexporter.Deps{
		Live: p.clients.Live, Client: p.clients.Client, Installed: p.clients.Installed,
		AwaitInstalled: p.clients.AwaitInstalled, Watch: p.clients.Watch,
		Pods:   func(s labels.Selector) []*corev1.Pod { return p.pods.Select(p.cfg.agentsIn, s) },
		Agents: func() []gpuexporter.Agent { return gpuexporter.AgentsOf(p.control.Agents()) },
		Ask: func(ctx context.Context, agent url.URL) (*gpuexporter.Report, error) {
			return gpuexporter.ReadReport(ctx, p.exporter, agent)
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
func (p *program) leadExporters(g *group.Group) {
	if !p.cfg.exporters || !p.cfg.has(roleDecide) {
		return
	}
	g.Run(group.Never(p.exporters.Watch))
	g.Run(group.Never(func(ctx context.Context) { p.term.Run(ctx, p.exporters.Run) }))
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
	return c.CSV()
}
