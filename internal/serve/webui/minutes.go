// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Control is what a Source has of the controller.
type Control interface {
	View() view.View
	History(namespace, name string) (h view.History, ok bool)
	Workload(namespace, name string) (d view.WorkloadDetail, ok bool)
	Device(node, uuid string) (d view.Device, ok bool)
}

// WithMinutes is a Control with the minutes of its history.
type WithMinutes struct {
	Control
	Store *history.Store
}

var _ Source = WithMinutes{}

// Minutes implements Source.
func (s WithMinutes) Minutes(namespace, name string, q *view.MinuteQuery) (view.Minutes, bool, error) {
	m, known, err := view.ReadMinutes(s.Store, history.Workload{Namespace: namespace, Kind: q.Kind, Name: name}, q)
	if !known && q.Kind == history.KindAutoscaler {
		_, known = s.History(namespace, name)
	}
	return m, known, err
}
