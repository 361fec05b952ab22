// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Profile selects the names of the built-in collectors and of the node's label.
// It does not rename the metrics of a collectors file.
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

// HostLabel returns the name of the node's label.
func (p Profile) HostLabel() string {
	if p == Profile482 || p == Profile1x {
		return "Hostname"
	}
	return "hostname"
}

// HasCPUSerial reports whether CPUs have the label cpu_serial, which came with 4.8.3.
func (p Profile) HasCPUSerial() bool { return p == Profile48 || p == Profile49 }

// Name returns the profile's name of a field, and the scale from that name's
// unit to the field's. A field without a name in the profile keeps its 4.8
// name.
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

// Help returns the help text of a field under the profile's name.
func (p Profile) Help(f *gpu.Field) string {
	if n, ok := namingOf(f.ID); ok && p == Profile49 && n.help49 != "" {
		return n.help49
	}
	return f.Help
}
