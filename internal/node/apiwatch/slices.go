// SPDX-License-Identifier: Apache-2.0

package apiwatch

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// sliceSpec is the fields that are read of a ResourceSlice, resource.k8s.io/v1.
type sliceSpec struct {
	Driver string `json:"driver"`
	Pool   struct {
		Name       string `json:"name"`
		Generation int64  `json:"generation"`
	} `json:"pool"`
	Devices []struct {
		Name       string                    `json:"name"`
		Attributes map[string]attributeValue `json:"attributes"`
	} `json:"devices"`
}

// attributeValue is a device's attribute; the attributes that are read are
// strings.
type attributeValue struct {
	String string `json:"string"`
}

// claimed is the facts of a device in a slice.
type claimed struct{ uuid, migProfile, parent string }

// deviceName is a device's unique name among all published devices.
type deviceName struct{ driver, pool, device string }

// Slices watches the devices that a driver of resource claims has published for
// a node.
type Slices struct {
	f     follower
	of    string // the driver
	node  *Node
	log   *slog.Logger
	all   map[string]sliceSpec // by the slice's name; the goroutine of Run owns it
	state atomic.Pointer[map[deviceName]claimed]
	down  bool // the goroutine of Run owns it

	made map[gpu.Claim]*gpu.Claim // of the last answer; Resolve's
}

// NewSlices returns a Slices that is empty until Run.
func NewSlices(c *Client, driver string, node *Node, log *slog.Logger) *Slices {
	s := &Slices{of: driver, node: node, log: log, all: map[string]sliceSpec{}}
	s.f = follower{
		c: c, path: "/apis/resource.k8s.io/v1/resourceslices",
		reset: s.reset, change: s.change, state: s.note,
	}
	return s
}

// Run watches the slices until ctx is done.
func (s *Slices) Run(ctx context.Context) {
	s.node.each(ctx, func(ctx context.Context, node string) {
		s.f.selector = "spec.driver=" + s.of + ",spec.nodeName=" + node
		s.f.run(ctx)
	})
}

func (s *Slices) reset(all []object) {
	clear(s.all)
	for i := range all {
		s.take(&all[i])
	}
	s.publish()
}

func (s *Slices) change(o object, there bool) {
	switch {
	case o.Metadata.Name == "": // a bookmark
		return
	case there:
		s.take(&o)
	default:
		delete(s.all, o.Metadata.Name)
	}
	s.publish()
}

func (s *Slices) take(o *object) {
	if o.Spec != nil {
		s.all[o.Metadata.Name] = *o.Spec
	}
}

func (s *Slices) note(err error) {
	switch {
	case err != nil && !s.down:
		s.log.Warn("cannot watch ResourceSlices; the last known devices of resource claims are kept", "err", err)
	case err == nil && s.down:
		s.log.Info("ResourceSlices are watched again")
	}
	s.down = err != nil
}

// publish publishes the devices in the slices of each pool's newest generation:
// while a driver republishes a pool, older slices are stale.
func (s *Slices) publish() {
	newest := map[[2]string]int64{}
	for _, x := range s.all {
		pool := [2]string{x.Driver, x.Pool.Name}
		newest[pool] = max(newest[pool], x.Pool.Generation)
	}
	devices := map[deviceName]claimed{}
	for _, x := range s.all {
		if x.Pool.Generation < newest[[2]string{x.Driver, x.Pool.Name}] {
			continue
		}
		for _, d := range x.Devices {
			c := claimed{uuid: attribute(d.Attributes, x.Driver, "uuid")}
			if attribute(d.Attributes, x.Driver, "type") == "mig" || strings.HasPrefix(c.uuid, "MIG-") {
				c.migProfile = attribute(d.Attributes, x.Driver, "profile")
				c.parent = attribute(d.Attributes, x.Driver, "parentUUID")
			}
			devices[deviceName{x.Driver, x.Pool.Name, d.Name}] = c
		}
	}
	s.state.Store(&devices)
}

// attribute returns an attribute of the driver's own domain; its key may omit
// the domain.
func attribute(all map[string]attributeValue, driver, name string) string {
	if v, ok := all[name]; ok {
		return v.String
	}
	return all[driver+"/"+name].String
}

// Resolve sets the device ids of allocations through claims, in place. It does
// not change an allocation whose device is in no slice. It is for one goroutine
// at a time.
func (s *Slices) Resolve(allocs []gpu.Allocation) []gpu.Allocation {
	var devices map[deviceName]claimed
	if p := s.state.Load(); p != nil {
		devices = *p
	}
	made := make(map[gpu.Claim]*gpu.Claim, len(s.made))
	for i := range allocs {
		a := &allocs[i]
		if a.Owner.Claim == nil {
			continue
		}
		c := *a.Owner.Claim
		d := devices[deviceName{c.Driver, c.Pool, c.Device}]
		if d.uuid != "" {
			a.DeviceID = d.uuid
			if a.Owner.Replica != "" {
				a.DeviceID += "::" + a.Owner.Replica
			}
		}
		c.MIGProfile, c.ParentUUID = d.migProfile, d.parent
		if strings.HasPrefix(d.uuid, "MIG-") {
			c.MIGUUID = d.uuid
		}
		a.Owner.Claim = intern(made, s.made, c)
	}
	s.made = made
	return allocs
}

// intern returns the same address for equal claims, so that owners compare
// equal.
func intern(made, before map[gpu.Claim]*gpu.Claim, c gpu.Claim) *gpu.Claim {
	p := made[c]
	if p == nil {
		p = before[c]
	}
	if p == nil {
		p = &c
	}
	made[c] = p
	return p
}
