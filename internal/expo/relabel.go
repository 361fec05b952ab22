// SPDX-License-Identifier: Apache-2.0

package expo

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Relabel changes the labels of the fields' series: those that are for people
// and not what tells one series from another.
type Relabel struct {
	Static []gpu.PodLabel    // further labels with fixed values
	Drop   []string          // labels to leave out
	Rename map[string]string // old name to new
}

// droppable are the built-in labels without which no two series become one.
var droppable = []string{"pci_bus_id", "device", "modelName", "GPU_I_PROFILE", "hostname", "Hostname", "pod_uid"}

// inline are the labels that are written where they belong, under their names.
var inline = []string{
	"gpu", "err_code", "err_msg", "window_size_in_ms", "clock_event", "xid", "health_watch", "health_error_code", "__name__",
}

// Check says what is wrong, if anything.
func (r *Relabel) Check() error {
	taken := reservedNames(&Config{})
	for _, l := range r.Static {
		if !valid(l.Name) {
			return fmt.Errorf("static label: %q is no label name", l.Name)
		}
		if taken[l.Name] {
			return fmt.Errorf("static label: %q is taken", l.Name)
		}
		taken[l.Name] = true
	}
	for _, n := range r.Drop {
		if reservedNames(&Config{})[n] && !slices.Contains(droppable, n) {
			return fmt.Errorf("label %q cannot be left out: series could not be told from one another", n)
		}
	}
	for from, to := range r.Rename {
		if slices.Contains(inline, from) {
			return fmt.Errorf("label %q cannot be renamed", from)
		}
		if !valid(to) {
			return fmt.Errorf("label %q cannot be renamed: %q is no label name", from, to)
		}
		if taken[to] {
			return fmt.Errorf("label %q cannot be renamed: %q is taken", from, to)
		}
		taken[to] = true
	}
	return nil
}

// valid says whether Prometheus takes a label's name; those that start with two
// underscores are its own.
func valid(name string) bool {
	for i, c := range []byte(name) {
		digit := c >= '0' && c <= '9'
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (!digit || i == 0) {
			return false
		}
	}
	return name != "" && !strings.HasPrefix(name, "__")
}

// relabelled are the names of labels that are not shown as they are; an empty
// one is left out.
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

// label writes ,name="value" under the name that the label is to have.
func (r *renderer) label(b []byte, name, value string) []byte {
	if name = r.shown(name); name == "" {
		return b
	}
	return appendLabel(append(b, ','), name, value)
}

// shown is the name that a label is to have, empty where it is left out.
func (r *renderer) shown(name string) string {
	if len(r.relabelled) > 0 {
		if to, ok := r.relabelled[name]; ok {
			return to
		}
	}
	return name
}
