// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"cmp"
	"slices"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// passed are the fields outside of the gpu package's table that one session reads, by
// the entities that DCGM asks for them: the levels are those of dcgm-exporter.
type passed struct {
	from    *[]gpu.FieldID // of which Reader.Pass
	devices ofLevel
	parts   [gpu.PartKinds]ofLevel
}

// ofLevel are the fields of one kind of entity.
type ofLevel struct{ numbers, texts []gpu.FieldID }

func (l *ofLevel) add(id gpu.FieldID, fieldType byte) {
	if fieldType == typeString {
		l.texts = append(l.texts, id)
	} else {
		l.numbers = append(l.numbers, id)
	}
}

// Pass sets the fields outside of the table that Read and ReadParts also read. See
// gpu.Passer. Which of them DCGM does not have is not known yet: the log says it.
func (r *Reader) Pass(ids []gpu.FieldID) []gpu.FieldID {
	r.pass.Store(&ids)
	return nil
}

// passing returns the fields to pass. It asks DCGM about each once.
func (s *session) passing() *passed {
	from := s.pass.Load()
	s.passMu.Lock()
	defer s.passMu.Unlock()
	if s.passed != nil && s.passed.from == from {
		return s.passed
	}
	s.passed = &passed{from: from}
	if from == nil {
		return s.passed
	}
	for _, id := range *from {
		fieldType, level, ok := s.engine.meta(id)
		reason := "this DCGM does not know it"
		if ok {
			reason = s.passed.add(id, fieldType, level)
		}
		if reason != "" {
			cmp.Or(s.cfg.PassedLog, s.log).Warn("a field of the collectors file is not collected", "field", names.NameOf(id), "id", int(id), "reason", reason)
		}
	}
	return s.passed
}

// add adds a field to its entities, or returns why it cannot be read.
func (p *passed) add(id gpu.FieldID, fieldType byte, level int) (reason string) {
	if !slices.Contains([]byte{typeInt64, typeDouble, typeString, typeTime}, fieldType) {
		return "its values are neither numbers nor text"
	}
	part := func(kinds ...gpu.PartKind) {
		for _, k := range kinds {
			p.parts[k].add(id, fieldType)
		}
	}
	switch level {
	case kindNone, kindGPU, kindVGPU, kindInstance, kindCompute:
		p.devices.add(id, fieldType)
	case kindSwitch:
		part(gpu.NVSwitch)
	case kindLink:
		part(gpu.NVSwitch, gpu.NVLink)
	case kindCPU:
		part(gpu.CPU)
	case kindCore:
		part(gpu.CPU, gpu.CPUCore)
	default:
		return "it belongs to neither a GPU, an NVLink, an NvSwitch nor a CPU"
	}
	return ""
}
