// SPDX-License-Identifier: Apache-2.0

package expo

import (
	"fmt"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Profile says whose names the built-in collectors and the node's label have.
// A collectors file is not renamed: what it lists is shown as it lists it.
type Profile string

// The profiles, named after the dcgm-exporter release that they follow.
const (
	Profile48  Profile = "4.8"   // 4.8.3 and 4.8.4; the default
	Profile482 Profile = "4.8.2" // and before: the node's label is Hostname
	Profile49  Profile = "4.9"   // DCGM 4.7's names in base units
	Profile1x  Profile = "1.x"   // dcgm_ names
)

// Profiles lists the profiles, the default one first.
func Profiles() []Profile { return []Profile{Profile48, Profile482, Profile49, Profile1x} }

// ParseProfile finds a profile by its name.
func ParseProfile(s string) (Profile, error) {
	var names []string
	for _, p := range Profiles() {
		if string(p) == s {
			return p, nil
		}
		names = append(names, string(p))
	}
	return "", fmt.Errorf("unknown profile %q: it is one of %s", s, strings.Join(names, ", "))
}

// HostLabel is the name of the node's label.
func (p Profile) HostLabel() string {
	if p == Profile482 || p == Profile1x {
		return "Hostname"
	}
	return "hostname"
}

// cpuSerial says whether CPUs have the label cpu_serial, which came with 4.8.3.
func (p Profile) cpuSerial() bool { return p == Profile48 || p == Profile49 }

// Name is what the profile calls a field, and the scale from that name's unit
// to the field's. A field that the profile has no name for keeps its 4.8 name.
func (p Profile) Name(f *gpu.Field) (name string, scale float64) {
	n, ok := namingOf(f.ID)
	switch {
	case ok && p == Profile49 && n.name49 != "":
		return n.name49, n.scale()
	case ok && p == Profile1x && n.name1 != "":
		return n.name1, 1
	}
	return f.Name, 1
}

// help is the help text of a field under the profile's name.
func (p Profile) help(f *gpu.Field) string {
	if n, ok := namingOf(f.ID); ok && p == Profile49 && n.help49 != "" {
		return n.help49
	}
	return f.Help
}

// defaultFields are the collectors that dcgm-exporter has on where it is given
// no file of one's own.
var defaultFields = [...]gpu.FieldID{
	gpu.SMClock, gpu.MemClock,
	gpu.MemoryTemp, gpu.GPUTemp,
	gpu.PowerUsage, gpu.TotalEnergy,
	gpu.PCIeReplayCounter,
	gpu.GPUUtil, gpu.MemCopyUtil, gpu.EncUtil, gpu.DecUtil,
	gpu.XIDErrors,
	gpu.FBFree, gpu.FBUsed, gpu.FBReserved,
	gpu.NVLinkBandwidth,
	gpu.VGPULicenseStatus,
	gpu.UncorrRemappedRows, gpu.CorrRemappedRows, gpu.RowRemapFailure,
	gpu.DriverVersion,
	gpu.GREngineActive, gpu.TensorActive, gpu.DRAMActive,
	gpu.PCIeTxBytes, gpu.PCIeRxBytes,
}

// default1x are those of the 1.x-compatibility file.
var default1x = [...]gpu.FieldID{
	gpu.SMClock, gpu.MemClock,
	gpu.MemoryTemp, gpu.GPUTemp,
	gpu.PowerUsage, gpu.TotalEnergy,
	gpu.PCIeTxBytes, gpu.PCIeRxBytes, gpu.PCIeReplayCounter,
	gpu.GPUUtil, gpu.MemCopyUtil, gpu.EncUtil, gpu.DecUtil,
	gpu.XIDErrors,
	gpu.FBFree, gpu.FBUsed,
	gpu.NVLinkBandwidth,
	gpu.GREngineActive, gpu.TensorActive, gpu.DRAMActive,
}

// DefaultCollectors are what is shown without a collectors file.
func (p Profile) DefaultCollectors() Collectors {
	ids := defaultFields[:]
	switch p {
	case Profile1x:
		ids = default1x[:]
	case Profile49:
		ids = append([]gpu.FieldID{gpu.FBTotal}, ids...)
	}
	var c Collectors
	for _, id := range ids {
		f, ok := gpu.Lookup(id)
		if !ok {
			continue
		}
		name, scale := p.Name(f)
		ref := gpu.Ref{Field: id, Scale: scale}
		if f.Kind == gpu.Label {
			c.Labels = append(c.Labels, LabelCollector{Name: name, Ref: ref})
			continue
		}
		c.Metrics = append(c.Metrics, Collector{Name: name, Ref: ref, Type: p.typeOf(f), Help: p.help(f)})
	}
	return c
}

// typeOf is a field's type in the profile's own collectors file, which is not
// always what the field is.
func (p Profile) typeOf(f *gpu.Field) Type {
	switch {
	case p == Profile1x && (f.ID == gpu.PCIeTxBytes || f.ID == gpu.PCIeRxBytes):
		return Counter
	case f.ID == gpu.NVLinkBandwidth && (p == Profile48 || p == Profile49): // since 4.8.3
		return Gauge
	case f.Kind == gpu.Counter:
		return Counter
	}
	return Gauge
}
