// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"bytes"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"time"
)

// self reads the resource use of the process itself, for
// --enable-exporter-metrics, under the names of Prometheus's Go and process
// collectors.
type self struct {
	samples []metrics.Sample
	started time.Time
}

// selfMetrics are those of the Go runtime, by runtime/metrics' names.
var selfMetrics = [...]struct {
	source, name, help string
	typ                Type
}{
	{"/sched/goroutines:goroutines", "go_goroutines", "Number of goroutines.", Gauge},
	{"/memory/classes/heap/objects:bytes", "go_memstats_alloc_bytes", "Bytes of heap objects.", Gauge},
	{"/gc/heap/allocs:bytes", "go_memstats_alloc_bytes_total", "Bytes allocated on the heap since the start.", Counter},
	{"/memory/classes/total:bytes", "go_memstats_sys_bytes", "Bytes that the Go runtime got from the operating system.", Gauge},
	{"/memory/classes/heap/released:bytes", "go_memstats_heap_released_bytes", "Heap bytes returned to the operating system.", Gauge},
	{"/gc/cycles/total:gc-cycles", "go_gc_cycles_total_gc_cycles_total", "Garbage collections since the start.", Counter},
	{"/sched/gomaxprocs:threads", "go_sched_gomaxprocs_threads", "Limit of threads that run Go code at the same time.", Gauge},
}

// selfFamilies are shown where cfg.Further is set.
func selfFamilies() []family {
	s := &self{started: time.Now()}
	for _, m := range selfMetrics {
		s.samples = append(s.samples, metrics.Sample{Name: m.source})
	}
	fs := []family{meta("go_info", Gauge, "1, with the Go version.", func(b []byte, _ *renderInput) []byte {
		metrics.Read(s.samples) // for those that follow
		return append(appendLabel(append(b, "go_info{"...), "version", runtime.Version()), "} 1\n"...)
	})}
	for i, m := range selfMetrics {
		fs = append(fs, meta(m.name, m.typ, m.help, func(b []byte, _ *renderInput) []byte {
			if s.samples[i].Value.Kind() != metrics.KindUint64 {
				return b // an unknown Go runtime
			}
			b = append(append(b, m.name...), ' ')
			return append(appendUint(b, s.samples[i].Value.Uint64()), '\n')
		}))
	}
	return append(fs,
		meta("process_cpu_seconds_total", Counter, "User and system CPU time.", plain("process_cpu_seconds_total", cpuSeconds)),
		meta("process_resident_memory_bytes", Gauge, "Resident memory.", plain("process_resident_memory_bytes", residentBytes)),
		meta("process_open_fds", Gauge, "Open file descriptors.", plain("process_open_fds", openFiles)),
		meta("process_max_fds", Gauge, "Limit of open file descriptors.", plain("process_max_fds", maxFiles)),
		meta("process_start_time_seconds", Gauge, "Start time of the agent, in seconds since 1970.", func(b []byte, _ *renderInput) []byte {
			return append(appendTime(append(b, "process_start_time_seconds "...), s.started), '\n')
		}),
	)
}

// plain returns a family with one sample without labels; no sample if f has no
// value.
func plain(name string, f func() (float64, bool)) func([]byte, *renderInput) []byte {
	return func(b []byte, _ *renderInput) []byte {
		v, ok := f()
		if !ok {
			return b
		}
		b = append(append(b, name...), ' ')
		return append(strconv.AppendFloat(b, v, 'f', -1, 64), '\n')
	}
}

func residentBytes() (float64, bool) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, false
	}
	f := bytes.Fields(b)
	if len(f) < 2 {
		return 0, false
	}
	pages, err := strconv.ParseUint(string(f[1]), 10, 64)
	return float64(pages) * float64(os.Getpagesize()), err == nil
}

func openFiles() (float64, bool) {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0, false
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(-1)
	return float64(len(names) - 1), err == nil // without the directory that was just opened
}
