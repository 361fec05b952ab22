// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// lackingAfter is how long devices must have been read before fields count as lacking:
// rates need two reads, and DCGM some seconds to start and to fill its profiling fields.
const lackingAfter = 15 * time.Second

// lacking logs once, for each configuration, which lines of the collectors file have no
// value on this node.
type lacking struct {
	since  time.Time // of the first fresh device; zero: none yet
	logged bool
}

// look logs the list if it is time. It costs nothing after that.
func (l *lacking) look(c *Collectors, s *gpu.Snapshot, now time.Time, log *slog.Logger) {
	if l.logged || log == nil {
		return
	}
	maxAge := gpu.MaxAge(s.Interval)
	if !slices.ContainsFunc(s.Devices, func(d gpu.DeviceSnapshot) bool { return d.Fresh(now, maxAge) }) {
		l.since = time.Time{}
		return
	}
	if l.since.IsZero() {
		l.since = now
	}
	if now.Sub(l.since) < lackingAfter {
		return
	}
	l.logged = true
	for _, group := range lacks(c, s, now) {
		log.Warn("fields of the collectors have no value on this node", "fields", strings.Join(group.Fields, ","), "reason", group.Reason)
	}
}

// Lacking returns which lines of the collectors file have no value in s; none before that is
// known.
func (e *Exporter) Lacking(s *gpu.Snapshot, now time.Time) []gpu.Lack {
	e.mu.Lock()
	known, c := e.lacking.logged, e.r.cfg.Collectors
	e.mu.Unlock()
	if !known {
		return nil
	}
	return lacks(&c, s, now)
}

// lacks returns the fields that no fresh device and no part gives.
func lacks(c *Collectors, s *gpu.Snapshot, now time.Time) (groups []gpu.Lack) {
	add := func(name string, id gpu.FieldID) {
		reason := lackOf(id, s, now)
		if reason == "" {
			return
		}
		at := slices.IndexFunc(groups, func(g gpu.Lack) bool { return g.Reason == reason })
		if at < 0 {
			at = len(groups)
			groups = append(groups, gpu.Lack{Reason: reason})
		}
		groups[at].Fields = append(groups[at].Fields, name)
	}
	for _, m := range c.Metrics {
		if m.Exp == NotDerived {
			add(m.Name, m.Ref.Field)
		}
	}
	for _, l := range c.Labels {
		add(l.Name, l.Ref.Field)
	}
	return groups
}

// lackOf returns why no fresh device and no part gives the field; empty if one does.
func lackOf(id gpu.FieldID, s *gpu.Snapshot, now time.Time) string {
	for i := range s.Parts {
		if gives(&s.Parts[i].Values, id) {
			return ""
		}
	}
	maxAge := gpu.MaxAge(s.Interval)
	reason := ""
	for i := range s.Devices {
		d := &s.Devices[i]
		if !d.Fresh(now, maxAge) {
			continue
		}
		if gives(&d.Values, id) {
			return ""
		}
		reason = cmp.Or(reason, lackOn(id, d, s))
	}
	if replaced := replacedBy(id); replaced != "" {
		reason += "; " + replaced + " replaces it"
	}
	return reason
}

// gives reports whether the values have the field, as a number or as a text.
func gives(v *gpu.Values, id gpu.FieldID) bool {
	_, passed := v.Passed(id)
	_, text := v.GetLabel(id)
	return passed || text || v.Has(id)
}

// lackOn returns why a device lacks the field.
func lackOn(id gpu.FieldID, d *gpu.DeviceSnapshot, s *gpu.Snapshot) string {
	i, known := gpu.IndexOf(id)
	switch {
	case !known:
		return cmp.Or(d.Reasons.Unasked, "the backend "+s.Backend+" does not read it")
	case isPart(id) && s.PartsErr != nil:
		return s.PartsErr.Error()
	case isPart(id):
		return "no NvSwitch, NVLink or CPU gives it"
	case id >= gpu.FBTotal && id <= gpu.FBUsedPercent && !d.Values.Has(gpu.FBTotal) && d.Values.Has(gpu.GPUTemp):
		return "the GPU has no memory of its own, or does not give it: " + lack(i, d)
	}
	return lack(i, d)
}

// isPart reports whether the field is one of parts.
func isPart(id gpu.FieldID) bool {
	f, _ := gpu.Lookup(id)
	for k := range gpu.PartKind(gpu.PartKinds) {
		if f.On(k) {
			return true
		}
	}
	return false
}

// replacedBy returns the field that replaces one which DCGM gives no longer.
func replacedBy(id gpu.FieldID) string {
	switch id {
	case 200: // DCGM_FI_DEV_PCIE_TX_THROUGHPUT
		return "DCGM_FI_PROF_PCIE_TX_BYTES"
	case 201: // DCGM_FI_DEV_PCIE_RX_THROUGHPUT
		return "DCGM_FI_PROF_PCIE_RX_BYTES"
	}
	return ""
}
