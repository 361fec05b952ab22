// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// relistParts is the time between two enumerations of the parts.
const relistParts = 10 * time.Second

// parts are the node's switches, NVLinks and CPUs during a session.
type parts struct {
	mu     sync.Mutex // held by ReadParts
	listed time.Time
	kinds  [gpu.PartKinds]partsOf
}

// partsOf holds the parts of one kind.
type partsOf struct {
	list   []part
	watch  *watch // nil without parts
	failed error  // why they could not be listed
}

// part is one switch, NVLink, CPU or core.
type part struct {
	gpu.Part
	entity entity
	clock  clock
	labels vendorlib.Labels
}

// ReadParts reads switches, NVLinks and CPUs. See gpu.PartReader.
func (r *Reader) ReadParts(want gpu.FieldSet, keep func(*gpu.Part) bool) ([]gpu.PartSnapshot, error) {
	s, ok := r.Opened()
	if !ok || s.Broken() || !s.Enter() {
		return nil, fmt.Errorf("%w: there is no host engine", gpu.ErrNoDriver)
	}
	defer s.Leave()
	s.parts.mu.Lock()
	defer s.parts.mu.Unlock()
	now := time.Now()
	if now.Sub(s.parts.listed) >= relistParts {
		s.listParts(keep, r.Known())
		s.parts.listed = now
	}
	var out []gpu.PartSnapshot
	var errs []error
	for k := range gpu.PartKind(gpu.PartKinds) {
		read, err := s.readKind(k, want, now)
		if errors.Is(err, gpu.ErrNoDriver) {
			return nil, err
		}
		out, errs = append(out, read...), append(errs, err)
	}
	return out, errors.Join(errs...)
}

// listParts enumerates the parts. A kind that cannot be listed does not hide the
// others.
func (s *session) listParts(keep func(*gpu.Part) bool, devices map[string]*device) {
	for k, list := range map[gpu.PartKind]func(map[string]*device) ([]part, error){
		gpu.NVSwitch: s.switches, gpu.NVLink: s.upLinks, gpu.CPU: s.cpuParts, gpu.CPUCore: s.coreParts,
	} {
		of := &s.parts.kinds[k]
		found, err := list(devices)
		if of.failed = s.absent(err); of.failed != nil {
			continue
		}
		found = slices.DeleteFunc(found, func(p part) bool { return !keep(&p.Part) })
		if slices.EqualFunc(of.list, found, func(a, b part) bool { return a.Part == b.Part && a.entity == b.entity }) {
			continue
		}
		if of.watch != nil {
			of.watch.end()
		}
		*of = partsOf{list: found}
		if len(found) > 0 {
			of.watch = &watch{ses: s, name: "gpupilot-" + k.String(), log: s.log.With("part", k.String())}
			for _, p := range found {
				of.watch.of = append(of.watch.of, p.entity)
			}
		}
	}
}

// absent returns err, or nil if it says that this DCGM or node does not support the
// call: then the node has no such part.
func (s *session) absent(err error) error {
	var e *callError
	if errors.As(err, &e) && (e.code == stNotSupported || e.code == stFunctionNotFound || e.code == stModuleNotLoaded) {
		return nil
	}
	return s.judge(err)
}

func (s *session) switches(map[string]*device) ([]part, error) {
	ids, err := s.entities(kindSwitch)
	var out []part
	for _, id := range ids {
		out = append(out, part{Part: gpu.Part{Kind: gpu.NVSwitch, ID: int(id)}, entity: entity{kindSwitch, id}})
	}
	return out, err
}

// upLinks returns the NVLinks that are up, the GPUs' links first.
func (s *session) upLinks(devices map[string]*device) ([]part, error) {
	links, err := s.links()
	var out []part
	for _, l := range links {
		p := part{Part: gpu.Part{Kind: gpu.NVLink, ID: int(l.index), Parent: int(l.parent)}}
		// A link's id combines the kind and id of its GPU or switch with its index.
		p.entity = entity{kindLink, uint(l.kind) | uint(l.index)<<8 | uint(l.parent)<<24}
		if l.kind == kindGPU {
			if p.GPU = wholeGPU(devices, uint(l.parent)); p.GPU == nil {
				continue
			}
		}
		out = append(out, p)
	}
	return out, err
}

func wholeGPU(devices map[string]*device, id uint) *gpu.Device {
	for _, d := range devices {
		if d.card.id == id && d.MIG == nil {
			return &d.Device
		}
	}
	return nil
}

func (s *session) cpuParts(map[string]*device) ([]part, error) {
	cpus, err := s.cpus()
	var out []part
	for i := range cpus {
		c := &cpus[i]
		out = append(out, part{
			Part:   gpu.Part{Kind: gpu.CPU, ID: int(c.id), Serial: textOf(c.serial[:])},
			entity: entity{kindCPU, uint(c.id)},
		})
	}
	return out, err
}

func (s *session) coreParts(map[string]*device) ([]part, error) {
	cpus, err := s.cpus()
	var out []part
	for _, c := range cpus {
		for i, mask := range c.cores {
			for m := uint64(mask); m != 0; m &= m - 1 {
				id := i*64 + bits.TrailingZeros64(m)
				out = append(out, part{Part: gpu.Part{Kind: gpu.CPUCore, ID: id, Parent: int(c.id)}, entity: entity{kindCore, uint(id)}})
			}
		}
	}
	return out, err
}

// readKind reads the parts of one kind.
func (s *session) readKind(k gpu.PartKind, want gpu.FieldSet, now time.Time) ([]gpu.PartSnapshot, error) {
	of := &s.parts.kinds[k]
	if of.watch == nil {
		return nil, of.failed
	}
	pass := &s.passing().parts[k]
	numbers, texts := slices.Clone(pass.numbers), slices.Clone(pass.texts)
	for _, f := range gpu.PartFields() {
		switch i, _ := gpu.IndexOf(f.ID); {
		case !want.Has(i) || !f.On(k):
		case f.Kind == gpu.Label:
			texts = append(texts, f.ID)
		default:
			numbers = append(numbers, f.ID)
		}
	}
	var ids, fresh []gpu.FieldID
	for _, id := range numbers {
		switch {
		case of.watch.fields[id]:
			ids = append(ids, id)
		case !of.watch.isRefused(id, now):
			fresh = append(fresh, id)
		}
	}
	watched, err := of.watch.add(fresh, now)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k, err)
	}
	n := newNumbers(append(ids, watched...))
	if len(n.fields) == 0 {
		return nil, of.failed
	}
	out := make([]gpu.PartSnapshot, 0, len(of.list))
	errs := []error{of.failed}
	for i := range of.list {
		p := &of.list[i]
		ps := gpu.PartSnapshot{Part: p.Part}
		_, err := of.watch.read(p.entity, n, &p.clock, &ps.Values, now)
		if err == nil {
			err = s.readLabels(&p.labels, p.entity, texts, &ps.Values)
		}
		if err != nil {
			if errors.Is(err, gpu.ErrNoDriver) {
				return nil, err
			}
			errs = append(errs, fmt.Errorf("%s %d: %w", k, p.ID, err))
			continue
		}
		out = append(out, ps)
	}
	return out, errors.Join(errs...)
}
