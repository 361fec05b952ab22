// SPDX-License-Identifier: Apache-2.0

package gpu

// HealthWatch is a system of a GPU whose health DCGM judges.
type HealthWatch uint8

// The systems, in dcgm-exporter's order. WatchAll is for errors of the GPU as a
// whole, which make it unusable. It is not the worst verdict of the others.
const (
	WatchPCIe HealthWatch = iota
	WatchNVLink
	WatchPMU
	WatchMCU
	WatchMem
	WatchSM
	WatchInforom
	WatchThermal
	WatchPower
	WatchDriver
	WatchAll
)

// HealthWatches is the number of systems.
const HealthWatches = 11

// String returns the system's name, as DCGM writes it.
func (w HealthWatch) String() string {
	return [...]string{"PCIE", "NVLINK", "PMU", "MCU", "MEM", "SM", "INFOROM", "THERMAL", "POWER", "DRIVER", "ALL"}[w]
}

// The values of a verdict, dcgmHealthWatchResults_t.
const (
	HealthPass = 0
	HealthWarn = 10
	HealthFail = 20
)

// Verdict is the health of one system of a GPU. The zero value is healthy.
type Verdict struct {
	Health uint8  // HealthPass, HealthWarn or HealthFail
	Code   string // DCGM's name of the error, DCGM_FR_…; empty: none
}

// Worsen replaces the verdict if the given health is worse.
func (v *Verdict) Worsen(health uint8, code string) {
	if health > v.Health {
		v.Health, v.Code = health, code
	}
}

// Verdicts are the verdicts on all systems of a GPU.
type Verdicts [HealthWatches]Verdict

// HealthReader is a Reader whose library judges the health of GPUs.
type HealthReader interface {
	// Health returns the library's verdicts on a whole GPU. It may block as
	// Reader's methods do, and is called by the goroutine that reads the GPU.
	Health(uuid string) (*Verdicts, error)
}
