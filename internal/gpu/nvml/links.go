// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"cmp"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/vendorlib"
)

// linkCounters are the error counters of links before NVLink 5.
var linkCounters = [...]struct {
	counter nvml.NvLinkErrorCounter
	name    string
}{
	{nvml.NVLINK_ERROR_DL_CRC_FLIT, "crc_flit"},
	{nvml.NVLINK_ERROR_DL_CRC_DATA, "crc_data"},
	{nvml.NVLINK_ERROR_DL_REPLAY, "replay"},
	{nvml.NVLINK_ERROR_DL_RECOVERY, "recovery"},
	{nvml.NVLINK_ERROR_DL_ECC_DATA, "ecc_data"},
}

// linkFields are the error counters from NVLink 5 on: field values whose scope
// is the link.
var linkFields = [...]struct {
	id   uint32
	name string
}{
	{nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, "malformed_packet"},
	{nvml.FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, "buffer_overrun"},
	{nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS, "receive"},
	{nvml.FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, "receive_remote"},
	{nvml.FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, "receive_general"},
	{nvml.FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, "link_integrity"},
	{nvml.FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, "transmit_discard"},
	{nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, "recovery"},
	{nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, "recovery_failed"},
	{nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, "effective"},
	{nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, "symbol"},
}

// linkState is the state of a device's links. Only Links uses it.
type linkState struct {
	up              [nvml.NVLINK_MAX_LINKS]bool // at any time of the session
	countersRefused vendorlib.Refusal
	fieldsRefused   vendorlib.Refusal
	values          [len(linkFields)]nvml.FieldValue
}

// Links reads a GPU's NVLinks. See gpu.LinkReader.
func (r *Reader) Links(uuid string) (gpu.Links, error) {
	d, ses, err := r.Enter(uuid)
	if err != nil {
		return gpu.Links{}, err
	}
	defer ses.Leave()
	if d.MIG != nil {
		return gpu.Links{}, nil
	}
	l := gpu.Links{Peers: d.peers(r.Known())}
	if d.ses.has("nvmlDeviceGetNvLinkState") {
		d.readLinks(&l, time.Now())
	}
	return l, nil
}

// readLinks reads the active links, and lists those that are no longer active.
func (d *device) readLinks(l *gpu.Links, now time.Time) {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.root.GetNvLinkState(link)
		switch {
		case classify(ret) == invalid:
			return // the GPU has no more links
		case ret != nvml.SUCCESS:
			continue
		case state != nvml.FEATURE_ENABLED:
			if d.links.up[link] {
				l.Down = append(l.Down, link)
			}
			continue
		}
		d.links.up[link] = true
		l.Active++
		l.Errors = append(l.Errors, d.linkErrors(link, now)...)
	}
}

func (d *device) linkErrors(link int, now time.Time) []gpu.LinkError {
	var out []gpu.LinkError
	if d.ses.has("nvmlDeviceGetNvLinkErrorCounter") && !d.links.countersRefused.Holds(now) {
		for _, c := range linkCounters {
			if n, ret := d.root.GetNvLinkErrorCounter(link, c.counter); ret == nvml.SUCCESS {
				out = append(out, gpu.LinkError{Link: link, Type: c.name, Count: n})
			}
		}
		if len(out) > 0 {
			return out
		}
		d.links.countersRefused.Record(now)
	}
	if !d.ses.has("nvmlDeviceGetFieldValues") || d.links.fieldsRefused.Holds(now) {
		return nil
	}
	values := &d.links.values
	for i, f := range linkFields {
		values[i] = question(f.id, uint32(link))
	}
	if d.root.GetFieldValues(values[:]) == nvml.SUCCESS {
		for i := range values {
			if x, ok := number(&values[i]); ok && verdict(&values[i]) == good && x.Whole && x.Int >= 0 {
				out = append(out, gpu.LinkError{Link: link, Type: linkFields[i].name, Count: uint64(x.Int)})
			}
		}
	}
	if len(out) == 0 {
		d.links.fieldsRefused.Record(now)
	}
	return out
}

// peers returns how the GPU reaches the others over NVLink.
func (d *device) peers(devices map[string]*device) []gpu.Peer {
	if !d.ses.has("nvmlDeviceGetP2PStatus") {
		return nil
	}
	var out []gpu.Peer
	for _, o := range devices {
		if o.MIG != nil || o == d || o.ses != d.ses {
			continue
		}
		if status, ret := d.root.GetP2PStatus(o.root, nvml.P2P_CAPS_INDEX_NVLINK); ret == nvml.SUCCESS {
			out = append(out, gpu.Peer{Index: o.Index, Status: gpu.P2PStatus(status)})
		}
	}
	slices.SortFunc(out, func(a, b gpu.Peer) int { return cmp.Compare(a.Index, b.Index) })
	return out
}
