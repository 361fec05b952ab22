// SPDX-License-Identifier: Apache-2.0

package contender

import (
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/replay/service"
	"github.com/gpupilot/gpupilot/internal/scale/peers"
)

// Grid holds the values of the peers' settings. For the HPA and KEDA all combinations of
// target, window, tolerance and lag are tried, for the KPA those of target, stable window
// and delay.
type Grid struct {
	Utilisation []float64 // targets in percent
	Requests    []float64 // targets in requests per replica
	Windows     []int     // scale-down stabilisation, in seconds
	Tolerances  []float64
	Stable      []int // the KPA's stable windows, in seconds
	Direct      []bool
}

// FullGrid returns the grid for published results. Its targets and windows are close
// together. The Pareto front is interpolated between settings, and a line across a gap lies
// above the true curve, which flatters GPUPilot.
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

// QuickGrid returns a small grid for a first look. Its gaps flatter GPUPilot, so its results
// are not for publication.
func QuickGrid() Grid {
	g := FullGrid()
	g.Utilisation, g.Requests = []float64{30, 50, 70, 90}, []float64{1, 2, 4, 8, 16}
	g.Windows, g.Tolerances, g.Stable = []int{60, 300}, []float64{0.1}, []int{60}
	return g
}

// Peers returns the settings of the families hpa, keda and kpa in a class. No families, or
// "all", means all of them. An empty class means both.
func (g Grid) Peers(families []string, class Class) []Entry {
	var out []Entry
	wants := func(f Family, c Class) bool {
		return (len(families) == 0 || slices.Contains(families, "all") || slices.Contains(families, string(f))) &&
			(class == "" || class == c)
	}
	if wants(HPA, OnRequests) {
		for _, signal := range []service.Signal{service.Running, service.Waiting} {
			out = append(out, g.hpas(peers.PodsAverage, signal, g.Requests, podLag())...)
		}
		out = append(out, g.hpas(peers.ObjectValue, service.Running, g.Requests, podLag())...)
	}
	if wants(KEDA, OnRequests) {
		for _, signal := range []service.Signal{service.Waiting, service.Concurrency} {
			out = append(out, g.hpas(peers.ExternalAverage, signal, g.Requests, podLag())...)
		}
	}
	if wants(KPA, OnRequests) {
		out = append(out, g.kpas()...)
	}
	if wants(HPA, OnGPU) {
		for _, signal := range []service.Signal{service.GPUUtil, service.SMActive, service.TensorActive} {
			out = append(out, g.hpas(peers.PodsAverage, signal, g.Utilisation, gpuLag())...)
			out = append(out, g.hpas(peers.ObjectValue, signal, g.Utilisation, gpuRuleLag())...)
		}
	}
	return out
}

func (g Grid) kpas() (out []Entry) {
	for _, target := range g.Requests {
		for _, window := range g.Stable {
			for _, delay := range g.delays() {
				out = append(out, NewKPA(target, window, delay))
			}
		}
	}
	return out
}

// delays returns the KPA's scale-down delays: 0 and the stabilisation windows.
func (g Grid) delays() []int {
	if slices.Contains(g.Windows, 0) {
		return g.Windows
	}
	return append([]int{0}, g.Windows...)
}

func (g Grid) hpas(kind peers.Kind, signal service.Signal, targets []float64, classic Lag) (out []Entry) {
	for _, target := range targets {
		for _, window := range g.Windows {
			for _, tolerance := range g.Tolerances {
				for _, direct := range g.Direct {
					s := HPASettings{Kind: kind, Signal: signal, Target: target, Window: window, Tolerance: tolerance, Lag: classic}
					if direct {
						s.Lag = directLag()
					}
					out = append(out, NewHPA(s))
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
