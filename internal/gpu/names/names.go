// SPDX-License-Identifier: Apache-2.0

// Package names is the table of the fields' names: dcgm-exporter's in each of
// its releases, and those of a GPUAutoscaler.
package names

import (
	"strconv"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// naming is the names of one field in the profiles other than 4.8. Profile 4.8
// has the names of the gpu package's table.
type naming struct {
	field gpu.FieldID

	// name49 is the name in DCGM 4.7, which dcgm-exporter 4.9 uses. Empty: the
	// 4.8 name. A value under name49 times scale49 (0 stands for 1) is in the
	// field's unit; help49 replaces the field's help if the unit differs.
	name49  string
	scale49 float64
	help49  string

	// name1 is the name in dcgm-exporter 1.x; empty if it had none. The units
	// are those of 4.8.
	name1 string
}

// The scales from DCGM 4.7's base units to the field table's. A whole number in one of
// the exported units may have a fraction in the base unit.
const (
	fromHertz   = 1e-6            // Hz to MHz
	fromJoules  = 1e3             // J to mJ
	FromRatio   = 1e2             // 0-1 to percent
	fromBytes   = 1.0 / (1 << 20) // bytes to MiB
	fromBytesPS = 1e-6            // bytes/s to MB/s
	FromSeconds = 1e9             // s to ns
)

// namings follows DCGM 4.7's field list (dcgm_fields.h) and the
// 1.x-compatibility collectors of dcgm-exporter.
var namings = [...]naming{
	{field: gpu.DriverVersion, name49: "DCGM_FI_SYSTEM_DRIVER_VERSION"},
	{field: gpu.NVMLVersion, name49: "DCGM_FI_SYSTEM_NVML_VERSION"},
	{field: gpu.Brand, name49: "DCGM_FI_DEV_GPU_BRAND"},
	{field: gpu.Serial, name49: "DCGM_FI_DEV_BOARD_SERIAL"},
	{field: gpu.MinorNumber, name49: "DCGM_FI_DEV_GPU_MINOR_NUMBER"},
	{field: gpu.OEMInforomVersion, name49: "DCGM_FI_DEV_INFOROM_OEM_VERSION"},
	{field: gpu.ECCInforomVersion, name49: "DCGM_FI_DEV_INFOROM_ECC_VERSION"},
	{field: gpu.PowerInforomVersion, name49: "DCGM_FI_DEV_INFOROM_POWER_VERSION"},
	{field: gpu.InforomImageVersion, name49: "DCGM_FI_DEV_INFOROM_IMAGE_VERSION"},

	{gpu.SMClock, "DCGM_FI_DEV_SM_CLOCK_HERTZ", fromHertz, "Clock of the streaming multiprocessors (in Hz).", "dcgm_sm_clock"},
	{gpu.MemClock, "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", fromHertz, "Clock of the memory (in Hz).", "dcgm_memory_clock"},
	{gpu.VideoClock, "DCGM_FI_DEV_VIDEO_CLOCK_HERTZ", fromHertz, "Clock of the video engines (in Hz).", ""},
	{gpu.MaxSMClock, "DCGM_FI_DEV_SM_MAX_CLOCK_HERTZ", fromHertz, "Highest clock of the streaming multiprocessors (in Hz).", ""},
	{gpu.MaxMemClock, "DCGM_FI_DEV_MEMORY_MAX_CLOCK_HERTZ", fromHertz, "Highest clock of the memory (in Hz).", ""},
	{field: gpu.MemoryTemp, name49: "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", name1: "dcgm_memory_temp"},
	{field: gpu.GPUTemp, name49: "DCGM_FI_DEV_GPU_TEMP_CELSIUS", name1: "dcgm_gpu_temp"},
	{field: gpu.PowerUsage, name49: "DCGM_FI_DEV_BOARD_POWER_WATTS", name1: "dcgm_power_usage"},
	{gpu.TotalEnergy, "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", fromJoules, "Energy used since the driver was loaded (in J).", "dcgm_total_energy_consumption"},
	{field: gpu.PowerUsageInstant, name49: "DCGM_FI_DEV_BOARD_POWER_RAW_WATTS"},
	{field: gpu.SlowdownTemp, name49: "DCGM_FI_DEV_GPU_TEMP_SLOWDOWN_CELSIUS"},
	{field: gpu.ShutdownTemp, name49: "DCGM_FI_DEV_GPU_TEMP_SHUTDOWN_CELSIUS"},
	{field: gpu.PowerMgmtLimit, name49: "DCGM_FI_DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS"},
	{field: gpu.EnforcedPowerLimit, name49: "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS"},
	{field: gpu.PState, name49: "DCGM_FI_DEV_GPU_PSTATE"},
	{gpu.FanSpeed, "DCGM_FI_DEV_FAN_SPEED_RATIO", FromRatio, "Fan speed (0 to 1).", ""},
	{field: gpu.PCIeReplayCounter, name49: "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", name1: "dcgm_pcie_replay_counter"},
	{gpu.GPUUtil, "DCGM_FI_DEV_GPU_UTIL_RATIO", FromRatio, "Share of time in which a kernel ran (0 to 1).", "dcgm_gpu_utilization"},
	{gpu.MemCopyUtil, "DCGM_FI_DEV_MEMORY_UTIL_RATIO", FromRatio, "Share of time in which memory was read or written (0 to 1).", "dcgm_mem_copy_utilization"},
	{gpu.EncUtil, "DCGM_FI_DEV_ENC_UTIL_RATIO", FromRatio, "Utilisation of the encoder (0 to 1).", "dcgm_enc_utilization"},
	{gpu.DecUtil, "DCGM_FI_DEV_DEC_UTIL_RATIO", FromRatio, "Utilisation of the decoder (0 to 1).", "dcgm_dec_utilization"},
	{field: gpu.XIDErrors, name49: "DCGM_FI_DEV_XID_ERROR", name1: "dcgm_xid_errors"},
	{gpu.PowerViolation, "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL", FromSeconds, "Time throttled by the power limit (in s).", "dcgm_power_violation"},
	{gpu.ThermalViolation, "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL", FromSeconds, "Time throttled by temperature (in s).", "dcgm_thermal_violation"},
	{field: gpu.SyncBoostViolation, name1: "dcgm_sync_boost_violation"},
	{field: gpu.BoardLimitViolation, name1: "dcgm_board_limit_violation"},
	{field: gpu.LowUtilViolation, name1: "dcgm_low_util_violation"},
	{field: gpu.ReliabilityViolation, name1: "dcgm_reliability_violation"},
	{gpu.FBTotal, "DCGM_FI_DEV_FB_CAPACITY_BYTES", fromBytes, "Framebuffer memory in all (in bytes).", ""},
	{gpu.FBFree, "DCGM_FI_DEV_FB_FREE_BYTES", fromBytes, "Framebuffer memory free (in bytes).", "dcgm_fb_free"},
	{gpu.FBUsed, "DCGM_FI_DEV_FB_USED_BYTES", fromBytes, "Framebuffer memory used (in bytes).", "dcgm_fb_used"},
	{gpu.FBReserved, "DCGM_FI_DEV_FB_RESERVED_BYTES", fromBytes, "Framebuffer memory reserved by the driver (in bytes).", ""},
	{field: gpu.FBUsedPercent, name49: "DCGM_FI_DEV_FB_USED_RATIO"},
	{field: gpu.ECCSBEVolatile, name1: "dcgm_ecc_sbe_volatile_total"},
	{field: gpu.ECCDBEVolatile, name1: "dcgm_ecc_dbe_volatile_total"},
	{field: gpu.ECCSBEAggregate, name1: "dcgm_ecc_sbe_aggregate_total"},
	{field: gpu.ECCDBEAggregate, name1: "dcgm_ecc_dbe_aggregate_total"},
	{field: gpu.RetiredSBE, name49: "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL", name1: "dcgm_retired_pages_sbe"},
	{field: gpu.RetiredDBE, name49: "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL", name1: "dcgm_retired_pages_dbe"},
	{field: gpu.RetiredPending, name49: "DCGM_FI_DEV_PAGE_RETIRED_PENDING", name1: "dcgm_retired_pages_pending"},
	{field: gpu.UncorrRemappedRows, name49: "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"},
	{field: gpu.CorrRemappedRows, name49: "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL"},
	{field: gpu.RowRemapFailure, name49: "DCGM_FI_DEV_ROW_REMAP_FAILED"},
	{field: gpu.NVLinkCRCFlitErrors, name49: "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_TOTAL", name1: "dcgm_nvlink_flit_crc_error_count_total"},
	{field: gpu.NVLinkCRCDataErrors, name49: "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_TOTAL", name1: "dcgm_nvlink_data_crc_error_count_total"},
	{field: gpu.NVLinkReplayErrors, name49: "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL", name1: "dcgm_nvlink_replay_error_count_total"},
	{field: gpu.NVLinkRecoveryErrors, name49: "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL", name1: "dcgm_nvlink_recovery_error_count_total"},
	{gpu.NVLinkBandwidthL0, "DCGM_FI_DEV_NVLINK_THROUGHPUT_L0_BYTES_PER_SECOND", fromBytesPS, "Data over NVLink 0 (in bytes a second).", ""},
	{gpu.NVLinkBandwidth, "DCGM_FI_DEV_NVLINK_THROUGHPUT_BYTES_PER_SECOND", fromBytesPS, "Data over all NVLinks (in bytes a second).", "dcgm_nvlink_bandwidth_total"},

	{field: gpu.GREngineActive, name49: "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", name1: "dcgm_fi_prof_gr_engine_active"},
	{field: gpu.SMActive, name49: "DCGM_FI_PROF_SM_UTIL_RATIO", name1: "dcgm_fi_prof_sm_active"},
	{field: gpu.SMOccupancy, name49: "DCGM_FI_PROF_SM_OCCUPANCY_RATIO", name1: "dcgm_fi_prof_sm_occupancy"},
	{field: gpu.TensorActive, name49: "DCGM_FI_PROF_TENSOR_UTIL_RATIO", name1: "dcgm_fi_prof_pipe_tensor_active"},
	{field: gpu.DRAMActive, name49: "DCGM_FI_PROF_DRAM_UTIL_RATIO", name1: "dcgm_fi_prof_dram_active"},
	{field: gpu.FP64Active, name49: "DCGM_FI_PROF_FP64_UTIL_RATIO"},
	{field: gpu.FP32Active, name49: "DCGM_FI_PROF_FP32_UTIL_RATIO"},
	{field: gpu.FP16Active, name49: "DCGM_FI_PROF_FP16_UTIL_RATIO"},
	{field: gpu.PCIeTxBytes, name1: "dcgm_fi_prof_pcie_tx_bytes"},
	{field: gpu.PCIeRxBytes, name1: "dcgm_fi_prof_pcie_rx_bytes"},
	{field: gpu.TensorIMMAActive, name49: "DCGM_FI_PROF_IMMA_UTIL_RATIO"},
	{field: gpu.TensorHMMAActive, name49: "DCGM_FI_PROF_HMMA_UTIL_RATIO"},
	{field: gpu.TensorDFMAActive, name49: "DCGM_FI_PROF_DFMA_UTIL_RATIO"},
	{field: gpu.IntActive, name49: "DCGM_FI_PROF_INT_UTIL_RATIO"},

	{field: gpu.SwitchPowerVDD, name49: "DCGM_FI_DEV_NVSWITCH_POWER_VDD_WATTS"},
	{field: gpu.SwitchPowerDVDD, name49: "DCGM_FI_DEV_NVSWITCH_POWER_DVDD_WATTS"},
	{field: gpu.SwitchPowerHVDD, name49: "DCGM_FI_DEV_NVSWITCH_POWER_HVDD_WATTS"},
	{field: gpu.SwitchLinkReplay, name49: "DCGM_FI_DEV_NVSWITCH_LINK_REPLAY_ERROR_TOTAL"},
	{field: gpu.SwitchLinkRecovery, name49: "DCGM_FI_DEV_NVSWITCH_LINK_RECOVERY_ERROR_TOTAL"},
	{field: gpu.SwitchLinkFlit, name49: "DCGM_FI_DEV_NVSWITCH_LINK_FLIT_ERROR_TOTAL"},
	{field: gpu.SwitchLinkCRC, name49: "DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERROR_TOTAL"},
	{field: gpu.SwitchLinkECC, name49: "DCGM_FI_DEV_NVSWITCH_LINK_ECC_ERROR_TOTAL"},
	{field: gpu.SwitchFatal, name49: "DCGM_FI_DEV_SXID_FATAL_ERROR"},
	{field: gpu.SwitchNonFatal, name49: "DCGM_FI_DEV_SXID_NON_FATAL_ERROR"},
	{field: gpu.SwitchTemp, name49: "DCGM_FI_DEV_NVSWITCH_TEMP_CELSIUS"},
	{field: gpu.SwitchSlowdownTemp, name49: "DCGM_FI_DEV_NVSWITCH_TEMP_SLOWDOWN_CELSIUS"},
	{field: gpu.SwitchShutdownTemp, name49: "DCGM_FI_DEV_NVSWITCH_TEMP_SHUTDOWN_CELSIUS"},
	{field: gpu.SwitchPhysicalID, name49: "DCGM_FI_DEV_NVSWITCH_PHYSICAL_ID"},
	{field: gpu.CPUUtil, name49: "DCGM_FI_DEV_CPU_UTIL_RATIO"},
	{field: gpu.CPUUtilUser, name49: "DCGM_FI_DEV_CPU_UTIL_USER_RATIO"},
	{field: gpu.CPUUtilNice, name49: "DCGM_FI_DEV_CPU_UTIL_NICE_RATIO"},
	{field: gpu.CPUUtilSys, name49: "DCGM_FI_DEV_CPU_UTIL_SYS_RATIO"},
	{field: gpu.CPUUtilIRQ, name49: "DCGM_FI_DEV_CPU_UTIL_IRQ_RATIO"},
	{field: gpu.CPUTemp, name49: "DCGM_FI_DEV_CPU_TEMP_CELSIUS"},
	{field: gpu.CPUTempWarning, name49: "DCGM_FI_DEV_CPU_TEMP_WARNING_CELSIUS"},
	{field: gpu.CPUTempCritical, name49: "DCGM_FI_DEV_CPU_TEMP_CRITICAL_CELSIUS"},
	{field: gpu.CPUPower, name49: "DCGM_FI_DEV_CPU_POWER_WATTS"},
	{field: gpu.CPUPowerLimit, name49: "DCGM_FI_DEV_CPU_POWER_LIMIT_WATTS"},
	{field: gpu.SysIOPower, name49: "DCGM_FI_DEV_SYSIO_POWER_WATTS"},
	{field: gpu.ModulePower, name49: "DCGM_FI_DEV_MODULE_POWER_WATTS"},
}

// alias is another name for a field, in the field's unit.
type alias struct {
	name  string
	field gpu.FieldID
}

// friendly are the values of a GPUAutoscaler's gpu.metric, and names in the style of
// Kubernetes's metrics.
var friendly = [...]alias{
	{"Utilization", gpu.GPUUtil},
	{"MemoryUtilization", gpu.MemCopyUtil},
	{"MemoryUsed", gpu.FBUsed},
	{"SMActive", gpu.SMActive},
	{"SMOccupancy", gpu.SMOccupancy},
	{"TensorActive", gpu.TensorActive},
	{"DRAMActive", gpu.DRAMActive},
	{"Power", gpu.PowerUsage},
	{"gpu_utilization", gpu.GPUUtil},
	{"gpu_memory_utilization", gpu.MemCopyUtil},
	{"gpu_memory_used", gpu.FBUsed},
	{"gpu_sm_active", gpu.SMActive},
	{"gpu_sm_occupancy", gpu.SMOccupancy},
	{"gpu_tensor_active", gpu.TensorActive},
	{"gpu_dram_active", gpu.DRAMActive},
	{"gpu_power", gpu.PowerUsage},
	{"gpu_temperature", gpu.GPUTemp},
}

// former are names that DCGM had between the profiles.
var former = [...]alias{
	{"DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", gpu.ClocksEventReasons},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_TOTAL", gpu.NVLinkBandwidth},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L0", gpu.NVLinkBandwidthL0},
	{"dcgm_pcie_tx_throughput", 200},
	{"dcgm_pcie_rx_throughput", 201},
	{"DCGM_FI_DEV_GPU_COMPUTE_MODE", 65},
	{"DCGM_FI_DEV_GPU_PERSISTENCE_MODE", 66},
	{"DCGM_FI_DEV_INFOROM_CHECKSUM", 83},
	{"DCGM_FI_DEV_INFOROM_VALID", 84},
	{"DCGM_FI_SYSTEM_GPU_SYNC_BOOST", 91},
	{"DCGM_FI_DEV_CLOCKS_AUTOBOOST_MODE", 120},
	{"DCGM_FI_DEV_MEMORY_MAX_OP_TEMP_CELSIUS", 151},
	{"DCGM_FI_DEV_GPU_MAX_OP_TEMP_CELSIUS", 152},
	{"DCGM_FI_DEV_BOARD_POWER_LIMIT_MIN_WATTS", 161},
	{"DCGM_FI_DEV_BOARD_POWER_LIMIT_MAX_WATTS", 162},
	{"DCGM_FI_DEV_BOARD_POWER_LIMIT_DEFAULT_WATTS", 163},
	{"DCGM_FI_DEV_C2C_LINK_QUANTITY", 285},
	{"DCGM_FI_DEV_ECC_MODE", 300},
	{"DCGM_FI_DEV_BANK_REMAP_AVAIL_MAX", 385},
	{"DCGM_FI_DEV_BANK_REMAP_AVAIL_HIGH", 386},
	{"DCGM_FI_DEV_BANK_REMAP_AVAIL_PARTIAL", 387},
	{"DCGM_FI_DEV_BANK_REMAP_AVAIL_LOW", 388},
	{"DCGM_FI_DEV_BANK_REMAP_AVAIL_NONE", 389},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L1", 441},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L2", 442},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L3", 443},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L4", 444},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L5", 445},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L12", 446},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L13", 447},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L14", 448},
	{"DCGM_FI_DEV_NVLINK_ERROR", 450},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L6", 475},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L7", 476},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L8", 477},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L9", 478},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L10", 479},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L11", 480},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L15", 494},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L16", 495},
	{"DCGM_FI_DEV_NVLINK_THROUGHPUT_L17", 496},
	{"DCGM_FI_PROF_NVDEC_UTIL_0_RATIO", 1017},
	{"DCGM_FI_PROF_NVDEC_UTIL_1_RATIO", 1018},
	{"DCGM_FI_PROF_NVDEC_UTIL_2_RATIO", 1019},
	{"DCGM_FI_PROF_NVDEC_UTIL_3_RATIO", 1020},
	{"DCGM_FI_PROF_NVDEC_UTIL_4_RATIO", 1021},
	{"DCGM_FI_PROF_NVDEC_UTIL_5_RATIO", 1022},
	{"DCGM_FI_PROF_NVDEC_UTIL_6_RATIO", 1023},
	{"DCGM_FI_PROF_NVDEC_UTIL_7_RATIO", 1024},
	{"DCGM_FI_PROF_NVJPG_UTIL_0_RATIO", 1025},
	{"DCGM_FI_PROF_NVJPG_UTIL_1_RATIO", 1026},
	{"DCGM_FI_PROF_NVJPG_UTIL_2_RATIO", 1027},
	{"DCGM_FI_PROF_NVJPG_UTIL_3_RATIO", 1028},
	{"DCGM_FI_PROF_NVJPG_UTIL_4_RATIO", 1029},
	{"DCGM_FI_PROF_NVJPG_UTIL_5_RATIO", 1030},
	{"DCGM_FI_PROF_NVJPG_UTIL_6_RATIO", 1031},
	{"DCGM_FI_PROF_NVJPG_UTIL_7_RATIO", 1032},
	{"DCGM_FI_PROF_NVOFA_UTIL_0_RATIO", 1033},
}

