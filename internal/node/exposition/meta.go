// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"cmp"
	"runtime"
	"slices"
	"strconv"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// metaFamilies are our own metrics, in base units.
func metaFamilies(cfg *Config) []family {
	fs := []family{
		always("gpupilot_collection_timestamp_seconds", Gauge,
			"Start of the collection that this page shows, in seconds since 1970.",
			func(b []byte, in *renderInput) []byte {
				b = append(b, "gpupilot_collection_timestamp_seconds "...)
				return append(appendTime(b, in.snap.Time), '\n')
			}),
		always("gpupilot_collection_interval_seconds", Gauge, "Time between two collections.",
			func(b []byte, in *renderInput) []byte {
				b = append(b, "gpupilot_collection_interval_seconds "...)
				return append(appendSeconds(b, in.snap.Interval), '\n')
			}),
		always("gpupilot_device_last_success_timestamp_seconds", Gauge,
			"Start of the last successful read of the device, in seconds since 1970: the time of its samples.", lastSuccess),
		always("gpupilot_gpu_allocation_info", Gauge,
			"1 for each container that holds the device or, with a replica, a share of it.", allocations),
		always("gpupilot_mig_device_info", Gauge,
			"1 for each MIG device, with its GPU and instance.", migDevices),
		meta("gpupilot_collection_duration_seconds", Gauge,
			"Duration of the collection, without devices that do not answer in time.",
			func(b []byte, in *renderInput) []byte {
				b = append(b, "gpupilot_collection_duration_seconds "...)
				return append(appendSeconds(b, in.stats.Duration), '\n')
			}),
		further("gpupilot_collection_errors_total", Counter,
			"Failed reads and enumerations of devices.",
			func(b []byte, in *renderInput) []byte {
				b = append(b, "gpupilot_collection_errors_total "...)
				return append(strconv.AppendUint(b, in.stats.Errors, 10), '\n')
			}),
		meta("gpupilot_device_up", Gauge, "1 if the last read of the device succeeded and is not too old.", deviceUp),
		meta("gpupilot_part_last_success_timestamp_seconds", Gauge,
			"Start of the last successful read of an NvSwitch, NVLink, CPU or core that cannot be read now, in seconds since 1970.", partTimes),
		meta("gpupilot_backend_up", Gauge, "1 if the backend enumerates GPUs and at least one of them can be read.",
			func(b []byte, in *renderInput) []byte {
				if in.snap.Released() {
					return b
				}
				b = appendLabel(append(b, "gpupilot_backend_up{"...), "backend", in.snap.Backend)
				return append(appendBool(append(b, "} "...), in.snap.Up()), '\n')
			}),
		meta("gpupilot_gpus_released", Gauge,
			"1 while the GPUs are released on request: nobody reads them, and gpupilot_backend_up and gpupilot_device_up are absent.",
			func(b []byte, in *renderInput) []byte {
				return append(appendBool(append(b, "gpupilot_gpus_released "...), in.snap.Released()), '\n')
			}),
		meta("gpupilot_gpus_by_source", Gauge,
			"Whole GPUs of the node by source: what the GPU library lists, what the PCI bus has by the kernel's driver (bound), and what device plugins offer to pods. A source that does not say is absent.",
			gpusBySource),
		meta("gpupilot_xid_errors_total", Counter, "XID errors of the device since the agent started, by code; a code without errors is omitted.", xidCounts),
		meta("gpupilot_gpu_xid_errors_total", Counter,
			"XID errors of the GPU and its MIG instances since the agent started, of all codes: 0 before the first one.", xidTotals),
		meta("gpupilot_xid_last_seen_timestamp_seconds", Gauge,
			"Time of the device's last XID error with this code, in seconds since 1970.", xidTimes),
		meta("gpupilot_collectors_invalid_lines", Gauge,
			"Invalid lines of the collectors file, which are ignored.",
			func(b []byte, in *renderInput) []byte {
				b = append(b, "gpupilot_collectors_invalid_lines "...)
				return append(strconv.AppendInt(b, int64(in.cfg.InvalidLines), 10), '\n')
			}),
		meta("gpupilot_config_reloads_total", Counter,
			"Reloads of the collectors since the start, by result. After a failed reload the last collectors stay in force.",
			func(b []byte, in *renderInput) []byte {
				b = append(b, `gpupilot_config_reloads_total{result="success"} `...)
				b = append(appendUint(b, in.totals.reloads), '\n')
				b = append(b, `gpupilot_config_reloads_total{result="failure"} `...)
				return append(appendUint(b, in.totals.failedReloads), '\n')
			}),
		further("gpupilot_series_dropped_total", Counter,
			"Dropped values (out_of_range: outside the field's range; not_a_number: NaN or infinite), devices and parts (duplicate: same labels as another), and containers (claimant: beyond 256 of one device), by reason.",
			func(b []byte, in *renderInput) []byte {
				b = append(b, `gpupilot_series_dropped_total{reason="out_of_range"} `...)
				b = append(appendUint(b, in.totals.outOfRange), '\n')
				b = append(b, `gpupilot_series_dropped_total{reason="not_a_number"} `...)
				b = append(appendUint(b, in.totals.notNumbers), '\n')
				b = append(b, `gpupilot_series_dropped_total{reason="duplicate"} `...)
				b = append(appendUint(b, in.totals.duplicates), '\n')
				b = append(b, `gpupilot_series_dropped_total{reason="claimant"} `...)
				return append(appendUint(b, in.totals.claimants), '\n')
			}),
		meta("gpupilot_unmatched_job_files", Gauge,
			"Files of the job mapping whose name is that of no device collected here; the log names them.",
			func(b []byte, in *renderInput) []byte {
				if in.snap.UnmatchedJobFiles == nil {
					return b
				}
				b = append(b, "gpupilot_unmatched_job_files "...)
				return append(strconv.AppendInt(b, int64(*in.snap.UnmatchedJobFiles), 10), '\n')
			}),
		meta("gpupilot_gpu_info", Gauge, "1 for each device, with its identity and its node.", gpuInfo),
		meta("gpupilot_field_supported", Gauge,
			"0 for each collected field that a device does not give, with the reason.", unsupported),
		meta("gpupilot_build_info", Gauge, "1, with the agent's version.", buildInfo),
		further("gpupilot_collector_last_success_timestamp_seconds", Gauge,
			"Start of the collector's last successful run, in seconds since 1970.",
			func(b []byte, in *renderInput) []byte {
				return eachCollector(b, in, "gpupilot_collector_last_success_timestamp_seconds{", false, func(b []byte, c *gpu.CollectorState) []byte {
					return appendTime(b, c.Last)
				})
			}),
		further("gpupilot_collector_duration_seconds", Gauge, "Duration of the collector's last successful run.",
			func(b []byte, in *renderInput) []byte {
				return eachCollector(b, in, "gpupilot_collector_duration_seconds{", false, func(b []byte, c *gpu.CollectorState) []byte {
					return appendSeconds(b, c.Took)
				})
			}),
		further("gpupilot_collector_errors_total", Counter, "Failed runs of the collector since the agent started.",
			func(b []byte, in *renderInput) []byte {
				return eachCollector(b, in, "gpupilot_collector_errors_total{", true, func(b []byte, c *gpu.CollectorState) []byte {
					return appendUint(b, c.Errors)
				})
			}),
	}
	fs = append(fs, physicalFamilies(cfg)...)
	if cfg.Kubernetes {
		fs = append(fs, podResourcesFamilies()...)
	}
	if cfg.Pods {
		fs = append(fs, podWatchFamilies()...)
	}
	if cfg.Processes {
		fs = append(fs, processFamilies()...)
	}
	if cfg.Further {
		return append(fs, selfFamilies()...)
	}
	return slices.DeleteFunc(fs, func(f family) bool { return f.further })
}

