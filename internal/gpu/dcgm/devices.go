// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The fields that say which device an entity is.
const (
	fieldName     gpu.FieldID = 50
	fieldUUID     gpu.FieldID = 54
	fieldPCIBusID gpu.FieldID = 57
)

// enumerate lists the devices and makes them readable. A GPU that fails is
// left out, or, if it was known, kept; the others are listed either way.
func (r *Reader) enumerate(s *session) ([]gpu.Device, error) {
	ids, err := s.entities(kindGPU)
	if err != nil {
		return nil, s.unreadable("list GPUs", err)
	}
	slices.Sort(ids)
	mig, migErr := s.hierarchy()
	before := r.library.Known()
	after := make(map[string]*device, len(before))
	list := make([]gpu.Device, 0, len(ids))
	var errs []error
	if migErr != nil {
		errs = append(errs, migErr)
	}
	for _, id := range ids {
		found, err := s.gpuAt(id, mig[id], before)
		if errors.Is(err, gpu.ErrNoDriver) {
			return nil, err
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("GPU %d: %w", id, err))
		}
		for _, d := range found {
			list = append(list, d.Device)
			after[d.UUID] = d
		}
	}
	for uuid, d := range before {
		if after[uuid] != d && d.ses == s {
			d.release() // before another is read in its place
		}
	}
	r.library.SetKnown(after)
	return list, errors.Join(errs...)
}

// unreadable is why nothing can be enumerated: always a gpu.ErrNoDriver.
func (s *session) unreadable(what string, err error) error {
	err = s.judge(err)
	if errors.Is(err, gpu.ErrNoDriver) {
		return err
	}
	s.broken.Store(true)
	return fmt.Errorf("%w: %s: %w", gpu.ErrNoDriver, what, err)
}

// gpuAt finds the GPU of an id and its MIG instances.
func (s *session) gpuAt(id uint, instances []place, before map[string]*device) ([]*device, error) {
	known := s.knownAt(id, before)
	if slices.ContainsFunc(known, func(d *device) bool { return d.hung(time.Now()) }) {
		return known, nil // its calls would hang the enumeration too
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
	found := []*device{s.keep(before, whole, c, entity{kindGPU, id})}
	for _, i := range instances {
		dev := whole
		dev.UUID = s.instanceUUID(whole.UUID, i)
		dev.MIG = &gpu.MIG{ParentUUID: whole.UUID, GPUInstance: i.gi, ComputeInstance: i.ci, Profile: i.profile}
		if i.spans {
			dev.MIG.ComputeInstance = -1
		}
		found = append(found, s.keep(before, dev, c, entity{kindInstance, i.id}))
	}
	return found, nil
}

// keep is the device as it was known, or a new one.
func (s *session) keep(before map[string]*device, id gpu.Device, c *card, e entity) *device {
	if d := before[id.UUID]; d != nil && d.card == c && d.entity == e && d.Index == id.Index {
		return d
	}
	return newDevice(s, id, c, e)
}

// knownAt are the devices that were at an id in this session: the GPU, then
// its instances.
func (s *session) knownAt(id uint, before map[string]*device) []*device {
	var known []*device
	for _, d := range before {
		if d.card.id == id && d.ses == s {
			known = append(known, d)
		}
	}
	slices.SortFunc(known, func(a, b *device) int {
		return cmp.Or(cmp.Compare(a.entity.kind, b.entity.kind), cmp.Compare(a.entity.id, b.entity.id), cmp.Compare(a.UUID, b.UUID))
	})
	return known
}

// identify asks for what does not change. Only the UUID must be known. The
// index is DCGM's id, as in dcgm-exporter's gpu label.
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

// place is a compute instance of a GPU instance. A GPU instance without any is
// listed alone.
type place struct {
	id      uint // DCGM's entity id of the GPU instance, whose values are read
	gi, ci  int  // NVML's ids; ci -1: none
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

// profile is an instance's, such as 1g.18gb: what DCGM calls its name.
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

// instanceUUID is the instance's UUID. DCGM does not tell it; without another
// who does, it is NVIDIA's older form, which is as unique.
func (s *session) instanceUUID(parent string, i place) string {
	if s.cfg.MIGUUID != nil {
		if uuid := s.cfg.MIGUUID(parent, i.gi, max(i.ci, 0)); uuid != "" {
			return uuid
		}
	}
	return fmt.Sprintf("MIG-%s/%d/%d", parent, i.gi, max(i.ci, 0))
}
