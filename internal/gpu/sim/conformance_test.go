// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/test/gputest"
)

func TestConformance(t *testing.T) {
	gputest.Run(t, func(t *testing.T) gputest.Backend {
		k := &knobs{t: t, path: filepath.Join(t.TempDir(), "state.json")}
		for range 3 {
			g := Busy(20, 1000)
			g.Fields = map[string]*float64{}
			k.state.GPUs = append(k.state.GPUs, g)
		}
		k.write()
		r, err := New(Config{GPUs: len(k.state.GPUs), Node: "conformance", StateFile: k.path})
		if err != nil {
			t.Fatal(err)
		}
		return gputest.Backend{Reader: r, Control: gputest.Control{
			Set: k.set, Unsupport: k.unsupport, RaiseXID: k.raise, Hang: k.hang,
			Lose:         func(i int) { k.state.GPUs[i].Lost = true; k.write() },
			Restore:      func(i int) { k.state.GPUs[i].Lost = false; k.write() },
			LoadDriver:   k.write,
			UnloadDriver: k.remove,
			SetProcesses: k.setProcesses,
		}}
	})
}

// knobs turns the suite's knobs by writing the state file.
type knobs struct {
	t     *testing.T
	path  string
	state State
}

func (k *knobs) write() {
	if err := WriteState(k.path, k.state); err != nil {
		k.t.Fatal(err)
	}
}

func (k *knobs) remove() {
	if err := os.Remove(k.path); err != nil {
		k.t.Fatal(err)
	}
}

func (k *knobs) set(i int, id gpu.FieldID, value float64) bool {
	g := &k.state.GPUs[i]
	switch {
	case math.IsNaN(value):
		g.Fields[id.String()] = nil
	case id == gpu.FBUsed: // FBFree and FBUsedPercent follow
		g.MemoryUsedMiB = &value
	default:
		g.Fields[id.String()] = &value
	}
	k.write()
	return true
}

func (k *knobs) unsupport(i int, id gpu.FieldID) bool { return k.set(i, id, math.NaN()) }

func (k *knobs) hang(i int) func() {
	k.state.GPUs[i].Hang = true
	k.write()
	return func() { k.state.GPUs[i].Hang = false; k.write() }
}

func (k *knobs) raise(i int, code uint64) {
	xids := &k.state.GPUs[i].XIDs
	x := XID{Code: code}
	if j := slices.IndexFunc(*xids, func(x XID) bool { return x.Code == code }); j >= 0 {
		x = (*xids)[j]
		*xids = slices.Delete(*xids, j, j+1)
	}
	x.Count++
	*xids = append(*xids, x)
	k.write()
}

func (k *knobs) setProcesses(i int, ps []gpu.Process) {
	g := &k.state.GPUs[i]
	g.Processes = []Process{}
	for _, p := range ps {
		q := Process{PID: p.PID, Type: p.Type.String()}
		if p.Memory.OK {
			mib := p.Memory.Value / (1 << 20)
			q.MemoryMiB = &mib
		}
		if p.Utilization.OK {
			percent := 100 * p.Utilization.Value
			q.Utilization = &percent
		}
		g.Processes = append(g.Processes, q)
	}
	k.write()
}
