// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/metrics"
	"runtime/pprof"
	"strings"
	"time"
)

// writeProfiles writes profiles of this process and what its memory is made of
// into a folder; "" is none.
func writeProfiles(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cpu, err := os.Create(filepath.Join(dir, "cpu.pprof"))
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(cpu); err != nil {
		return err
	}
	time.Sleep(10 * time.Second)
	pprof.StopCPUProfile()
	errs := []error{cpu.Close(), writeMemory(filepath.Join(dir, "memory.txt"))}
	for _, name := range []string{"heap", "goroutine"} {
		f, err := os.Create(filepath.Join(dir, name+".pprof"))
		if err != nil {
			return err
		}
		errs = append(errs, pprof.Lookup(name).WriteTo(f, 0), f.Close())
	}
	return errors.Join(errs...)
}

// writeMemory writes what the runtime's memory is made of.
func writeMemory(path string) error {
	var b strings.Builder
	samples := []metrics.Sample{}
	for _, d := range metrics.All() {
		if d.Kind == metrics.KindUint64 && (strings.HasPrefix(d.Name, "/memory/") || strings.HasPrefix(d.Name, "/gc/") || strings.HasPrefix(d.Name, "/sched/goroutines")) {
			samples = append(samples, metrics.Sample{Name: d.Name})
		}
	}
	metrics.Read(samples)
	for _, s := range samples {
		fmt.Fprintf(&b, "%-60s %d\n", s.Name, s.Value.Uint64())
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
