// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// State is the content of a state file: one entry per GPU, in order of index.
//
//	{"gpus": [
//	  {"utilization": 57.2, "memoryUsedMiB": 81920},
//	  {"lost": true},
//	  {"utilization": 12, "memoryUsedMiB": 500,
//	   "xids": [{"code": 79, "count": 1}],
//	   "processes": [{"pid": 4711, "memoryMiB": 400, "utilization": 12}],
//	   "fields": {"DCGM_FI_DEV_GPU_TEMP": 91, "DCGM_FI_DEV_POWER_USAGE": null}}
//	]}
//
// GPUs beyond the list exist and are idle.
type State struct {
	GPUs []GPUState `json:"gpus"`
}

// GPUState is the state of one simulated GPU.
type GPUState struct {
	// Utilization is the share of time in which a kernel runs, 0 to 100.
	// Absent: the GPU is idle and gives no utilisation fields, as a real one
	// whose driver returns "not supported".
	Utilization *float64 `json:"utilization,omitempty"`
	// MemoryUsedMiB is the framebuffer memory that processes hold, limited to
	// the card's. Absent: the GPU gives none of the memory fields.
	MemoryUsedMiB *float64 `json:"memoryUsedMiB,omitempty"`
	// Lost: the GPU fell off the bus; every read fails with gpu.ErrLost.
	Lost bool `json:"lost,omitempty"`
	// Hang: reads of the GPU block while this is true.
	Hang bool `json:"hang,omitempty"`
	// XIDs are the XID errors since the driver was loaded, the last one last.
	XIDs []XID `json:"xids,omitempty"`
	// Processes are the processes that use the GPU. Absent: they cannot be
	// read. Empty: there are none.
	Processes []Process `json:"processes,omitzero"`
	// Fields overrides single fields, by name of the field table and in the
	// field's unit; null makes the field absent.
	Fields map[string]*float64 `json:"fields,omitempty"`
}

// XID is an XID error code and the number of its errors.
type XID struct {
	Code  uint64 `json:"code"`
	Count uint64 `json:"count"`
}

// Process is a process that uses the GPU.
type Process struct {
	PID         int      `json:"pid"`
	Type        string   `json:"type,omitempty"`        // compute (if empty), graphics, mps, or several with a +
	MemoryMiB   *float64 `json:"memoryMiB,omitempty"`   // absent: unknown
	Utilization *float64 `json:"utilization,omitempty"` // 0 to 100; absent: 0
}

// Busy returns the state of a GPU with this utilisation (percent) and used
// memory (MiB).
func Busy(utilization, memoryUsedMiB float64) GPUState {
	return GPUState{Utilization: &utilization, MemoryUsedMiB: &memoryUsedMiB}
}

// ParseState parses a state file's content. Unknown keys are errors, so that a
// misspelt key does not look like an idle GPU.
func ParseState(b []byte) (State, error) {
	var s State
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return State{}, err
	}
	for i, g := range s.GPUs {
		if u := g.Utilization; u != nil && (*u < 0 || *u > 100) {
			return State{}, fmt.Errorf("gpus[%d].utilization: %v is not within 0 to 100", i, *u)
		}
		if m := g.MemoryUsedMiB; m != nil && *m < 0 {
			return State{}, fmt.Errorf("gpus[%d].memoryUsedMiB: %v is negative", i, *m)
		}
		for j, p := range g.Processes {
			if _, err := p.read(); err != nil {
				return State{}, fmt.Errorf("gpus[%d].processes[%d].%w", i, j, err)
			}
		}
		for name := range g.Fields {
			if _, ok := fieldByName(name); !ok {
				return State{}, fmt.Errorf("gpus[%d].fields: unknown field %q", i, name)
			}
		}
	}
	return s, nil
}

// WriteState atomically replaces the file at path by one with s.
func WriteState(path string, s State) error {
	b, err := s.Encode()
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write state: %w", err)
	}
	_, err = f.Write(b)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the write's error is returned
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// stateFile reads a state file again after each change.
type stateFile struct {
	path string

	mu   sync.Mutex
	info fs.FileInfo // of the file that state was read from; nil: never read
	good bool        // a state was read at least once
	last State
	err  error // why the newest content is not used; nil if it is
}

// load returns the last valid state, whether there ever was one, and why the
// current file is invalid.
func (f *stateFile) load() (State, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		// A missing file means no driver. After an invalid file the last state
		// is used.
		f.info, f.good, f.err = nil, false, fmt.Errorf("state file: %w", err)
		return State{}, false, f.err
	}
	if f.info != nil && os.SameFile(info, f.info) && info.Size() == f.info.Size() && info.ModTime().Equal(f.info.ModTime()) {
		return f.last, f.good, f.err
	}
	b, err := os.ReadFile(f.path)
	if err != nil {
		f.info, f.err = nil, fmt.Errorf("state file: %w", err)
		return f.last, f.good, f.err
	}
	f.info = info
	s, err := ParseState(b)
	if err != nil {
		f.err = fmt.Errorf("state file %s: %w", f.path, err)
		return f.last, f.good, f.err
	}
	f.last, f.good, f.err = s, true, nil
	return s, true, nil
}
