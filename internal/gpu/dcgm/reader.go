// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package dcgm

import (
	"cmp"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// Reader is the gpu.Reader over DCGM.
type Reader struct {
	*vendorlib.Reader[*session, *device]
	asks gpu.FieldSet
	pass *atomic.Pointer[[]gpu.FieldID]
}

var (
	_ gpu.Reader       = (*Reader)(nil)
	_ gpu.PartReader   = (*Reader)(nil)
	_ gpu.Passer       = (*Reader)(nil)
	_ gpu.Explainer    = (*Reader)(nil)
	_ gpu.HealthReader = (*Reader)(nil)
	_ gpu.LinkReader   = (*Reader)(nil)
)

// New returns a reader. It does not load the library: Devices does.
func New(cfg Config) *Reader {
	cfg.Library = cmp.Or(cfg.Library, "libdcgm.so.4")
	cfg.Interval = cmp.Or(cfg.Interval, time.Second)
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	pass := &atomic.Pointer[[]gpu.FieldID]{}
	return &Reader{asks: gpu.AllFields(), pass: pass, Reader: vendorlib.NewReader(vendorlib.Config[*session, *device]{
		Name:      "DCGM",
		HungAfter: hungAfter,
		Open:      func(xids *gpu.XIDLog) (*session, error) { return open(cfg, xids, pass, log) },
		Enumerate: (*session).enumerate,
	})}
}

// Backend returns the name of this backend.
func (r *Reader) Backend() string { return "dcgm" }

// XIDs returns the XID errors of the device seen so far. See gpu.Reader.
func (r *Reader) XIDs(uuid string) []gpu.XIDCount {
	if d, ok := r.Known()[uuid]; ok {
		d.card.pollIfUnread(time.Now())
	}
	return r.Reader.XIDs(uuid)
}

// NoProfiling returns why the device gives no profiling fields. See gpu.Profiler.
func (r *Reader) NoProfiling(uuid string) string {
	if d, ok := r.Known()[uuid]; ok {
		if reason := d.card.reason.Load(); reason != nil {
			return *reason
		}
	}
	return ""
}

// Reasons returns why the device lacks fields. See gpu.Explainer.
func (r *Reader) Reasons(string) gpu.Reasons {
	return gpu.Reasons{Asked: r.asks, Refused: "DCGM does not give it for this device"}
}

// Links returns how a whole GPU reaches the others over NVLink. DCGM gives the
// errors of links as fields or not at all. See gpu.LinkReader.
func (r *Reader) Links(uuid string) (gpu.Links, error) {
	d, ses, err := r.Enter(uuid)
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
