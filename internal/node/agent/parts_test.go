// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func partList() []gpu.PartSnapshot {
	g := gpus(1)[0]
	var out []gpu.PartSnapshot
	for _, p := range []gpu.Part{
		{Kind: gpu.NVSwitch, ID: 0},
		{Kind: gpu.NVSwitch, ID: 1},
		{Kind: gpu.NVLink, ID: 0, Parent: 0},
		{Kind: gpu.NVLink, ID: 3, Parent: 1},
		{Kind: gpu.NVLink, ID: 2, GPU: &g},
		{Kind: gpu.CPU, ID: 0},
		{Kind: gpu.CPUCore, ID: 5, Parent: 0},
	} {
		out = append(out, gpu.PartSnapshot{Part: p})
	}
	return out
}

// short names parts: s1 a switch, s1:3 a link of it, g0:2 one of a GPU, c0 a
// CPU, c0:5 a core.
func short(parts []gpu.PartSnapshot) string {
	var out []string
	for _, p := range parts {
		switch {
		case p.GPU != nil:
			out = append(out, fmt.Sprintf("g%d:%d", p.GPU.Index, p.ID))
		case p.Kind == gpu.NVLink:
			out = append(out, fmt.Sprintf("s%d:%d", p.Parent, p.ID))
		case p.Kind == gpu.CPUCore:
			out = append(out, fmt.Sprintf("c%d:%d", p.Parent, p.ID))
		default:
			out = append(out, fmt.Sprintf("%c%d", map[gpu.PartKind]rune{gpu.NVSwitch: 's', gpu.CPU: 'c'}[p.Kind], p.ID))
		}
	}
	return strings.Join(out, " ")
}

func TestPartSelection(t *testing.T) {
	f := func(devices, switches, cpus, want string) {
		t.Helper()
		var c Config
		for of, s := range map[*Selection]string{&c.Devices: devices, &c.Switches: switches, &c.CPUs: cpus} {
			sel, err := ParseSelection(s)
			if err != nil {
				t.Fatal(err)
			}
			*of = sel
		}
		got := short(slices.DeleteFunc(partList(), func(p gpu.PartSnapshot) bool { return !c.keepPart(&p.Part) }))
		if got != want {
			t.Errorf("-d %s -s %s -p %s: %s, want %s", devices, switches, cpus, got, want)
		}
	}
	f("f", "f", "f", "s0 s1 s0:0 s1:3 g0:2 c0 c0:5")
	f("f", "g", "g", "s0 s1 g0:2 c0")
	f("f", "g:1", "g:1", "s1 g0:2")
	f("f", "i", "i", "s0:0 s1:3 g0:2 c0:5")
	f("f", "i:3", "i:0-4", "s1:3 g0:2")
	f("f", "g:0+i", "g+i:5", "s0 s0:0 g0:2 c0 c0:5")
	f("g:1", "g:0", "g:0", "s0 c0")
}

// Parts are read where one of their fields is collected; what is lost there
// ages, and a read that hangs hides no GPU.
func TestPartsAreCollected(t *testing.T) {
	r := newReader(gpus(1)...)
	r.parts = partList()
	bubble(t, Config{Fields: gpu.SetOf(gpu.GPUUtil)}, r, nil, func(n *node) {
		n.pass(time.Second)
		if got := n.out.last().Parts; got != nil {
			t.Errorf("parts that nobody asked for: %s", short(got))
		}
		n.SetFields(gpu.SetOf(gpu.GPUUtil, gpu.CPUUtil))
		n.pass(time.Second)
		s := n.out.last()
		if got := short(s.Parts); got != "s0 s1 s0:0 s1:3 g0:2 c0 c0:5" || !s.PartsTime.Equal(s.Time) {
			t.Errorf("parts %s of %v at %v", got, s.PartsTime, s.Time)
		}
		r.set(func() { r.partsErr, r.parts = errors.New("the engine is gone"), nil })
		n.pass(2 * time.Second)
		if s := n.out.last(); s.PartsErr == nil || len(s.Parts) == 0 || !s.PartsTime.Before(s.Time) {
			t.Errorf("after a failure: %v, %d parts of %v", s.PartsErr, len(s.Parts), s.PartsTime)
		}
		if c := strings.Count(n.logs, "not all NvSwitches"); c != 1 {
			t.Errorf("said %d times:\n%s", c, n.logs)
		}
		r.set(func() { r.partsErr, r.parts, r.partsHang = nil, partList(), make(chan struct{}) })
		n.pass(3 * time.Second)
		if s := n.out.last(); time.Since(s.Time) > time.Second || util(s, "GPU-0") < 5 {
			t.Errorf("a hang stops the GPUs: %v, %v", s.Time, util(s, "GPU-0"))
		}
	})
}

// A part that fails stays with its last values, and one that was taken away for ten
// minutes. A link that is down stays while its GPU is listed.
func TestPartsThatFailStay(t *testing.T) {
	r := newReader(gpus(1)...)
	r.parts = partList()
	bubble(t, Config{Fields: gpu.SetOf(gpu.GPUUtil, gpu.SwitchLinkCRC)}, r, nil, func(n *node) {
		n.pass(2 * time.Second)
		age := func(name string) time.Duration {
			s := n.out.last()
			for _, p := range s.Parts {
				if short([]gpu.PartSnapshot{p}) == name {
					return s.Time.Sub(p.Collected)
				}
			}
			return -1
		}
		r.set(func() { r.parts, r.partsErr = partList()[1:], errors.New("nvswitch 0: lost") })
		n.pass(time.Hour)
		if got := short(n.out.last().Parts); got != "s1 s0:0 s1:3 g0:2 c0 c0:5 s0" || age("s0") < 59*time.Minute || age("s1") > time.Second {
			t.Errorf("a failed switch: %s, last read %v ago, another one %v", got, age("s0"), age("s1"))
		}
		r.set(func() { r.parts = partList() })
		n.pass(2 * time.Second)
		if age("s0") > time.Second {
			t.Errorf("it is back, last read %v ago", age("s0"))
		}
		// A switch is taken away, and all links go down.
		r.set(func() {
			r.partsErr = nil
			r.parts = slices.DeleteFunc(partList()[1:], func(p gpu.PartSnapshot) bool { return p.Kind == gpu.NVLink })
		})
		n.pass(9 * time.Minute)
		if got := short(n.out.last().Parts); got != "s1 c0 c0:5 s0 s0:0 s1:3 g0:2" {
			t.Errorf("after 9 min: %s", got)
		}
		n.pass(2 * time.Minute)
		if got := short(n.out.last().Parts); got != "s1 c0 c0:5 s0:0 s1:3 g0:2" {
			t.Errorf("after 11 min: %s", got)
		}
	})
}

// plain hides that a reader reads parts.
type plain struct{ gpu.Reader }

func TestPartsNeedDCGM(t *testing.T) {
	r := newReader(gpus(1)...)
	bubbleOver(t, Config{Fields: gpu.SetOf(gpu.CPUUtil)}, r, plain{r}, nil, func(n *node) {
		n.pass(3 * time.Second)
		if c := strings.Count(n.logs, "only the DCGM backend"); c != 1 {
			t.Errorf("said %d times:\n%s", c, n.logs)
		}
	})
}