// eachCollector writes a series for each collector, or only for each that has
// succeeded.
func eachCollector(b []byte, in *renderInput, head string, all bool, value func([]byte, *gpu.CollectorState) []byte) []byte {
	for i := range in.snap.Collectors {
		c := &in.snap.Collectors[i]
		if !all && c.Last.IsZero() {
			continue
		}
		b = appendLabel(append(b, head...), "collector", c.Name)
		b = append(value(append(b, "} "...), c), '\n')
	}
	return b
}

func podWatchFamilies() []family {
	return []family{
		meta("gpupilot_pod_watch_up", Gauge,
			"1 while the API server tells of this node's pods; otherwise what it told last is shown.",
			func(b []byte, in *renderInput) []byte {
				return append(appendBool(append(b, "gpupilot_pod_watch_up "...), in.snap.Pods != nil && in.snap.PodsErr == nil), '\n')
			}),
		further("gpupilot_pods_watched", Gauge, "Pods of this node that the API server told of and that have not ended.",
			func(b []byte, in *renderInput) []byte {
				b = append(b, "gpupilot_pods_watched "...)
				return append(strconv.AppendInt(b, int64(len(in.snap.Pods)), 10), '\n')
			}),
	}
}

func podResourcesFamilies() []family {
	return []family{
		meta("gpupilot_pod_resources_up", Gauge,
			"1 if the kubelet answered the last question who holds which device; otherwise its last answer is shown.",
			func(b []byte, in *renderInput) []byte {
				up := in.snap.OwnersErr == nil && !in.snap.OwnersTime.IsZero()
				return append(appendBool(append(b, "gpupilot_pod_resources_up "...), up), '\n')
			}),
		further("gpupilot_pod_resources_last_success_timestamp_seconds", Gauge,
			"When the kubelet last answered, in seconds since 1970.",
			func(b []byte, in *renderInput) []byte {
				if in.snap.OwnersTime.IsZero() {
					return b
				}
				b = append(b, "gpupilot_pod_resources_last_success_timestamp_seconds "...)
				return append(appendTime(b, in.snap.OwnersTime), '\n')
			}),
		meta("gpupilot_unmatched_devices", Gauge,
			"Devices that the kubelet gave to containers and that are none of those collected here, or GPUs under a resource that does not count as one; the log names the resource.",
			func(b []byte, in *renderInput) []byte {
				b = append(b, "gpupilot_unmatched_devices "...)
				return append(strconv.AppendInt(b, int64(len(in.snap.Unmatched)), 10), '\n')
			}),
		further("gpupilot_devices_without_pod", Gauge, "Devices that are collected here and that no container holds.",
			func(b []byte, in *renderInput) []byte {
				n := 0
				for i := range in.snap.Devices {
					if len(in.snap.Devices[i].Owners) == 0 {
						n++
					}
				}
				b = append(b, "gpupilot_devices_without_pod "...)
				return append(strconv.AppendInt(b, int64(n), 10), '\n')
			}),
	}
}

