// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// Reader is the gpu.Reader over DCGM.
type Reader struct {
	library *gpu.Library[*session, *device]
	asks    gpu.FieldSet
}

var (
	_ gpu.Reader       = (*Reader)(nil)
	_ gpu.PartReader   = (*Reader)(nil)
	_ gpu.Explainer    = (*Reader)(nil)
	_ gpu.HealthReader = (*Reader)(nil)
	_ gpu.LinkReader   = (*Reader)(nil)
)

// New makes a reader. It never fails and touches nothing: the library is
// loaded by Devices.
func New(cfg Config) *Reader {
	cfg.Library = cmp.Or(cfg.Library, "libdcgm.so.4")
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	r := &Reader{asks: gpu.AllFields()}
	r.library = gpu.NewLibrary(gpu.LibraryConfig[*session, *device]{
		Name:      "DCGM",
		Open:      func() (*session, error) { return open(cfg, r.library.Log(), log) },
		Enumerate: r.enumerate,
		SessionOf: func(d *device) *session { return d.ses },
		Read:      (*device).read,
	})
	return r
}

// Backend is the name of this backend.
func (r *Reader) Backend() string { return "dcgm" }

// Devices connects to the host engine if need be and enumerates the GPUs, each
// followed by its MIG instances. A GPU that was known and is lost stays in the
// list. A lost host engine is gpu.ErrNoDriver; each call tries to reach it
// once more, so that the caller sets the pace.
func (r *Reader) Devices() ([]gpu.Device, error) { return r.library.Devices() }

// Read fills v with the wanted fields of a device. See gpu.Reader.
func (r *Reader) Read(uuid string, want gpu.FieldSet, v *gpu.Values) error {
	return r.library.ReadDevice(uuid, want, v)
}

// XIDs are the XID errors of the device seen so far, sorted by code.
func (r *Reader) XIDs(uuid string) []gpu.XIDCount { return r.library.Log().Counts(uuid) }

// NoProfiling is why the device gives no profiling fields. See gpu.Profiler.
func (r *Reader) NoProfiling(uuid string) string {
	if d, ok := r.library.Known()[uuid]; ok {
		if reason := d.card.reason.Load(); reason != nil {
			return *reason
		}
	}
	return ""
}

// Reasons are why the device lacks fields. See gpu.Explainer.
func (r *Reader) Reasons(string) gpu.Reasons {
	return gpu.Reasons{Asked: r.asks, Refused: "DCGM does not give it for this device"}
}

// Links are how a whole GPU reaches the others: DCGM gives the errors of links
// as fields, or not at all. See gpu.LinkReader.
func (r *Reader) Links(uuid string) (gpu.Links, error) {
	d, ses, err := r.library.Enter(uuid)
	if err != nil {
		return gpu.Links{}, err
	}
	defer ses.Leave()
	peers, err := d.ses.peers()
	if err != nil {
		return gpu.Links{}, d.ses.absent(err)
	}
	var l gpu.Links
	for _, p := range peers {
		if d.MIG == nil && uint(p.gpu) == d.card.id {
			l.Peers = append(l.Peers, gpu.Peer{Index: int(p.peer), Status: gpu.P2PStatus(p.status)})
		}
	}
	return l, nil
}

// Close lets DCGM go. Reads that hang in the library are not waited for: the
// last one to return lets it go.
func (r *Reader) Close() error { return r.library.Close() }
