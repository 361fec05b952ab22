// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/peers"
)

// Grid is the peers' settings that are tried: every target × scale-down window
// × tolerance × chain for the HPA and KEDA, target × window × delay for KPA.
type Grid struct {
	Utilisation []float64 // targets in percent
	Requests    []float64 // targets in requests per replica
	Windows     []int     // scale-down stabilisation, seconds
	Tolerances  []float64
	Stable      []int // KPA's stable windows, seconds
	Direct      []bool
}

// FullGrid is what results are published with. Its targets and windows are close
// to one another: the front is interpolated between settings, and a chord over a
// gap lies above the curve, which would flatter ours.
func FullGrid() Grid {
	return Grid{
		Utilisation: []float64{30, 35, 40, 45, 50, 55, 60, 65, 70, 75, 80, 85, 90},
		Requests:    []float64{1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16},
		Windows:     []int{0, 60, 120, 300, 600, 900, 1800},
		Tolerances:  []float64{0, 0.1},
		Stable:      []int{30, 60, 120, 300},
		Direct:      []bool{false, true},
	}
}

// QuickGrid is for a first look. Its gaps flatter ours: no published figure is
// from it.
func QuickGrid() Grid {
	g := FullGrid()
	g.Utilisation, g.Requests = []float64{30, 50, 70, 90}, []float64{1, 2, 4, 8, 16}
	g.Windows, g.Tolerances, g.Stable = []int{60, 300}, []float64{0.1}, []int{60}
	return g
}

// Peers are the contenders of the families (hpa, keda, kpa; none or "all": all)
// in a class; an empty class means both.
func (g Grid) Peers(families []string, class Class) []Contender {
	var out []Contender
	wants := func(family string, c Class) bool {
		return (len(families) == 0 || slices.Contains(families, "all") || slices.Contains(families, family)) &&
			(class == "" || class == c)
	}
	if wants("hpa", OnRequests) {
		for _, sig := range []Signal{Running, Waiting} {
			out = append(out, g.hpas(peers.PodsAverage, sig, g.Requests, classicPods())...)
		}
		out = append(out, g.hpas(peers.ObjectValue, Running, g.Requests, classicPods())...)
	}
	if wants("keda", OnRequests) {
		for _, sig := range []Signal{Waiting, Concurrency} {
			out = append(out, g.hpas(peers.ExternalAverage, sig, g.Requests, classicPods())...)
		}
	}
	if wants("kpa", OnRequests) {
		for _, target := range g.Requests {
			for _, window := range g.Stable {
				for _, delay := range g.delays() {
					out = append(out, KPA(target, window, delay))
				}
			}
		}
	}
	if wants("hpa", OnGPU) {
		for _, sig := range []Signal{GPUUtil, SMActive, TensorActive} {
			out = append(out, g.hpas(peers.PodsAverage, sig, g.Utilisation, classicGPU())...)
			out = append(out, g.hpas(peers.ObjectValue, sig, g.Utilisation, classicRule())...)
		}
	}
	return out
}

// delays are KPA's scale-down delays: none, and the windows of the others.
func (g Grid) delays() []int {
	if slices.Contains(g.Windows, 0) {
		return g.Windows
	}
	return append([]int{0}, g.Windows...)
}

func (g Grid) hpas(kind peers.Kind, sig Signal, targets []float64, classic Chain) (out []Contender) {
	for _, target := range targets {
		for _, window := range g.Windows {
			for _, tolerance := range g.Tolerances {
				for _, isDirect := range g.Direct {
					chain := classic
					if isDirect {
						chain = direct()
					}
					out = append(out, HPA(kind, sig, target, window, tolerance, chain))
				}
			}
		}
	}
	return out
}

// Families splits a list such as "hpa,keda".
func Families(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}
