// SPDX-License-Identifier: Apache-2.0

package load

import (
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

func TestParseKinds(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		list, err := ParseKinds(text)
		if err != nil {
			t.Error(err)
		}
		var got []string
		for _, s := range list {
			got = append(got, s.String())
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%q: %s, want %s", text, s, want)
		}
	}
	f("1004", "tensor")
	f(" 1004", "tensor")
	f("Tensor, dram", "tensor dram")
	f("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "fp32")
	f("DCGM_FI_PROF_TENSOR_UTIL_RATIO", "tensor")
	f("fp32+dram,1001", "fp32+dram graphics")
	f("vector-add", "vector-add")
	f("nvlink", "nvlink-tx nvlink-rx")
	f("nonvlink", "graphics sm-active sm-occupancy tensor dram fp64 fp32 fp16 pcie-tx pcie-rx")
	f("all", "graphics sm-active sm-occupancy tensor dram fp64 fp32 fp16 pcie-tx pcie-rx nvlink-tx nvlink-rx")
	for _, text := range []string{"", "1013", "fp8", "fp32,", "fp32+fp32", "graphics+dram", "+", "DCGM_FI_DEV_GPU_TEMP"} {
		if list, err := ParseKinds(text); err == nil {
			t.Errorf("%q: %v", text, list)
		}
	}
}

// Every id of dcgmproftester has one kind, whose field is in the table.
func TestKinds(t *testing.T) {
	for id := gpu.GREngineActive; id <= gpu.NVLinkRxBytes; id++ {
		n := 0
		for _, k := range Kinds() {
			if k.Field == id && k.Name != VectorAdd {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%d kinds for %v", n, id)
		}
	}
	for _, k := range Kinds() {
		if u := k.Unit(); u != gpu.Ratio && u != gpu.BytesPerSecond {
			t.Errorf("%s has the unit %q", k.Name, u)
		}
	}
}

// Whatever the text, what is read has at least one kind in each selection.
func FuzzKinds(f *testing.F) {
	f.Add("1004,fp32+dram")
	f.Add("all")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseKinds(text)
		if err != nil {
			return
		}
		for _, s := range list {
			if len(s) == 0 {
				t.Errorf("%q has an empty selection", text)
			}
		}
	})
}
