// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"fmt"
	"reflect"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/test/pagetest"
)

// A page of which labels are remembered reads as one of which each line is taken
// apart for itself.
func FuzzLabelMemo(f *testing.F) {
	f.Add(pagetest.Node(1, 4))
	f.Add([]byte(`DCGM_FI_DEV_GPU_UTIL{UUID="G",pod="p",namespace="n"} 1
DCGM_FI_DEV_FB_USED{UUID="G",pod="p",namespace="n"} 2
DCGM_FI_DEV_POWER_USAGE {UUID="G",pod="p",namespace="n"} 3
{"DCGM_FI_DEV_POWER_USAGE",UUID="G"} 3
{UUID="G",pod="p",namespace="n"} 3
DCGM_FI_DEV_GPU_UTIL{UUID="G",vgpu="1",a="\"}"} 4
DCGM_FI_DEV_FB_USED{UUID="G",vgpu="1",a="\"}"} 4 5 # {x="}"}
DCGM_FI_DEV_FB_USED{UUID="G",UUID="H"} 4
gpupilot_gpu_allocation_info{UUID="G",pod="p",namespace="n"} 1
gpupilot_pod_gpu_utilization_ratio{UUID="G",pod="p",namespace="n"} 1
`))
	f.Fuzz(func(t *testing.T, text []byte) {
		read := func(each bool) string {
			store := series.New(series.Config{})
			g := newGPUs(store.Target("t", series.TargetLabels{}), gpu.FieldSet{})
			p := newReader(g)
			p.begin()
			for line := range bytes.Lines(text) {
				if each {
					p.memo.begin()
				}
				p.feed(bytes.TrimSuffix(line, []byte("\n")))
			}
			err := p.End()
			for i := range p.entries {
				p.entries[i].hash = 0 // seeds differ
			}
			for i := range p.points {
				if p.points[i].value != p.points[i].value {
					p.points[i].value = -1
				}
			}
			return fmt.Sprintf("%v\n%d lines, %d bad\n%+v\n%+v\n%+v\n%v", err, p.Lines, p.Bad, p.entries, p.points, g.owners, g.refused)
		}
		if memo, plain := read(false), read(true); !reflect.DeepEqual(memo, plain) {
			t.Fatalf("%s\nwith the memo: %s\nwithout: %s", text, memo, plain)
		}
	})
}

// A page of labels that are all different costs no more memory than the memo's bound.
func TestLabelMemoIsBounded(t *testing.T) {
	p := newReader(&recorder{})
	p.begin()
	for i := range 4 * maxMemo {
		p.feed(fmt.Appendf(nil, "m{i=\"%d\"} 1", i))
	}
	if n := len(p.memo.facts); n > maxMemo || len(p.memo.places) != n {
		t.Errorf("%d facts of %d texts are kept, at most %d may be", n, len(p.memo.places), maxMemo)
	}
	p.begin()
	if cap(p.memo.facts) > maxMemo/8 {
		t.Errorf("room for %d facts is kept", cap(p.memo.facts))
	}
}
