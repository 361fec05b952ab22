// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpupilot/gpupilot/internal/expo"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/promapi"
	"github.com/gpupilot/gpupilot/internal/promstore"
	"github.com/gpupilot/gpupilot/internal/scrape"
)

// metadata describes the metrics of PromQL: those of GPUs and of agents from our tables,
// the controller's own from its registry, and others as their pages do.
type metadata struct {
	own   prometheus.Gatherer
	pages func(namespaces []string, family string) []scrape.Metadata

	mu       sync.Mutex
	gathered time.Time
	ours     map[string]promapi.Metadata // of the controller and of agents
}

// ownMetadataTTL is how long the descriptions of the controller's own metrics are used.
// Metrics with labels appear with their first value.
const ownMetadataTTL = time.Minute

// of is promapi.Deps's Metadata.
func (m *metadata) of(v promapi.Viewer, family string) []promapi.Metadata {
	if x, ok := m.known(family, time.Now()); ok {
		return []promapi.Metadata{x}
	}
	var out []promapi.Metadata
	for _, x := range m.pages(v.Namespaces, family) {
		if d := promapi.Metadata(x); !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// known returns the description of a metric that no page can change.
func (m *metadata) known(family string, now time.Time) (promapi.Metadata, bool) {
	if x, ok := fieldMetadata(family); ok {
		return x, true
	}
	if help, ok := promstore.HelpOf(family); ok {
		return promapi.Metadata{Type: "gauge", Help: help}, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.gathered) > ownMetadataTTL {
		m.gathered, m.ours = now, m.gather()
	}
	x, ok := m.ours[family]
	return x, ok
}

func (m *metadata) gather() map[string]promapi.Metadata {
	out := map[string]promapi.Metadata{}
	for _, d := range expo.Descriptions() {
		out[d.Name] = promapi.Metadata{Type: string(d.Type), Help: d.Help}
	}
	families, _ := m.own.Gather() // what cannot be gathered has no description
	for _, f := range families {
		kind := strings.ToLower(f.GetType().String())
		if kind == "untyped" {
			kind = "unknown"
		}
		out[f.GetName()] = promapi.Metadata{Type: kind, Help: f.GetHelp(), Unit: f.GetUnit()}
	}
	return out
}

// fieldMetadata describes a GPU's metric under its name in any profile.
func fieldMetadata(name string) (promapi.Metadata, bool) {
	ref, ok := names.Metric(name)
	if !ok {
		return promapi.Metadata{}, false
	}
	f, ok := gpu.Lookup(ref.Field)
	if !ok {
		return promapi.Metadata{}, false
	}
	x := promapi.Metadata{Type: "gauge", Help: f.Help, Unit: names.UnitOf(f.Unit, ref.Scale)}
	if f.Kind == gpu.Counter {
		x.Type = "counter"
	}
	if n, _ := names.Profile49.Name(f); n == name {
		x.Help = names.Profile49.Help(f)
	}
	return x, true
}
