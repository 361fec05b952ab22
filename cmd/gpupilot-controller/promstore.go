// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/gpupilot/gpupilot/internal/autoscaler/kubeflags"
	"github.com/gpupilot/gpupilot/internal/promql/windows"
	"github.com/gpupilot/gpupilot/internal/window/page"
)

// makePromStore makes the storage that PromQL reads: the series of the windows.
func (p *program) makePromStore() {
	instance, err := os.Hostname()
	if err != nil {
		instance = p.identity
	}
	p.promstore = windows.New(windows.Config{
		Keep: windows.KeepAuto, Interval: p.cfg.interval, Instance: instance,
		PodBytes: max(minPodBytes, kubeflags.Bytes(p.cfg.memory)/podShare),
	}, windows.Deps{
		Windows: p.store, Pods: p.pods, Holder: p.devices.Holder, Own: p.registry, Log: p.log,
		SetNames: func(all bool, names []string) { p.scraper.SetNames(page.NewNames(all, names)) },
	})
	p.registry.MustRegister(p.promstore)
}

// The memory of the index of pods for kube_pod_*: an eighth of --window-memory, which it
// is not a part of.
const (
	podShare    = 8
	minPodBytes = 16 << 20
)