// Metric finds the field with a metric name of any profile or of AMD's
// device-metrics-exporter, and the scale from that name's unit to the field's.
func Metric(name string) (gpu.Ref, bool) {
	for i := range gpu.NumFields {
		if f := gpu.At(gpu.Index(i)); f.Name == name {
			return gpu.Ref{Field: f.ID, Scale: 1}, true
		}
	}
	for i := range namings {
		n := &namings[i]
		switch name {
		case "":
			return gpu.Ref{}, false
		case n.name49:
			return gpu.Ref{Field: n.field, Scale: n.scale()}, true
		case n.name1:
			return gpu.Ref{Field: n.field, Scale: 1}, true
		}
	}
	if r, ok := findAMD(name); ok {
		return r, true
	}
	return find(former[:], name)
}

// Resolve finds the field of a name: a metric name of any profile, a value of a
// GPUAutoscaler's gpu.metric (such as Utilization), or a field id in decimal. The
// scale converts a value under that name into the field's unit.
func Resolve(name string) (gpu.Ref, bool) {
	if r, ok := find(friendly[:], name); ok {
		return r, true
	}
	if n, err := strconv.ParseUint(name, 10, 16); err == nil {
		_, ok := gpu.Lookup(gpu.FieldID(n))
		return gpu.Ref{Field: gpu.FieldID(n), Scale: 1}, ok
	}
	return Metric(name)
}

