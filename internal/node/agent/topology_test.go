// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// mapper is a reader that knows the topology.
type mapper struct {
	*reader
	topology gpu.Topology
	err      error
	asked    int
}

func (m *mapper) Topology() (gpu.Topology, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	return m.topology, m.err
}

// times is how often it was asked.
func (m *mapper) times() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.asked
}

func TestTopology(t *testing.T) {
	m := &mapper{reader: newReader(gpus(2)...), topology: gpu.Topology{
		GPUs:  []gpu.GPUPlace{{UUID: "GPU-0", CPUs: "0-55", NUMANodes: "0", NVLinks: 18}, {UUID: "GPU-1", NVLinks: -1}},
		Pairs: []gpu.GPUPair{{A: "GPU-0", B: "GPU-1", Path: gpu.SameNUMANode, NVLinks: -1}},
	}}
	bubbleOver(t, Config{}, m.reader, m, nil, func(n *node) {
		n.pass(time.Second)
		got, err := json.Marshal(n.document(n.out.last(), time.Now()).Topology)
		if err != nil {
			t.Fatal(err)
		}
		want := `{"gpus":[{"uuid":"GPU-0","cpus":"0-55","numaNodes":"0","nvlinks":18},{"uuid":"GPU-1"}],"pairs":[{"uuids":["GPU-0","GPU-1"],"path":"NODE"}]}`
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		n.pass(topologyEvery - 5*time.Second)
		if n := m.times(); n != 1 {
			t.Errorf("asked %d times while nothing changed", n)
		}
		n.pass(10 * time.Second)
		if n := m.times(); n != 2 {
			t.Errorf("asked %d times, want 2", n)
		}
		// Another GPU, and a part of what is known: it is better than nothing.
		m.set(func() {
			m.devices, m.err = gpus(3), errors.New("too slow")
			m.topology = gpu.Topology{GPUs: []gpu.GPUPlace{{UUID: "GPU-2", NVLinks: -1}}}
		})
		n.pass(enumerateEvery + 2*time.Second)
		if d := n.document(n.out.last(), time.Now()).Topology; len(d.GPUs) != 1 || m.times() != 3 || strings.Count(n.logs, "too slow") != 1 {
			t.Errorf("%+v, asked %d times, log:\n%s", d, m.times(), n.logs)
		}
	})
}
