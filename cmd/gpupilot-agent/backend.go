// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/auto"
	"github.com/gpupilot/gpupilot/internal/gpu/dcgm"
	"github.com/gpupilot/gpupilot/internal/gpu/nvml"
)

// wantsDCGM reports whether the flags select DCGM: by name, or by a host
// engine's address without a backend.
func (c *config) wantsDCGM() bool {
	return c.backend == "dcgm" || c.backend == "auto" && c.hostEngine != ""
}

// dcgmReader opens the DCGM backend. It fails at once without the library, but
// not without a host engine, which can start later.
func (c *config) dcgmReader(ctx context.Context, log *slog.Logger) (gpu.Reader, error) {
	if err := c.setDCGMLog(); err != nil {
		return nil, err
	}
	uuids := &migUUIDs{library: c.nvmlLibrary}
	r := dcgm.New(dcgm.Config{Library: c.dcgmLibrary, Remote: c.hostEngine, Interval: c.interval(), MIGUUID: uuids.of, Log: log})
	if c.noValidate {
		return r, nil
	}
	if err := probe(ctx, r); errors.Is(err, gpu.ErrNoLibrary) {
		closeWithin(r, closeGrace)
		return nil, fmt.Errorf("DCGM (--backend dcgm, --remote-hostengine-info): %w; "+
			"give its path with --dcgm-library, or wait for it with --disable-startup-validate", err)
	}
	return r, nil
}

// setDCGMLog sets the environment variables of DCGM's log, which DCGM reads at
// its start.
func (c *config) setDCGMLog() error {
	if !c.dcgmLog {
		return nil
	}
	for k, v := range map[string]string{"__DCGM_DBG_FILE": "-", "__DCGM_DBG_LVL": c.dcgmLogLevel} {
		if err := os.Setenv(k, v); err != nil {
			return fmt.Errorf("--enable-dcgm-log: %w", err)
		}
	}
	return nil
}

// autoReader adds DCGM to NVML, for the fields that only DCGM gives.
func (c *config) autoReader(first *nvml.Reader, log *slog.Logger) *auto.Reader {
	return auto.New(auto.Config{
		First: first, Log: log,
		Patience: max(c.interval()/8, 10*time.Millisecond), // a tick waits for a quarter of the interval
		Open: func(migUUID func(string, int, int) string) auto.Second {
			if err := c.setDCGMLog(); err != nil {
				log.Warn("cannot set up DCGM's log", "err", err)
			}
			// No other log: auto logs whether DCGM is in use, and why not.
			return dcgm.New(dcgm.Config{Library: c.dcgmLibrary, Interval: c.interval(), MIGUUID: migUUID, PassedLog: log})
		},
	})
}

// migUUIDs gets the UUIDs of MIG instances from NVML: the kubelet uses them,
// and DCGM does not give them. It loads NVML only if there are instances. It is
// for one goroutine at a time.
type migUUIDs struct {
	library string
	known   map[gpu.MIG]string
	asked   time.Time
}

// migUUIDsEvery is the shortest time between two enumerations.
const migUUIDsEvery = 5 * time.Second

func (m *migUUIDs) of(parent string, gpuInstance, computeInstance int) string {
	if uuid := m.lookup(parent, gpuInstance, computeInstance); uuid != "" || time.Since(m.asked) < migUUIDsEvery {
		return uuid
	}
	m.asked = time.Now()
	r := nvml.New(nvml.Config{Library: m.library})
	devices, _ := r.Devices() // without NVML the UUIDs stay unknown; listed devices are valid despite an error
	_ = r.Close()
	m.known = map[gpu.MIG]string{}
	for _, d := range devices {
		if d.MIG != nil {
			m.known[gpu.MIG{ParentUUID: d.MIG.ParentUUID, GPUInstance: d.MIG.GPUInstance, ComputeInstance: d.MIG.ComputeInstance}] = d.UUID
		}
	}
	return m.lookup(parent, gpuInstance, computeInstance)
}

// lookup finds an instance. A compute instance that spans its GPU instance has
// no number of its own.
func (m *migUUIDs) lookup(parent string, gpuInstance, computeInstance int) string {
	key := gpu.MIG{ParentUUID: parent, GPUInstance: gpuInstance, ComputeInstance: computeInstance}
	if uuid := m.known[key]; uuid != "" {
		return uuid
	}
	key.ComputeInstance = -1
	return m.known[key]
}
