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

// State is what a state file says: one entry per GPU, in order of index.
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
// A GPU that the list does not reach is there and idle.
type State struct {
	GPUs []GPUState `json:"gpus"`
}

// GPUState drives one simulated GPU.
type GPUState struct {
	// Utilization is the share of time in which a kernel runs, 0 to 100.
	// Absent: the GPU gives none of its utilisation fields, as a real one whose
	// driver answers "not supported", and otherwise behaves as an idle one.
	Utilization *float64 `json:"utilization,omitempty"`
	// MemoryUsedMiB is the framebuffer memory that processes hold; what exceeds
	// the card is cut. Absent: the GPU gives none of the memory fields.
	MemoryUsedMiB *float64 `json:"memoryUsedMiB,omitempty"`
	// Lost: the GPU fell off the bus; every read fails with gpu.ErrLost.
	Lost bool `json:"lost,omitempty"`
	// Hang: reads of the GPU block while this holds.
	Hang bool `json:"hang,omitempty"`
	// XIDs are the XID errors since the driver was loaded, the last one last.
	XIDs []XID `json:"xids,omitempty"`
	// Processes are those that use the GPU. Absent, it does not tell them;
	// empty, there are none.
	Processes []Process `json:"processes,omitzero"`
	// Fields overrides single fields, by name of the field table and in the
	// field's unit; null takes the field away.
	Fields map[string]*float64 `json:"fields,omitempty"`
}

// XID is one XID error code and how often it came.
type XID struct {
	Code  uint64 `json:"code"`
	Count uint64 `json:"count"`
}

// Process is a process that uses the GPU.
type Process struct {
	PID         int      `json:"pid"`
	Type        string   `json:"type,omitempty"`        // compute (if empty), graphics, mps, or several with a +
	MemoryMiB   *float64 `json:"memoryMiB,omitempty"`   // absent: not told
	Utilization *float64 `json:"utilization,omitempty"` // 0 to 100; absent: 0
}

// Busy is the state of a GPU at this utilisation (percent) with this much
// memory (MiB) in use.
func Busy(utilization, memoryUsedMiB float64) GPUState {
	return GPUState{Utilization: &utilization, MemoryUsedMiB: &memoryUsedMiB}
}

// ParseState reads a state file's content. Unknown keys are errors, so that a
// misspelt one does not pass for an idle GPU.
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

// WriteState replaces the file at path by one that holds s, atomically: a
// reader finds the old state or the new one, never half of one.
func WriteState(path string, s State) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
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
		_ = os.Remove(f.Name()) // the write's error is the one to tell
		return fmt.Errorf("write state: %w", err)
	}
	return nil
}

// stateFile reads a state file again whenever it changed.
type stateFile struct {
	path string

	mu   sync.Mutex
	info fs.FileInfo // of the content that state came from; nil: never read
	good bool        // state was read whole at least once
	last State
	err  error // why the newest content is not last; nil if it is
}

// load returns the newest state that could be read, whether there ever was
// one, and why the file as it is now cannot be read.
func (f *stateFile) load() (State, bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		// No file is no driver; only a broken file leaves the last state standing.
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
