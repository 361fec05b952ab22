// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// MaxGPUs limits the GPUs of one simulated node.
const MaxGPUs = 64

// Config is the configuration of a Reader.
type Config struct {
	GPUs  int    // number of GPUs, 1 to MaxGPUs; 0: 8
	Model string // marketing name; empty: NVIDIA H200
	Node  string // seeds the UUIDs, so that two nodes' GPUs differ
	// StateFile is the path of a file in the format of State, which may change
	// at any time. While the file does not exist, the reader returns
	// gpu.ErrNoDriver. Empty: a built-in load.
	StateFile string
	// Push lets clients set the state over HTTP, instead of StateFile; see Reader.Push.
	Push bool
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Reader is a gpu.Reader of simulated GPUs.
type Reader struct {
	card    card
	now     func() time.Time
	source  source // nil: built-in load
	devices []*device

	close  sync.Once
	closed chan struct{} // ends hanging reads
}

// source has the GPUs' state. load returns the last valid state, whether there ever was one, and why what is there now is
// invalid.
type source interface {
	load() (State, bool, error)
}

var _ gpu.Reader = (*Reader)(nil)

type device struct {
	gpu.Device

	mu      sync.Mutex
	physics physics
	xids    []gpu.XIDCount // replaced, never changed
}

// New returns a reader. It does not read the state file.
func New(cfg Config) (*Reader, error) {
	if cfg.GPUs == 0 {
		cfg.GPUs = 8
	}
	if cfg.GPUs < 0 || cfg.GPUs > MaxGPUs {
		return nil, fmt.Errorf("simulate %d GPUs: want 1 to %d", cfg.GPUs, MaxGPUs)
	}
	r := &Reader{card: cardOf(cmp.Or(cfg.Model, defaultModel)), now: cfg.Now, closed: make(chan struct{})}
	if r.now == nil {
		r.now = time.Now
	}
	switch {
	case cfg.Push && cfg.StateFile != "":
		return nil, errors.New("a state is pushed, or read from a file")
	case cfg.Push:
		r.source = &pushed{now: r.now}
	case cfg.StateFile != "":
		r.source = &stateFile{path: cfg.StateFile}
	}
	for i := range cfg.GPUs {
		r.devices = append(r.devices, &device{Device: gpu.Device{
			Index: i, Minor: i, UUID: UUID(cfg.Node, i), Model: r.card.model,
			PCIBusID: fmt.Sprintf("%08X:%02X:00.0", i/8, 0x1b+0x10*(i%8)),
		}})
	}
	return r, nil
}

// UUID returns the UUID of GPU i of the node. It is the same in every process,
// so that a simulated device plugin or kubelet needs no reader.
func UUID(node string, i int) string {
	h := sha256.Sum256(fmt.Appendf(nil, "gpupilot sim/%s/%d", node, i))
	h[6] = h[6]&0x0f | 0x80 // version 8: a custom format (RFC 9562)
	h[8] = h[8]&0x3f | 0x80
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// Backend returns sim.
func (r *Reader) Backend() string { return "sim" }

// Devices enumerates the simulated GPUs without the lost ones.
func (r *Reader) Devices() ([]gpu.Device, error) {
	state, err := r.state()
	if errors.Is(err, gpu.ErrNoDriver) {
		return nil, err
	}
	var out []gpu.Device
	errs := []error{err}
	for i, d := range r.devices {
		if i < len(state.GPUs) && state.GPUs[i].Lost {
			errs = append(errs, fmt.Errorf("GPU %d: %w", i, gpu.ErrLost))
			continue
		}
		out = append(out, d.Device)
	}
	return out, errors.Join(errs...)
}

// Read reads the wanted fields of one GPU.
func (r *Reader) Read(uuid string, want gpu.FieldSet, v *gpu.Values) error {
	v.Reset()
	i := r.find(uuid)
	if i < 0 {
		return fmt.Errorf("read %s: %w", uuid, gpu.ErrUnknownDevice)
	}
	s, err := r.await(i)
	if err != nil {
		return fmt.Errorf("read %s: %w", uuid, err)
	}
	now, d := r.now(), r.devices[i]
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count(s.XIDs, now)
	if s.Lost {
		return fmt.Errorf("read %s: %w", uuid, gpu.ErrLost)
	}
	var all gpu.Values
	r.card.fill(&all, s, &d.physics, now)
	selectFields(v, &all, want, s.Fields)
	return nil
}

// Topology returns two sockets with 56 cores each and half of the GPUs each,
// all linked through switches.
func (r *Reader) Topology() (gpu.Topology, error) {
	const cores, links = 56, 18
	var t gpu.Topology
	half := (len(r.devices) + 1) / 2
	for i, d := range r.devices {
		socket := i / half
		t.GPUs = append(t.GPUs, gpu.GPUPlace{
			UUID: d.UUID, CPUs: fmt.Sprintf("%d-%d", socket*cores, (socket+1)*cores-1), NUMANodes: strconv.Itoa(socket), NVLinks: links,
		})
		for j := i + 1; j < len(r.devices); j++ {
			path := gpu.SameNUMANode
			if j/half != socket {
				path = gpu.AcrossNUMA
			}
			t.Pairs = append(t.Pairs, gpu.GPUPair{A: d.UUID, B: r.devices[j].UUID, Path: path, NVLinks: links})
		}
	}
	return t, nil
}

// XIDs returns the XID errors from the state file, also of a GPU that hangs.
func (r *Reader) XIDs(uuid string) []gpu.XIDCount {
	i := r.find(uuid)
	if i < 0 {
		return nil
	}
	state, err := r.state()
	now, d := r.now(), r.devices[i]
	d.mu.Lock()
	defer d.mu.Unlock()
	if !errors.Is(err, gpu.ErrNoDriver) {
		d.count(r.stateOf(state, i, now).XIDs, now)
	}
	return slices.Clone(d.xids)
}

// errClosed is the error after Close.
var errClosed = errors.New("the reader was closed")

// Close ends hanging reads, and all reading.
func (r *Reader) Close() error {
	r.close.Do(func() { close(r.closed) })
	return nil
}

// hangPoll is how often a hanging read checks the state.
const hangPoll = 20 * time.Millisecond

// await returns the state of GPU i as soon as it does not hang. After an
// invalid state file the last valid state is used; Devices returns the error.
func (r *Reader) await(i int) (GPUState, error) {
	for {
		select {
		case <-r.closed:
			return GPUState{}, errClosed
		default:
		}
		state, err := r.state()
		if errors.Is(err, gpu.ErrNoDriver) {
			return GPUState{}, err
		}
		s := r.stateOf(state, i, r.now())
		if !s.Hang {
			return s, nil
		}
		select {
		case <-r.closed:
		case <-time.After(hangPoll):
		}
	}
}

func (r *Reader) find(uuid string) int {
	return slices.IndexFunc(r.devices, func(d *device) bool { return d.UUID == uuid })
}

// state returns the source's state; empty without a source. The error wraps
// gpu.ErrNoDriver if no state was ever read.
func (r *Reader) state() (State, error) {
	if r.source == nil {
		return State{}, nil
	}
	s, good, err := r.source.load()
	if !good {
		return State{}, fmt.Errorf("%w: %w", gpu.ErrNoDriver, err)
	}
	return s, err
}

func (r *Reader) stateOf(s State, i int, now time.Time) GPUState {
	switch {
	case r.source == nil:
		return r.wave(i, now)
	case i < len(s.GPUs):
		return s.GPUs[i]
	default:
		return Busy(0, 0)
	}
}

// wave is the built-in load: a slow wave with another phase on each GPU.
func (r *Reader) wave(i int, now time.Time) GPUState {
	t := float64(now.UnixMilli()) / 1000
	period := 60 + 17*float64(i%8)
	phase := float64(i) * 2.399963 // the golden angle spreads the phases
	u := 55 + 35*math.Sin(2*math.Pi*t/period+phase) + 6*math.Sin(2*math.Pi*t/7+3*phase)
	m := 0.55 + 0.25*math.Sin(2*math.Pi*t/(5*period)+phase)
	return Busy(u, m*(r.card.totalMiB-r.card.resMiB))
}

// count stores the state's XIDs and the time of each increase.
func (d *device) count(xids []XID, now time.Time) {
	var out []gpu.XIDCount
	for i, x := range xids {
		c := gpu.XIDCount{Code: x.Code, Count: max(1, x.Count), Last: now.Add(time.Duration(i))} // in their order
		for _, old := range d.xids {
			if old.Code == c.Code && old.Count == c.Count {
				c.Last = old.Last
			}
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b gpu.XIDCount) int { return cmp.Compare(a.Code, b.Code) })
	d.xids = out
}

// selectFields copies the wanted fields of all, with overrides on top, into v.
func selectFields(v, all *gpu.Values, want gpu.FieldSet, overrides map[string]*float64) {
	for i, f := range gpu.Fields() {
		if !want.Has(gpu.Index(i)) {
			continue
		}
		if f.Kind == gpu.Label {
			s, _ := all.GetLabel(f.ID)
			v.SetLabel(f.ID, s)
			continue
		}
		x, ok := all.GetAt(gpu.Index(i))
		if o, has := overrides[f.Name]; has {
			if ok = o != nil; ok {
				x = *o
			}
		}
		if ok {
			v.Set(f.ID, x)
		}
	}
}

func fieldByName(name string) (gpu.Field, bool) {
	for _, f := range gpu.Fields() {
		if f.Name == name {
			return f, true
		}
	}
	return gpu.Field{}, false
}
