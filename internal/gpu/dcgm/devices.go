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

	"github.com/NVIDIA/go-dcgm/pkg/dcgm"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The fields that say which device an entity is.
const (
	fieldName     dcgm.Short = 50
	fieldUUID     dcgm.Short = 54
	fieldMinor    dcgm.Short = 55
	fieldPCIBusID dcgm.Short = 57
)

// enumerate lists the devices and makes them readable. A GPU that fails is
// left out, or, if it was known, kept; the others are listed either way.
func (r *Reader) enumerate(s *session) ([]gpu.Device, error) {
	ids, err := dcgm.GetEntityGroupEntities(dcgm.FE_GPU)
	if err != nil {
		return nil, s.unreadable("list GPUs", err)
	}
	slices.Sort(ids)
	mig, migErr := s.hierarchy()
	before := *r.devices.Load()
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
	r.devices.Store(&after)
	for uuid, d := range before {
		if after[uuid] != d && d.ses == s {
			d.release()
		}
	}
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
func (s *session) gpuAt(id uint, instances []instance, before map[string]*device) ([]*device, error) {
	known := s.knownAt(id, before)
	if slices.ContainsFunc(known, func(d *device) bool { return d.hung(time.Now()) }) {
		return known, nil // its calls would hang the enumeration too
	}
	if status := dcgm.GetGPUStatus(id); gone(status) {
		return known, fmt.Errorf("%w: DCGM says %s", gpu.ErrLost, status)
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
	found := []*device{s.keep(before, whole, c, entity{dcgm.FE_GPU, id})}
	for _, i := range instances {
		dev := whole
		dev.UUID = s.instanceUUID(whole.UUID, i)
		dev.MIG = &gpu.MIG{ParentUUID: whole.UUID, GPUInstance: i.gi, ComputeInstance: i.ci, Profile: i.profile}
		if i.spans {
			dev.MIG.ComputeInstance = -1
		}
		found = append(found, s.keep(before, dev, c, entity{dcgm.FE_GPU_I, i.id}))
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

// gone says whether a GPU of this status cannot be read.
func gone(s dcgm.EntityStatus) bool {
	switch s {
	case dcgm.EntityStatusLost, dcgm.EntityStatusDetached, dcgm.EntityStatusInaccessible, dcgm.EntityStatusDisabled:
		return true
	}
	return false
}

// identify asks for what does not change. Only the UUID must be known. The
// index is DCGM's id, as in dcgm-exporter's gpu label.
func (s *session) identify(id uint) (gpu.Device, error) {
	texts, err := s.live(entity{dcgm.FE_GPU, id}, fieldUUID, fieldName, fieldPCIBusID, fieldMinor)
	if err != nil {
		return gpu.Device{}, err
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

// live reads fields as text, past DCGM's cache. What there is none of is empty.
func (s *session) live(e entity, fields ...dcgm.Short) ([]string, error) {
	values, err := dcgm.EntitiesGetLatestValues([]dcgm.GroupEntityPair{{EntityGroupId: e.kind, EntityId: e.id}}, fields, dcgm.DCGM_FV_FLAG_LIVE_DATA)
	if err != nil {
		return nil, s.judge(err)
	}
	texts := make([]string, len(fields))
	for i := range values {
		texts[i] = decode(values[i].FieldType, values[i].Status, &values[i].Value).text
	}
	return texts, nil
}

// instance is a compute instance of a GPU instance. A GPU instance without any
// is listed alone.
type instance struct {
	id      uint // DCGM's entity id of the GPU instance, whose values are read
	gi, ci  int  // NVML's ids; ci -1: none
	spans   bool // the compute instance is all of the GPU instance
	profile string
}

// hierarchy lists the MIG instances by DCGM's GPU id. DCGM takes a second or
// two to see a change.
func (s *session) hierarchy() (map[uint][]instance, error) {
	h, err := dcgm.GetGPUInstanceHierarchy()
	if err != nil {
		if err = s.judge(err); errors.Is(err, gpu.ErrNoDriver) {
			return nil, err
		}
		return nil, fmt.Errorf("list MIG instances: %w", err)
	}
	list := h.EntityList[:h.Count]
	out := map[uint][]instance{}
	for _, g := range list {
		if g.Entity.EntityGroupId != dcgm.FE_GPU_I {
			continue
		}
		i := instance{id: g.Entity.EntityId, gi: int(g.Info.NvmlInstanceId), ci: -1}
		if name, err := s.live(entity{dcgm.FE_GPU_I, i.id}, fieldName); err == nil {
			_, profile, found := strings.Cut(name[0], " MIG ")
			if i.profile = name[0]; found {
				i.profile = profile
			}
		}
		before := len(out[g.Parent.EntityId])
		for _, c := range list {
			if c.Entity.EntityGroupId == dcgm.FE_GPU_CI && c.Parent == g.Entity {
				i.ci = int(c.Info.NvmlComputeInstanceId)
				i.spans = c.Info.NvmlProfileSlices == g.Info.NvmlProfileSlices
				out[g.Parent.EntityId] = append(out[g.Parent.EntityId], i)
			}
		}
		if len(out[g.Parent.EntityId]) == before {
			out[g.Parent.EntityId] = append(out[g.Parent.EntityId], i)
		}
	}
	return out, nil
}

// instanceUUID is the instance's UUID. DCGM does not tell it; without another
// who does, it is NVIDIA's older form, which is as unique.
func (s *session) instanceUUID(parent string, i instance) string {
	if s.cfg.MIGUUID != nil {
		if uuid := s.cfg.MIGUUID(parent, i.gi, max(i.ci, 0)); uuid != "" {
			return uuid
		}
	}
	return fmt.Sprintf("MIG-%s/%d/%d", parent, i.gi, max(i.ci, 0))
}
