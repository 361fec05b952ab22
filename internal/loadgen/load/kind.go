// SPDX-License-Identifier: Apache-2.0

package load

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Kind is one kind of load.
type Kind struct {
	Name  string      // as on the command line
	Field gpu.FieldID // the field that shows the load
	// RateUnit is the unit of the achieved rate: TFLOP/s or GB/s (10^9 bytes); empty if the load has none.
	RateUnit string
	Help     string
}

// VectorAdd is the load of NVIDIA's sample vectorAdd in a loop. It has no id of its own: it shows as graphics activity.
const VectorAdd = "vector-add"

// kinds are sorted by field; VectorAdd is last.
var kinds = []Kind{
	{"graphics", gpu.GREngineActive, "", "share of the time in which a kernel runs"},
	{"sm-active", gpu.SMActive, "", "share of the SMs that have a warp"},
	{"sm-occupancy", gpu.SMOccupancy, "", "resident warps, of the most that fit"},
	{"tensor", gpu.TensorActive, "TFLOP/s", "matrix multiply-add on the tensor cores, FP16 with FP32 sums"},
	{"dram", gpu.DRAMActive, "GB/s", "reads of device memory"},
	{"fp64", gpu.FP64Active, "TFLOP/s", "multiply-add in FP64"},
	{"fp32", gpu.FP32Active, "TFLOP/s", "multiply-add in FP32"},
	{"fp16", gpu.FP16Active, "TFLOP/s", "multiply-add in FP16, two at a time"},
	{"pcie-tx", gpu.PCIeTxBytes, "GB/s", "copies from the GPU to the host"},
	{"pcie-rx", gpu.PCIeRxBytes, "GB/s", "copies from the host to the GPU"},
	{"nvlink-tx", gpu.NVLinkTxBytes, "GB/s", "copies from the GPU to another GPU"},
	{"nvlink-rx", gpu.NVLinkRxBytes, "GB/s", "copies from another GPU to the GPU"},
	{VectorAdd, gpu.GREngineActive, "", "NVIDIA's sample vectorAdd in a loop"},
}

// Kinds returns the kinds of load. Callers must not change it.
func Kinds() []Kind { return kinds }

// KindList is the kinds of load for the help.
func KindList() (text string) {
	for _, k := range kinds {
		text += fmt.Sprintf("  %d  %-13s %s\n", k.Field, k.Name, k.Help)
	}
	return text
}

// KindOf finds a kind by its name.
func KindOf(name string) (Kind, bool) {
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// Unit returns the unit of what the kind generates: its field's unit.
func (k Kind) Unit() gpu.Unit {
	f, _ := gpu.Lookup(k.Field)
	return f.Unit
}

// IsRatio reports whether the kind generates a ratio of 0 to 1; the others generate bytes per second.
func (k Kind) IsRatio() bool { return k.Unit() == gpu.Ratio }

// Selection is what runs at the same time: usually one kind, or several on different pipes.
type Selection []Kind

// String returns the selection as on the command line.
func (s Selection) String() string {
	var list []string
	for _, k := range s {
		list = append(list, k.Name)
	}
	return strings.Join(list, "+")
}

// ParseKinds reads the value of -t: ids, names and field names, separated by commas, or all, nvlink or nonvlink. The
// selections run one after another; a + joins kinds that run at the same time.
func ParseKinds(text string) ([]Selection, error) {
	var out []Selection
	for word := range strings.SplitSeq(text, ",") {
		word = strings.ToLower(strings.TrimSpace(word))
		if from, to, ok := group(word); ok {
			for _, k := range kinds[:len(kinds)-1] {
				if k.Field >= from && k.Field <= to {
					out = append(out, Selection{k})
				}
			}
			continue
		}
		var s Selection
		for part := range strings.SplitSeq(word, "+") {
			k, err := parseKind(strings.TrimSpace(part))
			if err != nil {
				return nil, err
			}
			if slices.ContainsFunc(s, func(o Kind) bool { return o.Field == k.Field }) {
				return nil, fmt.Errorf("%s: %s is there twice", word, k.Name)
			}
			s = append(s, k)
		}
		if err := s.together(); err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// group returns the fields of dcgmproftester's words for several.
func group(word string) (from, to gpu.FieldID, ok bool) {
	switch word {
	case "all":
		return gpu.GREngineActive, gpu.NVLinkRxBytes, true
	case "nonvlink":
		return gpu.GREngineActive, gpu.PCIeRxBytes, true
	case "nvlink":
		return gpu.NVLinkTxBytes, gpu.NVLinkRxBytes, true
	}
	return 0, 0, false
}

func parseKind(word string) (Kind, error) {
	if k, ok := KindOf(word); ok {
		return k, nil
	}
	id, err := strconv.Atoi(word)
	if ref, ok := names.Metric(strings.ToUpper(word)); err != nil && ok {
		id, err = int(ref.Field), nil
	}
	if err == nil {
		if i := slices.IndexFunc(kinds, func(k Kind) bool { return int(k.Field) == id }); i >= 0 {
			return kinds[i], nil
		}
	}
	var known []string
	for _, k := range kinds {
		known = append(known, k.Name)
	}
	return Kind{}, fmt.Errorf("no load %q: give an id of 1001 to 1012, %s, all, nvlink or nonvlink", word, strings.Join(known, ", "))
}

// together refuses kinds that cannot run at the same time: a gap of the whole GPU is none while another kernel runs.
func (s Selection) together() error {
	for _, k := range s {
		if len(s) > 1 && (k.Field <= gpu.SMOccupancy) {
			return fmt.Errorf("%s: %s runs alone; a + joins tensor, dram, fp64, fp32, fp16 and copies", s, k.Name)
		}
	}
	return nil
}
