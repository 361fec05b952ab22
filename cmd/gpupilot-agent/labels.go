// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/gpupilot/gpupilot/internal/expo"
	"github.com/gpupilot/gpupilot/internal/gpu"
)

// labelFlags change the labels of the fields' series.
type labelFlags struct {
	static, drop, rename []string
}

func (l *labelFlags) options() []option {
	return []option{
		{
			"static-labels", "", "GPUPILOT_STATIC_LABELS", &l.static,
			"further labels of the fields' series, `name=value,…`", l.check,
		},
		{
			"drop-labels", "", "GPUPILOT_DROP_LABELS", &l.drop,
			"`labels` to leave out: pod labels, label fields, pci_bus_id, device, modelName, GPU_I_PROFILE, hostname or pod_uid", l.check,
		},
		{
			"rename-labels", "", "GPUPILOT_RENAME_LABELS", &l.rename,
			"labels to give other names, `old=new,…`", l.check,
		},
	}
}

func (l *labelFlags) check() error {
	_, err := l.relabel()
	return err
}

// relabel is what the flags say together.
func (l *labelFlags) relabel() (expo.Relabel, error) {
	r := expo.Relabel{Drop: l.drop, Rename: map[string]string{}}
	for _, s := range l.static {
		name, value, ok := strings.Cut(s, "=")
		if !ok {
			return r, fmt.Errorf("%q is not name=value", s)
		}
		r.Static = append(r.Static, gpu.PodLabel{Name: name, Value: value})
	}
	for _, s := range l.rename {
		from, to, ok := strings.Cut(s, "=")
		if !ok {
			return r, fmt.Errorf("%q is not old=new", s)
		}
		r.Rename[from] = to
	}
	return r, r.Check()
}
