// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// The fields that say which device an entity is.
const (
	fieldName     gpu.FieldID = 50
	fieldUUID     gpu.FieldID = 54
	fieldPCIBusID gpu.FieldID = 57
)

// listing collects the devices of one enumeration.
type listing = vendorlib.Listing[*session, *device]

// enumerate lists the GPUs and their MIG instances. A GPU that fails is left
// out, or kept if it was known; the others are listed in both cases.
func (s *session) enumerate(l *listing) error {
	ids, err := s.entities(kindGPU)
	if err != nil {
		return s.unreadable("list GPUs", err)
	}
	slices.Sort(ids)
	mig, err := s.hierarchy()
	l.Fail(err)
	for _, id := range ids {
		found, err := s.gpuAt(id, mig[id], l)
		if err := l.Add(int(id), found, err); err != nil {
			return err
		}
	}
	return nil
}

// unreadable returns why nothing can be enumerated, as a gpu.ErrNoDriver.
func (s *session) unreadable(what string, err error) error {
	err = s.judge(err)
	if errors.Is(err, gpu.ErrNoDriver) {
		return err
	}
	return noEngine{fmt.Errorf("%s: %w", what, err)}
}

// gpuAt finds the GPU with an id and its MIG instances.
func (s *session) gpuAt(id uint, instances []place, l *listing) ([]*device, error) {
	known, hung := l.KnownAt(int(id))
	if hung {
		return known, nil
	}
	status, err := s.status(id)
	if err == nil {
		err = status.gone()
	}
	if err != nil {
		return known, s.judge(err)
	}
	whole, err := s.identify(id)
	if err != nil {
		return known, err
	}
	c := s.cards[id]
	if c == nil || c.uuid != whole.UUID {
		c = &card{id: id, uuid: whole.UUID, ses: s}
		s.cards[id] = c
	}
	found := []*device{s.keep(l, whole, c, entity{kindGPU, id})}
	for _, i := range instances {
		dev := whole
		dev.UUID = s.instanceUUID(whole.UUID, i)
		dev.MIG = &gpu.MIG{ParentUUID: whole.UUID, GPUInstance: i.gi, ComputeInstance: i.ci, Profile: i.profile}
		if i.spans {
			dev.MIG.ComputeInstance = -1
		}
		found = append(found, s.keep(l, dev, c, entity{kindInstance, i.id}))
	}
	return found, nil
}

// keep returns the known device, or a new one.
func (s *session) keep(l *listing, id gpu.Device, c *card, e entity) *device {
	if d, ok := l.Known(id.UUID); ok && d.card == c && d.entity == e && d.Index == id.Index {
		return d
	}
	return newDevice(s, id, c, e)
}

// identify asks for what does not change: only the UUID is mandatory. The index
// is DCGM's id, as in dcgm-exporter's gpu label.
func (s *session) identify(id uint) (gpu.Device, error) {
	texts, err := s.live(entity{kindGPU, id}, fieldUUID, fieldName, fieldPCIBusID, gpu.MinorNumber)
	if err != nil {
		return gpu.Device{}, s.judge(err)
	}
	d := gpu.Device{Index: int(id), Minor: -1, UUID: texts[0], Model: texts[1], PCIBusID: texts[2]}
	if n, err := strconv.Atoi(texts[3]); err == nil {
		d.Minor = n
	}
	if d.UUID == "" {
		return d, errors.New("DCGM does not know its UUID")
	}
	return d, nil
}

// place is a compute instance of a GPU instance. A GPU instance without a compute
// instance has a place too.
type place struct {
	id      uint // DCGM's entity id of the GPU instance, whose values are read
	gi, ci  int  // NVML's ids; ci is -1 without a compute instance
	spans   bool // the compute instance is all of the GPU instance
	profile string
}

// hierarchy lists the MIG instances by DCGM's GPU id. DCGM takes a second or
// two to see a change.
func (s *session) hierarchy() (map[uint][]place, error) {
	list, err := s.instances()
	if err != nil {
		return nil, s.judge(err)
	}
	out := map[uint][]place{}
	for _, g := range list {
		if g.entity.kind != kindInstance {
			continue
		}
		p := place{id: uint(g.entity.id), gi: int(g.gi), ci: -1, profile: s.profile(uint(g.entity.id))}
		parent := uint(g.parent.id)
		before := len(out[parent])
		for _, c := range list {
			if c.entity.kind == kindCompute && c.parent == g.entity {
				p.ci, p.spans = int(c.ci), c.slices == g.slices
				out[parent] = append(out[parent], p)
			}
		}
		if len(out[parent]) == before {
			out[parent] = append(out[parent], p)
		}
	}
	return out, nil
}

// profile returns an instance's profile, such as 1g.18gb. DCGM calls it the name.
func (s *session) profile(id uint) string {
	texts, err := s.live(entity{kindInstance, id}, fieldName)
	if err != nil {
		return ""
	}
	if _, profile, found := strings.Cut(texts[0], " MIG "); found {
		return profile
	}
	return texts[0]
}

// instanceUUID returns the instance's UUID. DCGM does not give it. If
// Config.MIGUUID does not either, the UUID has NVIDIA's older form, which is
// unique too.
func (s *session) instanceUUID(parent string, i place) string {
	if s.cfg.MIGUUID != nil {
		if uuid := s.cfg.MIGUUID(parent, i.gi, max(i.ci, 0)); uuid != "" {
			return uuid
		}
	}
	return fmt.Sprintf("MIG-%s/%d/%d", parent, i.gi, max(i.ci, 0))
}
