// SPDX-License-Identifier: Apache-2.0

package api

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/window/page"
)

// DescriptionsConfig says where descriptions of metrics are from.
type DescriptionsConfig struct {
	Own    prometheus.Gatherer // the controller's metrics
	Agents map[string]Metadata // of agents about themselves, by name
	// Pages returns what the pages of pods in some namespaces say about a family; nil: in
	// all.
	Pages func(namespaces []string, family string) []page.Metadata
}

// Descriptions describes the metrics of PromQL: those of GPUs and of agents from our
// tables, the controller's own from its registry, and others as their pages do.
type Descriptions struct {
	cfg DescriptionsConfig

	mu       sync.Mutex
	gathered time.Time
	ours     map[string]Metadata // of the controller and of agents
}

// NewDescriptions returns the descriptions.
func NewDescriptions(cfg DescriptionsConfig) *Descriptions { return &Descriptions{cfg: cfg} }

// ownTTL is how long the descriptions of the controller's own metrics are used.
// Metrics with labels appear with their first value.
const ownTTL = time.Minute

// Of describes the metrics of a family. It is Deps.Metadata.
func (m *Descriptions) Of(v Viewer, family string) []Metadata {
	if x, ok := m.known(family, time.Now()); ok {
		return []Metadata{x}
	}
	var out []Metadata
	for _, x := range m.cfg.Pages(v.Namespaces, family) {
		if d := Metadata(x); !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// known returns the description of a metric that no page can change.
func (m *Descriptions) known(family string, now time.Time) (Metadata, bool) {
	if x, ok := fieldMetadata(family); ok {
		return x, true
	}
	if help, ok := windows.HelpOf(family); ok {
		return Metadata{Type: "gauge", Help: help}, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.gathered) > ownTTL {
		m.gathered, m.ours = now, m.gather()
	}
	x, ok := m.ours[family]
	return x, ok
}

func (m *Descriptions) gather() map[string]Metadata {
	out := maps.Clone(m.cfg.Agents)
	if out == nil {
		out = map[string]Metadata{}
	}
	families, _ := m.cfg.Own.Gather() // what cannot be gathered has no description
	for _, f := range families {
		kind := strings.ToLower(f.GetType().String())
		if kind == "untyped" {
			kind = "unknown"
		}
		out[f.GetName()] = Metadata{Type: kind, Help: f.GetHelp(), Unit: f.GetUnit()}
	}
	return out
}

// fieldMetadata describes a GPU's metric under its name in any profile.
func fieldMetadata(name string) (Metadata, bool) {
	ref, ok := names.Metric(name)
	if !ok {
		return Metadata{}, false
	}
	f, ok := gpu.Lookup(ref.Field)
	if !ok {
		return Metadata{}, false
	}
	x := Metadata{Type: "gauge", Help: f.Help, Unit: names.UnitOf(f.Unit, ref.Scale)}
	if f.Kind == gpu.Counter {
		x.Type = "counter"
	}
	if n, _ := names.Profile49.Name(f); n == name {
		x.Help = names.Profile49.Help(f)
	}
	return x, true
}