func meta(name string, typ Type, help string, f func([]byte, *renderInput) []byte) family {
	fam := newFamily(name, typ, help)
	fam.meta = f
	return fam
}

func always(name string, typ Type, help string, f func([]byte, *renderInput) []byte) family {
	fam := meta(name, typ, help, f)
	fam.always = true
	return fam
}

// further are those of --enable-exporter-metrics: nothing of ours reads them.
func further(name string, typ Type, help string, f func([]byte, *renderInput) []byte) family {
	fam := meta(name, typ, help, f)
	fam.further = true
	return fam
}

func lastSuccess(b []byte, in *renderInput) []byte {
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		if d.Collected.IsZero() {
			continue
		}
		b = appendLabel(append(b, "gpupilot_device_last_success_timestamp_seconds{"...), "uuid", d.UUID)
		b = append(appendTime(append(b, "} "...), d.Collected), '\n')
	}
	return b
}

func deviceUp(b []byte, in *renderInput) []byte {
	if in.snap.Released() {
		return b
	}
	maxAge := gpu.MaxAge(in.snap.Interval)
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		b = appendLabel(append(b, "gpupilot_device_up{"...), "uuid", d.UUID)
		b = append(appendBool(append(b, "} "...), d.Err == nil && d.Fresh(in.now, maxAge)), '\n')
	}
	return b
}

