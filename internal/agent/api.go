// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Document is what /api/v1/gpus answers: the last snapshot. Times are RFC 3339
// in UTC; what is not known is left out.
type Document struct {
	Node            string       `json:"node"`
	Time            time.Time    `json:"time"` // of the tick
	IntervalSeconds float64      `json:"intervalSeconds"`
	Backend         string       `json:"backend"`
	Error           string       `json:"error,omitempty"` // why no GPU can be read
	Owners          *Kubelet     `json:"kubelet,omitempty"`
	Devices         []DeviceDoc  `json:"devices"`
	Unmatched       []Allocation `json:"unmatched,omitempty"` // given to containers, but not collected here
}

// Kubelet says how well the kubelet answers who holds which device.
type Kubelet struct {
	Up    bool       `json:"up"`
	Last  *time.Time `json:"lastSuccess,omitempty"`
	Error string     `json:"error,omitempty"`
}

// DeviceDoc is one device. Values older than three intervals (and 5 s) are left
// out: absent, not frozen.
type DeviceDoc struct {
	Index      int               `json:"index"`
	Minor      int               `json:"minor"`
	UUID       string            `json:"uuid"`
	PCIBusID   string            `json:"pciBusId"`
	Model      string            `json:"model"`
	MIG        *MIGDoc           `json:"mig,omitempty"`
	Up         bool              `json:"up"`                  // read well, and not long ago
	Collected  *time.Time        `json:"collected,omitempty"` // the time of the values
	AgeSeconds *float64          `json:"ageSeconds,omitempty"`
	Seconds    float64           `json:"readSeconds"` // how long the last good read took
	Failures   uint64            `json:"failures"`    // failed reads since the agent started
	Error      string            `json:"error,omitempty"`
	Values     map[string]Value  `json:"values"` // by field, under the names of profile 4.8
	Labels     map[string]string `json:"labels"` // the text fields, likewise
	Owners     []OwnerDoc        `json:"owners"`
	XIDs       []XIDDoc          `json:"xids"`
	Jobs       []string          `json:"jobs,omitempty"` // of --hpc-job-mapping-dir
}

// MIGDoc says which instance of which GPU a MIG device is.
type MIGDoc struct {
	ParentUUID      string `json:"parentUuid"`
	GPUInstance     int    `json:"gpuInstance"`
	ComputeInstance *int   `json:"computeInstance,omitempty"`
	Profile         string `json:"profile"`
}

// Value is a field's value with its unit (%, ratio, MHz, C, W, mJ, MiB, B/s,
// MB/s, ns, bits or none).
type Value struct {
	Value float64  `json:"value"`
	Unit  gpu.Unit `json:"unit,omitempty"`
}

// OwnerDoc is a container that holds the device or, with a replica, a share.
type OwnerDoc struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Replica   string `json:"replica,omitempty"`
}

// XIDDoc is an XID error seen since the agent started.
type XIDDoc struct {
	Code  uint64    `json:"code"`
	Count uint64    `json:"count"`
	Last  time.Time `json:"last"`
}

// Allocation is a device that the kubelet gave to a container.
type Allocation struct {
	Resource string `json:"resource"`
	DeviceID string `json:"deviceId"`
	OwnerDoc
}

func (a *Agent) serveGPUs(w http.ResponseWriter, _ *http.Request) {
	s := a.Snapshot()
	if s == nil {
		http.Error(w, "nothing has been collected yet", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(a.document(s, time.Now())) // a client that went away is no error
}

func (a *Agent) document(s *gpu.Snapshot, now time.Time) Document {
	d := Document{
		Node: a.cfg.Node, Time: s.Time.UTC(), IntervalSeconds: s.Interval.Seconds(),
		Backend: s.Backend, Error: message(s.Err), Devices: []DeviceDoc{},
	}
	if a.deps.Owners != nil {
		d.Owners = &Kubelet{
			Up:   s.OwnersErr == nil && !s.OwnersTime.IsZero(),
			Last: known(s.OwnersTime), Error: message(s.OwnersErr),
		}
	}
	for i := range s.Devices {
		d.Devices = append(d.Devices, deviceDoc(&s.Devices[i], s.Interval, now))
	}
	for _, u := range s.Unmatched {
		d.Unmatched = append(d.Unmatched, Allocation{u.Resource, u.DeviceID, OwnerDoc(u.Owner)})
	}
	return d
}

func deviceDoc(d *gpu.DeviceSnapshot, interval time.Duration, now time.Time) DeviceDoc {
	fresh := d.Fresh(now, gpu.MaxAge(interval))
	doc := DeviceDoc{
		Index: d.Index, Minor: d.Minor, UUID: d.UUID, PCIBusID: d.PCIBusID, Model: d.Model,
		Up: fresh && d.Err == nil, Collected: known(d.Collected), Seconds: d.Took.Seconds(),
		Failures: d.Failures, Error: message(d.Err), Jobs: d.Jobs,
		Values: map[string]Value{}, Labels: map[string]string{}, Owners: []OwnerDoc{}, XIDs: []XIDDoc{},
	}
	if m := d.MIG; m != nil {
		doc.MIG = &MIGDoc{ParentUUID: m.ParentUUID, GPUInstance: m.GPUInstance, Profile: m.Profile}
		if m.ComputeInstance >= 0 {
			doc.MIG.ComputeInstance = &m.ComputeInstance
		}
	}
	if !d.Collected.IsZero() {
		age := now.Sub(d.Collected).Seconds()
		doc.AgeSeconds = &age
	}
	for _, o := range d.Owners {
		doc.Owners = append(doc.Owners, OwnerDoc(o))
	}
	for _, x := range d.XIDs {
		doc.XIDs = append(doc.XIDs, XIDDoc{x.Code, x.Count, x.Last.UTC()})
	}
	if fresh {
		addValues(&doc, &d.Values)
	}
	return doc
}

func addValues(doc *DeviceDoc, v *gpu.Values) {
	for i, f := range gpu.Fields() {
		if s, ok := v.GetLabel(f.ID); ok {
			doc.Labels[f.Name] = s
		}
		if x, ok := v.GetAt(gpu.Index(i)); ok {
			doc.Values[f.Name] = Value{x, f.Unit}
		}
	}
}

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
