// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

const someCollectors = `# Format
# If line starts with a '#' it is a comment
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock (in MHz).

DCGM_FI_DEV_DEC_UTIL ,     gauge, "Decoder, in %."
  DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy.
  # an indented comment is a record, help
DCGM_FI_DEV_NOPE, gauge, No such field.
DCGM_FI_DEV_GPU_UTIL, gauge
DCGM_FI_DEV_GPU_UTIL, gauge, Too, many.
DCGM_FI_DEV_GPU_UTIL, guage, Wrong type.
DCGM_FI_DEV_GPU_TEMP, gauge, "Unclosed.
DCGM_FI_DEV_GPU_UTIL, gauge, Right at last.
DCGM_FI_DEV_GPU_UTIL, gauge, Again.
DCGM_FI_DRIVER_VERSION, label, Driver.
DCGM_FI_DEV_BRAND, gauge, A text is no number.
DCGM_EXP_NOPE, gauge, Unknown.
DCGM_EXP_XID_ERRORS_COUNT, counter, XIDs.
dcgm_fb_used, histogram, "Two
lines."
`

func TestParseCollectors(t *testing.T) {
	got, bad := ParseCollectors(someCollectors)
	want := Collectors{
		Metrics: []Collector{
			{Name: "DCGM_FI_DEV_SM_CLOCK", Ref: gpu.Ref{Field: gpu.SMClock, Scale: 1}, Type: Gauge, Help: "SM clock (in MHz)."},
			{Name: "DCGM_FI_DEV_DEC_UTIL", Ref: gpu.Ref{Field: gpu.DecUtil, Scale: 1}, Type: Gauge, Help: "Decoder, in %."},
			{Name: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Ref: gpu.Ref{Field: gpu.TotalEnergy, Scale: 1}, Type: Counter, Help: "Energy."},
			{Name: "DCGM_FI_DEV_GPU_UTIL", Ref: gpu.Ref{Field: gpu.GPUUtil, Scale: 1}, Type: Gauge, Help: "Right at last."},
			{Name: "DCGM_EXP_XID_ERRORS_COUNT", Exp: XIDCount, Type: Counter, Help: "XIDs."},
			{Name: "dcgm_fb_used", Ref: gpu.Ref{Field: gpu.FBUsed, Scale: 1}, Type: Histogram, Help: "Two\nlines."},
		},
		Labels: []LabelCollector{{"DCGM_FI_DRIVER_VERSION", gpu.Ref{Field: gpu.DriverVersion, Scale: 1}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("collectors (-want +got):\n%s", diff)
	}
	var lines []int
	for _, e := range bad {
		lines = append(lines, e.Line)
		if e.Reason == "" {
			t.Errorf("%+v does not say what is wrong", e)
		}
	}
	if diff := cmp.Diff([]int{7, 8, 9, 10, 11, 12, 14, 16, 17}, lines); diff != "" {
		t.Errorf("bad lines (-want +got):\n%s\n%v", diff, bad)
	}
}

func TestQuotedHelp(t *testing.T) {
	got, bad := ParseCollectors("DCGM_FI_DEV_FB_USED,gauge,\"Two\nlines, \"\"quoted\"\"\"\r\nDCGM_FI_DEV_FB_FREE,gauge,x\r\n")
	if len(bad) != 0 || len(got.Metrics) != 2 || got.Metrics[0].Help != "Two\nlines, \"quoted\"" || got.Metrics[1].Help != "x" {
		t.Errorf("got %+v, bad %v", got, bad)
	}
}

// Each line stands for itself: a file's good lines are read whatever else is in
// it, and each bad line is named once.
func FuzzParseCollectors(f *testing.F) {
	f.Add(someCollectors)
	f.Add("\ufeffDCGM_FI_DEV_GPU_UTIL,gauge,\"")
	f.Add("a,b,c\n\"\n\"\n\"")
	const good = "\nDCGM_FI_DEV_VIDEO_CLOCK, gauge, Video clock.\n"
	f.Fuzz(func(t *testing.T, in string) {
		c, bad := ParseCollectors(in)
		seen := map[string]bool{}
		for _, m := range c.Metrics {
			if seen[m.Name] {
				t.Errorf("%s twice", m.Name)
			}
			seen[m.Name] = true
			if _, ok := names.Metric(m.Name); !ok && m.Exp == NotDerived {
				t.Errorf("accepted %q, which is no field", m.Name)
			}
		}
		last := 0
		for _, e := range bad {
			if e.Line <= last || e.Reason == "" {
				t.Errorf("line %d after %d, reason %q", e.Line, last, e.Reason)
			}
			last = e.Line
		}
		if strings.Count(in, "\n") < 3*maxJoined && !strings.Contains(in, `"`) && !seen["DCGM_FI_DEV_VIDEO_CLOCK"] {
			after, _ := ParseCollectors(in + good)
			if n := len(c.Metrics); len(after.Metrics) != n+1 && !hasLabel(after, "DCGM_FI_DEV_VIDEO_CLOCK") {
				t.Errorf("a good line after %q was not read", in)
			}
		}
	})
}

func hasLabel(c Collectors, name string) bool {
	for _, l := range c.Labels {
		if l.Name == name {
			return true
		}
	}
	return false
}

// The text of the built-in list is the list.
func TestDefaultsAsCSV(t *testing.T) {
	for _, profile := range []names.Profile{names.Profile48, names.Profile49, names.Profile1x} {
		want := DefaultCollectors(profile)
		got, bad := ParseCollectors(want.CSV())
		if len(bad) > 0 {
			t.Errorf("profile %s: %v", profile, bad)
		}
		shown := func(c Collectors) (out []string) {
			for _, m := range c.Metrics {
				out = append(out, m.Name+" "+string(m.Type)+" "+m.Help)
			}
			for _, l := range c.Labels {
				out = append(out, l.Name)
			}
			slices.Sort(out)
			return out
		}
		if d := cmp.Diff(shown(want), shown(got)); d != "" {
			t.Errorf("profile %s:\n%s", profile, d)
		}
	}
}
