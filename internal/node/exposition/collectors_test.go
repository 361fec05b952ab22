// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

const someCollectors = `# Format
# If line starts with a '#' it is a comment
DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock (in MHz).

DCGM_FI_DEV_DEC_UTIL ,     gauge, "Decoder, in %."
  DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION, counter, Energy.
  # an indented comment, of three columns, is a comment
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
	if diff := cmp.Diff([]int{8, 9, 10, 11, 12, 14, 16, 17}, lines); diff != "" {
		t.Errorf("bad lines (-want +got):\n%s\n%v", diff, bad)
	}
}

// A field that has no row in the gpu package's table is known by each of its names and by
// its number, and is shown under the name that the file gives, or DCGM's.
func TestPassedCollectors(t *testing.T) {
	got, bad := ParseCollectors(`1523, gauge, By its number.
DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES, counter, By a former name.
DCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL, counter, By its name.
4711, gauge, Of a newer DCGM.
DCGM_FI_4712, gauge, The same as a name.
203, gauge, In the table.
DCGM_FI_DEV_PLATFORM_CHASSIS_SERIAL_NUMBER, label, Text.
DCGM_FI_DEV_GPU_RECOVERY_ACTION, gauge, Line 1 again.
DCGM_FI_DEV_NVLINK_COUNT_TX, counter, The beginning of a name.
70000, gauge, Too large.
`)
	var shown []string
	for _, m := range got.Metrics {
		shown = append(shown, fmt.Sprint(m.Name, " ", uint16(m.Ref.Field)))
	}
	want := []string{
		"DCGM_FI_DEV_GPU_RECOVERY_ACTION 1523", "DCGM_FI_DEV_NVLINK_COUNT_TX_BYTES 1201", "DCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL 1201",
		"DCGM_FI_4711 4711", "DCGM_FI_4712 4712", "DCGM_FI_DEV_GPU_UTIL 203",
	}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]gpu.FieldID{572, 1201, 1523, 4711, 4712}, got.Passed()); diff != "" {
		t.Errorf("passed (-want +got):\n%s", diff)
	}
	if len(bad) != 3 || bad[0].Line != 8 || bad[1].Line != 9 || bad[2].Line != 10 || !strings.Contains(bad[2].Reason, "unknown field") {
		t.Errorf("bad lines: %v", bad)
	}
}

// Every field that a collectors file of dcgm-exporter has named since 2.0, commented lines
// included, and every name of DCGM 4.6 is a collector: no line of theirs is lost.
func TestPublishedFields(t *testing.T) {
	text, err := os.ReadFile("testdata/published-fields.csv")
	if err != nil {
		t.Fatal(err)
	}
	c, bad := ParseCollectors(string(text))
	if len(bad) > 0 || len(c.Metrics)+len(c.Labels) < 100 {
		t.Errorf("%d metrics, %d labels, bad lines: %v", len(c.Metrics), len(c.Labels), bad)
	}
	dcgm, err := os.ReadFile("../../gpu/names/dcgm.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(dcgm)) {
		words := strings.Fields(line)
		for _, name := range words[1:] {
			n++
			ref, shown, ok := resolve("DCGM_FI_" + name)
			if ref.Scale != 1 && shown == "DCGM_FI_"+name {
				continue // a name in base units is read by the number of the other unit, which every DCGM has
			}
			if !ok || shown != "DCGM_FI_"+name || strconv.Itoa(int(ref.Field)) != words[0] {
				t.Errorf("%s is %d, shown as %s, %v; want %s", name, ref.Field, shown, ok, words[0])
			}
		}
	}
	if n < 1000 {
		t.Errorf("%d names", n)
	}
}

// A passed field has its entity's labels, and is written as the library gives it: whole,
// negative or with a fraction. One without a value is absent.
func TestPassedPage(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	c, bad := ParseCollectors(`DCGM_FI_DEV_GPU_RECOVERY_ACTION, gauge, Recovery.
DCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL, counter, Sent.
DCGM_FI_DEV_NVSWITCH_CURRENT_IDDQ, gauge, Current.
DCGM_FI_9001, gauge, Newer.
DCGM_FI_9003, gauge, Of CPUs and cores.
DCGM_FI_DEV_PLATFORM_CHASSIS_SERIAL_NUMBER, label, Chassis.
DCGM_FI_DEV_GPU_VIRTUAL_MODE, label, A number as a label.
`)
	if len(bad) > 0 {
		t.Fatal(bad)
	}
	a := wholeGPU(3, at, map[gpu.FieldID]float64{gpu.GPUUtil: 97})
	a.Values.Take(1523, gpu.Whole(1<<60+1))
	a.Values.Take(9001, gpu.Real(-0.5))
	a.Values.Take(500, gpu.Whole(2))
	a.Values.SetLabel(572, "chassis-7")
	b := wholeGPU(4, at, map[gpu.FieldID]float64{gpu.GPUUtil: 97})
	b.Values.Take(1523, gpu.Whole(0))
	s := snapshot(at, a, b)
	for _, p := range []struct {
		part gpu.Part
		id   gpu.FieldID
		x    gpu.Number
	}{
		{gpu.Part{Kind: gpu.NVSwitch, ID: 1}, 702, gpu.Whole(33)},
		{gpu.Part{Kind: gpu.NVLink, ID: 0, GPU: &a.Device}, 1201, gpu.Whole(77)},
		{gpu.Part{Kind: gpu.CPU, ID: 0, Serial: "0x17"}, 9003, gpu.Real(0.25)},
		{gpu.Part{Kind: gpu.CPUCore, ID: 71}, 9003, gpu.Real(1)},
	} {
		ps := gpu.PartSnapshot{Part: p.part, Collected: at}
		ps.Values.Take(p.id, p.x)
		s.Parts = append(s.Parts, ps)
	}
	cfg := Config{Profile: names.Profile48, Collectors: c}
	r := newRenderer(&cfg, &history{}, &totals{})
	var pg page
	r.render(&pg, s, Stats{}, at)
	var lines []string
	for line := range strings.Lines(string(pg.body)) {
		if strings.HasPrefix(line, "DCGM_") {
			lines = append(lines, regexp.MustCompile(`UUID="[^"]*"|uuid="[^"]*"|pci_bus_id="[^"]*",|modelName="[^"]*",?|model_name="[^"]*",?`).ReplaceAllString(strings.TrimSpace(line), ""))
		}
	}
	want := []string{
		`DCGM_FI_DEV_GPU_RECOVERY_ACTION{gpu="3",,device="nvidia3",DCGM_FI_DEV_GPU_VIRTUAL_MODE="2",DCGM_FI_DEV_PLATFORM_CHASSIS_SERIAL_NUMBER="chassis-7"} 1152921504606846977`,
		`DCGM_FI_DEV_GPU_RECOVERY_ACTION{gpu="4",,device="nvidia4",} 0`,
		`DCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL{nvlink="1",gpu="3",gpu_,device="nvidia3",} 77`,
		`DCGM_FI_DEV_NVSWITCH_CURRENT_IDDQ{nvswitch="nvswitch1"} 33`,
		`DCGM_FI_9001{gpu="3",,device="nvidia3",DCGM_FI_DEV_GPU_VIRTUAL_MODE="2",DCGM_FI_DEV_PLATFORM_CHASSIS_SERIAL_NUMBER="chassis-7"} -0.500000`,
		`DCGM_FI_9003{cpu="0",cpu_serial="0x17"} 0.250000`,
		`DCGM_FI_9003{cpucore="71",cpu="0"} 1.000000`,
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("page (-want +got):\n%s", diff)
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
	f.Add("1523,gauge,x\n DCGM_FI_9999,counter,y\nDCGM_FI_DEV_NVLINK_TX_BYTES_TOTAL,label,z\n203,gauge,x\n0,gauge,x\n007,gauge,x")
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
			if _, shown, ok := resolve(m.Name); (!ok || shown != m.Name) && m.Exp == NotDerived {
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

// gpupilot_gpu_info has the labels that tell the series of one device from another's, in
// every profile: each series of a field has exactly one such info.
func TestInfoJoinsFields(t *testing.T) {
	at := time.UnixMilli(1_790_000_000_250)
	whole := wholeGPU(0, at, map[gpu.FieldID]float64{gpu.GPUTemp: 40})
	mig := wholeGPU(1, at, map[gpu.FieldID]float64{gpu.GPUTemp: 50})
	mig.MIG, mig.UUID = &gpu.MIG{ParentUUID: mig.UUID, GPUInstance: 7, ComputeInstance: -1, Profile: "1g.18gb"}, "MIG-5"
	key := regexp.MustCompile(`\b(UUID|GPU_I_ID|hostname|Hostname)="[^"]*"`)
	keyOf := func(line string, host string) string {
		labels := key.FindAllString(line, -1)
		labels = slices.DeleteFunc(labels, func(l string) bool {
			return strings.HasPrefix(strings.ToLower(l), "hostname") && !strings.HasPrefix(l, host+"=")
		})
		slices.Sort(labels)
		return strings.Join(labels, ",")
	}
	for _, p := range names.Profiles() {
		cfg := Config{Profile: p, Collectors: DefaultCollectors(p), Hostname: "n1"}
		r := newRenderer(&cfg, &history{}, &totals{})
		var pg page
		r.render(&pg, snapshot(at, whole, mig), Stats{}, at)
		infos, fields := map[string]int{}, map[string]int{}
		for line := range strings.Lines(string(pg.body)) {
			switch {
			case strings.HasPrefix(line, "gpupilot_gpu_info{"):
				infos[keyOf(line, p.HostLabel())]++
			case strings.HasPrefix(strings.ToLower(line), "dcgm_"):
				fields[keyOf(line, p.HostLabel())]++
			}
		}
		for k := range fields {
			if infos[k] != 1 || strings.Count(k, "=") < 2 {
				t.Errorf("profile %s: %d infos for the series with %s", p, infos[k], k)
			}
		}
		if len(fields) != 2 {
			t.Errorf("profile %s: series of %v", p, fields)
		}
	}
}
