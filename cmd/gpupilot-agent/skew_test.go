// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu/sim"
)

var labelName = regexp.MustCompile(`[{,]([A-Za-z_]\w*)="`)

// families returns the label names of each metric of a page: all that occur.
func families(page string) map[string][]string {
	out := map[string][]string{}
	for line := range strings.Lines(page) {
		name, _, _ := strings.Cut(line, " ")
		name, _, _ = strings.Cut(name, "{")
		if strings.HasPrefix(line, "#") || name == "" {
			continue
		}
		labels := out[name]
		for _, m := range labelName.FindAllStringSubmatch(line, -1) {
			if !slices.Contains(labels, m[1]) {
				labels = append(labels, m[1])
			}
		}
		out[name] = labels
	}
	return out
}

// A controller of an earlier version finds on this agent's page what it found on that of its own version: every
// metric, with every label.
func TestPageHasWhatEarlierVersionsShowed(t *testing.T) {
	recorded, err := filepath.Glob("../gpupilot-controller/testdata/compat/v*/metrics.txt")
	if err != nil || len(recorded) == 0 {
		t.Fatalf("%d recordings, %v", len(recorded), err)
	}
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	serveKubelet(t, socket, &kubelet{device: sim.UUID("n1", 1)})
	url, _, _ := start(t, "--backend", "sim", "--sim-gpus", "2", "--node-name", "n1", "-c", "50", "-k", "--pod-resources-kubelet-socket", socket, "--enable-exporter-metrics")
	var page string
	until(t, func() bool {
		_, page = get(t, url+"/metrics")
		return strings.Contains(page, "gpupilot_gpu_allocation_info{")
	})
	shown := families(page)
	for _, file := range recorded {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for name, labels := range families(string(b)) {
			for _, l := range labels {
				if !slices.Contains(shown[name], l) {
					t.Errorf("%s: %s has the label %s, and now has %v", file, name, l, shown[name])
				}
			}
			if _, ok := shown[name]; !ok {
				t.Errorf("%s: the agent does not show %s any more", file, name)
			}
		}
	}
}