func allocations(b []byte, in *renderInput) []byte {
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		for j := range d.Owners {
			o := &d.Owners[j]
			b = appendLabel(append(b, "gpupilot_gpu_allocation_info{"...), "uuid", d.UUID)
			b = appendLabel(append(b, ','), "namespace", o.Namespace)
			b = appendLabel(append(b, ','), "pod", o.Pod)
			b = appendLabel(append(b, ','), "container", o.Container)
			b = appendLabel(append(b, ','), "replica", o.Replica)
			b = append(b, "} 1\n"...)
		}
	}
	return b
}

func migDevices(b []byte, in *renderInput) []byte {
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		if d.MIG == nil {
			continue
		}
		b = appendLabel(append(b, "gpupilot_mig_device_info{"...), "uuid", d.UUID)
		b = appendLabel(append(b, ','), "parent_uuid", d.MIG.ParentUUID)
		b = append(b, `,gpu_instance="`...)
		b = strconv.AppendInt(b, int64(d.MIG.GPUInstance), 10)
		b = append(b, `",compute_instance="`...)
		if d.MIG.ComputeInstance >= 0 {
			b = strconv.AppendInt(b, int64(d.MIG.ComputeInstance), 10)
		}
		b = appendLabel(append(b, `",`...), "profile", d.MIG.Profile)
		b = append(b, "} 1\n"...)
	}
	return b
}

func xidCounts(b []byte, in *renderInput) []byte {
	return eachXID(b, in, func(b []byte, uuid string, x *gpu.XIDCount) []byte {
		b = appendXID(append(b, "gpupilot_xid_errors_total{"...), uuid, x.Code)
		return append(strconv.AppendUint(b, x.Count, 10), '\n')
	})
}

func xidTimes(b []byte, in *renderInput) []byte {
	return eachXID(b, in, func(b []byte, uuid string, x *gpu.XIDCount) []byte {
		if x.Count == 0 {
			return b
		}
		b = appendXID(append(b, "gpupilot_xid_last_seen_timestamp_seconds{"...), uuid, x.Code)
		return append(appendTime(b, x.Last), '\n')
	})
}

// xidTotals sums up the errors of each GPU and its instances, which are together.
func xidTotals(b []byte, in *renderInput) []byte {
	all := in.snap.Devices
	for i := 0; i < len(all); {
		uuid, known := wholeUUID(&all[i]), false
		var own, instances uint64
		for ; i < len(all) && wholeUUID(&all[i]) == uuid; i++ {
			d := &all[i]
			known = known || d.Values.Has(gpu.XIDErrors)
			if d.MIG == nil {
				own = total(d.XIDs)
			} else {
				own, instances = total(d.GPUXIDs), instances+total(d.XIDs)
			}
		}
		if n := own + instances; n > 0 || known {
			b = appendLabel(append(b, "gpupilot_gpu_xid_errors_total{"...), "uuid", uuid)
			b = append(appendUint(append(b, "} "...), n), '\n')
		}
	}
	return b
}

// wholeUUID is the UUID of the GPU that a device is, or is an instance of.
func wholeUUID(d *gpu.DeviceSnapshot) string {
	if d.MIG != nil {
		return d.MIG.ParentUUID
	}
	return d.UUID
}

func total(xids []gpu.XIDCount) (n uint64) {
	for _, x := range xids {
		n += x.Count
	}
	return n
}

// eachXID calls f for the XID errors of each device, and for those of a GPU of which
// only the instances are listed.
func eachXID(b []byte, in *renderInput, f func(b []byte, uuid string, x *gpu.XIDCount) []byte) []byte {
	last := "" // the last GPU whose errors were written
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		for j := range d.XIDs {
			b = f(b, d.UUID, &d.XIDs[j])
		}
		if d.MIG == nil {
			last = d.UUID
		} else if d.MIG.ParentUUID != last {
			last = d.MIG.ParentUUID
			for j := range d.GPUXIDs {
				b = f(b, last, &d.GPUXIDs[j])
			}
		}
	}
	return b
}

