// SPDX-License-Identifier: Apache-2.0

package service

import "testing"

func TestStartTimes(t *testing.T) {
	s := DefaultStartup(120)
	shortages := []interval{{100, 500}}
	const pods = 4000
	waited, sum := 0, 0.0
	for id := range pods {
		x := s.draw(1, id).times(0, shortages)
		if !(x.Bound >= 0 && x.Bound < x.Running && x.Running < x.Ready) {
			t.Fatalf("times %+v", x)
		}
		if x.Bound > 0 {
			waited++
			if x.Bound > 100 && x.Bound < 500 {
				t.Fatalf("bound at %g, while the cluster was full", x.Bound)
			}
		}
		sum += x.Ready - x.Bound
	}
	if share := float64(waited) / pods; share < 0.07 || share > 0.13 {
		t.Errorf("%.3f of the pods waited for a node", share)
	}
	if mean := sum / pods; mean < 115 || mean > 135 {
		t.Errorf("starts take %.0f s on average", mean)
	}
}
