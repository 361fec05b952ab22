// SPDX-License-Identifier: Apache-2.0

package shown

import (
	"math"
	"slices"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

const (
	pastSpan   = 10 * time.Minute
	pastPoints = 120 // of a field
)

// Device returns a device with all of its fields, and with their last minutes while a pod has
// held it; ok is false if there is none.
func Device(store *series.Store, node, uuid string, pods Pods, now time.Time, fresh time.Duration) (out view.Device, ok bool) {
	if node == "" {
		return out, false
	}
	var fields []gpu.FieldID
	for _, f := range gpu.Fields() {
		if f.Kind != gpu.Label {
			fields = append(fields, f.ID)
		}
	}
	all := store.Devices(node, fields, now, maxAge)
	at := slices.IndexFunc(all, func(d series.DeviceView) bool { return d.Device == uuid })
	if at < 0 {
		return out, false
	}
	d := &all[at]
	out = view.Device{Time: now, MaxAge: fresh, Node: node, GPU: gpuOf(d, now, fresh, new([]float64), new([]int)), Fields: make([]view.DeviceField, 0, len(d.Values))}
	setIdle(&out.GPU, (&view.View{MaxAge: fresh}).State(&out.GPU), d.Idle, pods)
	var w series.Window
	for i := range d.Values {
		x := &d.Values[i]
		about, known := gpu.Lookup(x.Field)
		if !known || math.IsNaN(x.Value) || math.IsInf(x.Value, 0) {
			continue
		}
		f := view.DeviceField{Name: about.Name, Help: about.Help, Unit: string(about.Unit), Value: x.Value, Age: max(0, now.Sub(x.At))}
		if len(d.Owners) > 0 {
			o := &d.Owners[0]
			r := store.FieldReader(x.Field, now, maxAge)
			r.WindowOn(&w, &series.Holder{Namespace: o.Namespace, Pod: o.Pod, Node: node, Devices: -1}, now.Add(-pastSpan))
			for j := range w.Devices {
				if w.Devices[j].Device == uuid {
					f.Past = past(w.Devices[j].Samples, now)
				}
			}
		}
		out.Fields = append(out.Fields, f)
	}
	return out, true
}

// past returns the means of equal parts of pastSpan; nil if all values are equal.
func past(samples []series.Sample, now time.Time) (out [][2]float64) {
	const part = pastSpan / pastPoints
	varies, n, last := false, 0.0, int64(math.MinInt64)
	for i := range samples {
		s := &samples[i]
		varies = varies || s.Value != samples[0].Value
		if at := int64(now.Sub(s.At) / part); at != last {
			out, last, n = append(out, [2]float64{math.Round(-now.Sub(s.At).Seconds()*10) / 10, 0}), at, 0
		}
		mean := &out[len(out)-1][1]
		n++
		*mean += (s.Value - *mean) / n
	}
	if !varies {
		return nil
	}
	return out
}