func appendXID(b []byte, uuid string, code uint64) []byte {
	b = appendLabel(b, "uuid", uuid)
	b = append(b, `,xid="`...)
	b = strconv.AppendUint(b, code, 10)
	return append(b, `"} `...)
}

func buildInfo(b []byte, in *renderInput) []byte {
	b = appendLabel(append(b, "gpupilot_build_info{"...), "version", in.cfg.Version)
	b = appendLabel(append(b, ','), "revision", in.cfg.Revision)
	b = appendLabel(append(b, ','), "goversion", runtime.Version())
	return append(b, "} 1\n"...)
}

// gpuInfo is the inventory. Its node's label has one name in every profile, so that
// our own series, which have a UUID alone, can be joined with it.
func gpuInfo(b []byte, in *renderInput) []byte {
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		b = appendLabel(append(b, "gpupilot_gpu_info{"...), "uuid", d.UUID)
		b = append(b, `,gpu="`...)
		b = strconv.AppendInt(b, int64(d.Index), 10)
		b = append(b, `",device="`...)
		if d.Minor >= 0 {
			b = strconv.AppendInt(append(b, "nvidia"...), int64(d.Minor), 10)
		}
		b = appendLabel(append(b, `",`...), "pci_bus_id", d.PCIBusID)
		b = appendLabel(append(b, ','), "model", d.Model)
		if d.MIG != nil {
			b = appendLabel(append(b, ','), "mig_profile", d.MIG.Profile)
		}
		if in.cfg.Hostname != "" {
			b = appendLabel(append(b, ','), "hostname", in.cfg.Hostname)
		}
		b = appendJoin(b, in.cfg, &d.Device)
		b = append(b, "} 1\n"...)
	}
	return b
}

// appendJoin writes the labels of a device that its fields' series have in this profile, so
// that gpupilot_gpu_info joins them.
func appendJoin(b []byte, cfg *Config, d *gpu.Device) []byte {
	uuid := d.UUID
	if d.MIG != nil {
		uuid = d.MIG.ParentUUID
	}
	if name := namesOf(cfg.OldNamespace).uuid; name != "uuid" {
		b = appendLabel(append(b, ','), name, uuid)
	}
	if d.MIG != nil {
		b = appendNumber(b, `,GPU_I_ID="`, d.MIG.GPUInstance)
	}
	if host := cfg.Profile.HostLabel(); cfg.Hostname != "" && host != "hostname" {
		b = appendLabel(append(b, ','), host, cfg.Hostname)
	}
	return b
}

// unsupported lists the fields that devices do not give, once for each GPU: its
// instances give the same fields.
func unsupported(b []byte, in *renderInput) []byte {
	want := in.fields
	maxAge := gpu.MaxAge(in.snap.Interval)
	for i := range in.snap.Devices {
		d := &in.snap.Devices[i]
		if !d.Fresh(in.now, maxAge) || i > 0 && siblings(&in.snap.Devices[i-1].Device, &d.Device) {
			continue
		}
		for j := range gpu.Fields() {
			f := gpu.At(gpu.Index(j))
			if _, ok := d.Values.GetAt(gpu.Index(j)); ok || !want.Has(gpu.Index(j)) {
				continue
			}
			if _, ok := d.Values.GetLabel(f.ID); ok {
				continue
			}
			b = appendLabel(append(b, "gpupilot_field_supported{"...), "field", f.Name)
			b = appendLabel(append(b, ','), "uuid", d.UUID)
			b = appendLabel(append(b, ','), "reason", lack(gpu.Index(j), d))
			b = append(b, "} 0\n"...)
		}
	}
	return b
}

func siblings(a, b *gpu.Device) bool {
	return a.MIG != nil && b.MIG != nil && a.MIG.ParentUUID == b.MIG.ParentUUID
}

// lack returns why a device lacks the field at index i.
func lack(i gpu.Index, d *gpu.DeviceSnapshot) string {
	if f := gpu.At(i); d.NoProfiling != "" && f.ID >= gpu.GREngineActive && f.ID <= gpu.IntActive {
		return d.NoProfiling
	}
	return cmp.Or(d.Reasons.Why(i), "not given by this device")
}
