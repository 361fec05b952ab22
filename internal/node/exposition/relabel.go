// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// Relabel changes the labels of the fields' series. It does not change labels
// that make series unique.
type Relabel struct {
	Static []gpu.PodLabel    // additional labels with fixed values
	Drop   []string          // labels to omit
	Rename map[string]string // old name to new
}

// droppable are the built-in labels that are not needed to make series unique.
var droppable = []string{"pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "hostname", "Hostname", "pod_uid", "model_name", "cpu_serial"}

// inline are the labels that are written at fixed places, under their names.
var inline = []string{
	"gpu", "err_code", "err_msg", "window_size_in_ms", "clock_event", "xid", "health_watch", "health_error_code",
	"peer_gpu", "link_status", "nvlink", "nvswitch", "cpu", "cpucore", "gpu_uuid", "__name__", "le", "quantile",
}

// ofParts are the labels that only NvSwitches, NVLinks and CPUs have, and
// onParts those that they share with devices, beside label fields.
var (
	ofParts = []string{"nvlink", "nvswitch", "cpu", "cpucore", "cpu_serial", "gpu_uuid", "model_name"}
	onParts = []string{"gpu", "hostname", "Hostname", "pci_bus_id", "device"}
)

// Check returns the first error of the three checks.
func (r *Relabel) Check() error {
	return errors.Join(r.CheckStatic(), r.CheckDrop(), r.CheckRename())
}

// CheckStatic checks the static labels, which are on all series of fields.
func (r *Relabel) CheckStatic() error {
	seen := map[string]bool{}
	for _, l := range r.Static {
		switch {
		case !valid(l.Name):
			return fmt.Errorf("static label: %q is not a valid label name", l.Name)
		case builtIn(l.Name), isLabelField(l.Name):
			return fmt.Errorf("static label: %q is taken: series already have a label of that name", l.Name)
		case seen[l.Name]:
			return fmt.Errorf("static label: %q is given twice", l.Name)
		}
		seen[l.Name] = true
	}
	return nil
}

// CheckDrop checks the labels to omit.
func (r *Relabel) CheckDrop() error {
	for _, n := range r.Drop {
		if builtIn(n) && !slices.Contains(droppable, n) {
			return fmt.Errorf("label %q cannot be dropped: series would become duplicates", n)
		}
	}
	return nil
}

// CheckRename checks the new names, given the static labels.
func (r *Relabel) CheckRename() error {
	to := map[string]string{}
	for _, from := range slices.Sorted(maps.Keys(r.Rename)) {
		name := r.Rename[from]
		if slices.Contains(inline, from) {
			return fmt.Errorf("label %q cannot be renamed", from)
		}
		if !valid(name) {
			return fmt.Errorf("label %q cannot be renamed: %q is not a valid label name", from, name)
		}
		if other, ok := to[name]; ok {
			return fmt.Errorf("label %q cannot be renamed: %q is taken by %q", from, name, other)
		}
		if r.collides(from, name) {
			return fmt.Errorf("label %q cannot be renamed: %q is taken: series already have a label of that name", from, name)
		}
		to[name] = from
	}
	return nil
}

// collides returns a label called name that a series with the label from may
// also have.
func (r *Relabel) collides(from, name string) bool {
	switch {
	case slices.ContainsFunc(r.Static, func(l gpu.PodLabel) bool { return l.Name == name }), isLabelField(name):
		return true
	case slices.Contains(ofParts, name):
		return slices.Contains(ofParts, from) || slices.Contains(onParts, from) || isLabelField(from)
	}
	return builtIn(name)
}

// builtIn reports whether the agent itself writes a label with this name.
func builtIn(name string) bool {
	return reservedNames(&Config{})[name] || slices.Contains(ofParts, name)
}

// isLabelField reports whether a collectors file, which may change, can make
// this name a label of all series.
func isLabelField(name string) bool {
	_, ok := names.Metric(name)
	return ok
}

// valid reports whether Prometheus accepts a label's name. Names that start
// with two underscores are reserved.
func valid(name string) bool {
	for i, c := range []byte(name) {
		digit := c >= '0' && c <= '9'
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (!digit || i == 0) {
			return false
		}
	}
	return name != "" && !strings.HasPrefix(name, "__")
}

// relabelled returns the new names of changed labels; empty for a dropped one.
func (r *Relabel) relabelled() map[string]string {
	m := map[string]string{}
	for from, to := range r.Rename {
		m[from] = to
	}
	for _, n := range r.Drop {
		m[n] = ""
	}
	return m
}

// static renders the static labels, by name.
func (r *Relabel) static(b []byte) []byte {
	all := slices.Clone(r.Static)
	slices.SortFunc(all, func(a, b gpu.PodLabel) int { return cmp.Compare(a.Name, b.Name) })
	for _, l := range all {
		b = appendLabel(append(b, ','), l.Name, l.Value)
	}
	return b
}

// label writes ,name="value" under the label's new name.
func (r *renderer) label(b []byte, name, value string) []byte {
	if name = r.shown(name); name == "" {
		return b
	}
	return appendLabel(append(b, ','), name, value)
}

// shown returns a label's new name; empty for a dropped one.
func (r *renderer) shown(name string) string {
	if len(r.relabelled) > 0 {
		if to, ok := r.relabelled[name]; ok {
			return to
		}
	}
	return name
}
