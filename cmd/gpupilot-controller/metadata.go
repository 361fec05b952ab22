// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
	"github.com/gpupilot/gpupilot/internal/promql/api"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/window/page"
)

// metadata describes the metrics of PromQL: those of GPUs and of agents from our tables,
// the controller's own from its registry, and others as their pages do.
type metadata struct {
	own   prometheus.Gatherer
	pages func(namespaces []string, family string) []page.Metadata

	mu       sync.Mutex
	gathered time.Time
	ours     map[string]api.Metadata // of the controller and of agents
}

// ownMetadataTTL is how long the descriptions of the controller's own metrics are used.
// Metrics with labels appear with their first value.
const ownMetadataTTL = time.Minute

// of implements api.Deps.Metadata.
func (m *metadata) of(v api.Viewer, family string) []api.Metadata {
	if x, ok := m.known(family, time.Now()); ok {
		return []api.Metadata{x}
	}
	var out []api.Metadata
	for _, x := range m.pages(v.Namespaces, family) {
		if d := api.Metadata(x); !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// known returns the description of a metric that no page can change.
func (m *metadata) known(family string, now time.Time) (api.Metadata, bool) {
	if x, ok := fieldMetadata(family); ok {
		return x, true
	}
	if help, ok := windows.HelpOf(family); ok {
		return api.Metadata{Type: "gauge", Help: help}, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.gathered) > ownMetadataTTL {
		m.gathered, m.ours = now, m.gather()
	}
	x, ok := m.ours[family]
	return x, ok
}

func (m *metadata) gather() map[string]api.Metadata {
	out := map[string]api.Metadata{}
	for _, d := range exposition.Descriptions() {
		out[d.Name] = api.Metadata{Type: string(d.Type), Help: d.Help}
	}
	families, _ := m.own.Gather() // what cannot be gathered has no description
	for _, f := range families {
		kind := strings.ToLower(f.GetType().String())
		if kind == "untyped" {
			kind = "unknown"
		}
		out[f.GetName()] = api.Metadata{Type: kind, Help: f.GetHelp(), Unit: f.GetUnit()}
	}
	return out
}

// fieldMetadata describes a GPU's metric under its name in any profile.
func fieldMetadata(name string) (api.Metadata, bool) {
	ref, ok := names.Metric(name)
	if !ok {
		return api.Metadata{}, false
	}
	f, ok := gpu.Lookup(ref.Field)
	if !ok {
		return api.Metadata{}, false
	}
	x := api.Metadata{Type: "gauge", Help: f.Help, Unit: names.UnitOf(f.Unit, ref.Scale)}
	if f.Kind == gpu.Counter {
		x.Type = "counter"
	}
	if n, _ := names.Profile49.Name(f); n == name {
		x.Help = names.Profile49.Help(f)
	}
	return x, true
}