// UnitOf returns the unit of a name whose values times scale are in a field's unit.
func UnitOf(u gpu.Unit, scale float64) string {
	if scale == 1 {
		return string(u)
	}
	return map[gpu.Unit]string{
		gpu.Megahertz: "Hz", gpu.Millijoule: "J", gpu.Percent: "ratio", gpu.Mebibyte: "B",
		gpu.MegabytesPerSecond: "B/s", gpu.Nanosecond: "s",
	}[u]
}

// All returns the names of all fields of GPUs, in every profile.
func All() []string {
	var all []string
	for _, list := range [][]alias{friendly[:], former[:]} {
		for _, a := range list {
			all = append(all, a.name)
		}
	}
	for _, f := range gpu.Fields() {
		all = append(all, f.Name)
	}
	for i := range namings {
		for _, name := range []string{namings[i].name49, namings[i].name1} {
			if name != "" {
				all = append(all, name)
			}
		}
	}
	return all
}

func (n *naming) scale() float64 {
	if n.scale49 == 0 {
		return 1
	}
	return n.scale49
}

func find(in []alias, name string) (gpu.Ref, bool) {
	for _, a := range in {
		if a.name == name {
			return gpu.Ref{Field: a.field, Scale: 1}, true
		}
	}
	return gpu.Ref{}, false
}

func namingOf(id gpu.FieldID) (*naming, bool) {
	for i := range namings {
		if namings[i].field == id {
			return &namings[i], true
		}
	}
	return nil, false
}
