// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// label asks NVML for a Label field.
type label struct {
	id  gpu.FieldID
	get func(d *device) (string, nvml.Return)
}

func labels(has func(symbol string) bool) []label {
	inforom := func(object nvml.InforomObject) func(d *device) (string, nvml.Return) {
		return func(d *device) (string, nvml.Return) { return d.root.GetInforomVersion(object) }
	}
	all := []struct {
		symbol string
		label
	}{
		{"nvmlSystemGetDriverVersion", label{gpu.DriverVersion, func(d *device) (string, nvml.Return) { return d.ses.lib.SystemGetDriverVersion() }}},
		{"nvmlSystemGetNVMLVersion", label{gpu.NVMLVersion, func(d *device) (string, nvml.Return) { return d.ses.lib.SystemGetNVMLVersion() }}},
		{"nvmlSystemGetCudaDriverVersion", label{gpu.CUDADriverVersion, func(d *device) (string, nvml.Return) {
			v, ret := d.ses.lib.SystemGetCudaDriverVersion()
			return strconv.Itoa(v), ret
		}}},
		{"nvmlDeviceGetBrand", label{gpu.Brand, brand}},
		{"nvmlDeviceGetSerial", label{gpu.Serial, func(d *device) (string, nvml.Return) { return d.root.GetSerial() }}},
		{"nvmlDeviceGetMinorNumber", label{gpu.MinorNumber, func(d *device) (string, nvml.Return) {
			n, ret := d.root.GetMinorNumber()
			return strconv.Itoa(n), ret
		}}},
		{"nvmlDeviceGetInforomVersion", label{gpu.OEMInforomVersion, inforom(nvml.INFOROM_OEM)}},
		{"nvmlDeviceGetInforomVersion", label{gpu.ECCInforomVersion, inforom(nvml.INFOROM_ECC)}},
		{"nvmlDeviceGetInforomVersion", label{gpu.PowerInforomVersion, inforom(nvml.INFOROM_POWER)}},
		{"nvmlDeviceGetInforomImageVersion", label{gpu.InforomImageVersion, func(d *device) (string, nvml.Return) { return d.root.GetInforomImageVersion() }}},
		{"nvmlDeviceGetVbiosVersion", label{gpu.VBIOSVersion, func(d *device) (string, nvml.Return) { return d.root.GetVbiosVersion() }}},
	}
	var present []label
	for _, l := range all {
		if has(l.symbol) {
			present = append(present, l.label)
		}
	}
	return present
}

// readLabels sets the wanted labels. A label that cannot be read now is left
// out. Labels do not decide whether the GPU works.
func (d *device) readLabels() {
	for _, l := range d.ses.labels {
		if !d.out.want.HasID(l.id) {
			continue
		}
		d.out.v.SetLabel(l.id, d.labels.Text(l.id, d.now, func() (string, bool) {
			text, ret := l.get(d)
			if ret != nvml.SUCCESS {
				return "", classify(ret) == unsupported
			}
			return text, false
		}))
	}
}

func brand(d *device) (string, nvml.Return) {
	b, ret := d.root.GetBrand()
	names := map[nvml.BrandType]string{
		nvml.BRAND_QUADRO: "Quadro", nvml.BRAND_TESLA: "Tesla", nvml.BRAND_NVS: "NVS", nvml.BRAND_GRID: "GRID",
		nvml.BRAND_GEFORCE: "GeForce", nvml.BRAND_TITAN: "Titan", nvml.BRAND_NVIDIA_VAPPS: "NVIDIA vApps",
		nvml.BRAND_NVIDIA_VPC: "NVIDIA vPC", nvml.BRAND_NVIDIA_VCS: "NVIDIA vCS", nvml.BRAND_NVIDIA_VWS: "NVIDIA vWS",
		nvml.BRAND_NVIDIA_CLOUD_GAMING: "NVIDIA Cloud Gaming", nvml.BRAND_QUADRO_RTX: "Quadro RTX", nvml.BRAND_NVIDIA_RTX: "NVIDIA RTX",
		nvml.BRAND_NVIDIA: "NVIDIA", nvml.BRAND_GEFORCE_RTX: "GeForce RTX", nvml.BRAND_TITAN_RTX: "Titan RTX",
	}
	return names[b], ret
}
