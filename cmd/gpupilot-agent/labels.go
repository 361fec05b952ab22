// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/node/exposition"
)

// labelFlags are the flags that change the labels of the fields' series.
type labelFlags struct {
	static, drop, rename []string
}

func (l *labelFlags) options() []option {
	return []option{
		{
			"static-labels", "", "GPUPILOT_STATIC_LABELS", &l.static,
			"additional labels of the fields' series, `name=value,…`", l.checkStatic,
		},
		{
			"drop-labels", "", "GPUPILOT_DROP_LABELS", &l.drop,
			"`labels` to omit: pod labels, label fields, pci_bus_id, device, modelName, GPU_I_PROFILE, hostname or pod_uid", l.checkDrop,
		},
		{
			"rename-labels", "", "GPUPILOT_RENAME_LABELS", &l.rename,
			"labels to rename, `old=new,…`", l.checkRename,
		},
	}
}

func (l *labelFlags) checkStatic() error {
	static, err := l.staticLabels()
	if err != nil {
		return err
	}
	return (&exposition.Relabel{Static: static}).CheckStatic()
}

func (l *labelFlags) checkDrop() error {
	return (&exposition.Relabel{Drop: l.drop}).CheckDrop()
}

// checkRename runs after checkStatic: options are checked in the order of the
// table.
func (l *labelFlags) checkRename() error {
	r, err := l.relabel()
	if err != nil {
		return err
	}
	return r.CheckRename()
}

// relabel combines the three flags.
func (l *labelFlags) relabel() (exposition.Relabel, error) {
	r := exposition.Relabel{Drop: l.drop, Rename: map[string]string{}}
	var err error
	if r.Static, err = l.staticLabels(); err != nil {
		return r, err
	}
	for _, s := range l.rename {
		from, to, ok := strings.Cut(s, "=")
		if !ok {
			return r, fmt.Errorf("%q is not old=new", s)
		}
		if before, twice := r.Rename[from]; twice && before != to {
			return r, fmt.Errorf("label %q cannot be renamed to both %q and %q", from, before, to)
		}
		r.Rename[from] = to
	}
	return r, nil
}

func (l *labelFlags) staticLabels() ([]gpu.PodLabel, error) {
	var out []gpu.PodLabel
	for _, s := range l.static {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not name=value", s)
		}
		out = append(out, gpu.PodLabel{Name: name, Value: value})
	}
	return out, nil
}
