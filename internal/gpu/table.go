// SPDX-License-Identifier: Apache-2.0

package gpu

// The ids of the fields, as in DCGM 4.6's dcgm_fields.h.
const (
	DriverVersion        FieldID = 1
	NVMLVersion          FieldID = 2
	CUDADriverVersion    FieldID = 5
	Brand                FieldID = 51
	Serial               FieldID = 53
	MinorNumber          FieldID = 55
	OEMInforomVersion    FieldID = 56
	ECCInforomVersion    FieldID = 80
	PowerInforomVersion  FieldID = 81
	InforomImageVersion  FieldID = 82
	VBIOSVersion         FieldID = 85
	SMClock              FieldID = 100
	MemClock             FieldID = 101
	VideoClock           FieldID = 102
	ClocksEventReasons   FieldID = 112
	MaxSMClock           FieldID = 113
	MaxMemClock          FieldID = 114
	MemoryTemp           FieldID = 140
	GPUTemp              FieldID = 150
	PowerUsage           FieldID = 155
	TotalEnergy          FieldID = 156
	PowerUsageInstant    FieldID = 157
	SlowdownTemp         FieldID = 158
	ShutdownTemp         FieldID = 159
	PowerMgmtLimit       FieldID = 160
	EnforcedPowerLimit   FieldID = 164
	PState               FieldID = 190
	FanSpeed             FieldID = 191
	PCIeReplayCounter    FieldID = 202
	GPUUtil              FieldID = 203
	MemCopyUtil          FieldID = 204
	EncUtil              FieldID = 206
	DecUtil              FieldID = 207
	XIDErrors            FieldID = 230
	PCIeMaxLinkGen       FieldID = 235
	PCIeMaxLinkWidth     FieldID = 236
	PCIeLinkGen          FieldID = 237
	PCIeLinkWidth        FieldID = 238
	PowerViolation       FieldID = 240
	ThermalViolation     FieldID = 241
	SyncBoostViolation   FieldID = 242
	BoardLimitViolation  FieldID = 243
	LowUtilViolation     FieldID = 244
	ReliabilityViolation FieldID = 245
	FBTotal              FieldID = 250
	FBFree               FieldID = 251
	FBUsed               FieldID = 252
	FBReserved           FieldID = 253
	FBUsedPercent        FieldID = 254
	ECCSBEVolatile       FieldID = 310
	ECCDBEVolatile       FieldID = 311
	ECCSBEAggregate      FieldID = 312
	ECCDBEAggregate      FieldID = 313
	RetiredSBE           FieldID = 390
	RetiredDBE           FieldID = 391
	RetiredPending       FieldID = 392
	UncorrRemappedRows   FieldID = 393
	CorrRemappedRows     FieldID = 394
	RowRemapFailure      FieldID = 395
	RowRemapPending      FieldID = 396
	NVLinkCRCFlitErrors  FieldID = 409
	NVLinkCRCDataErrors  FieldID = 419
	NVLinkReplayErrors   FieldID = 429
	NVLinkRecoveryErrors FieldID = 439
	NVLinkBandwidthL0    FieldID = 440
	NVLinkBandwidth      FieldID = 449
	VGPULicenseStatus    FieldID = 526
	GREngineActive       FieldID = 1001
	SMActive             FieldID = 1002
	SMOccupancy          FieldID = 1003
	TensorActive         FieldID = 1004
	DRAMActive           FieldID = 1005
	FP64Active           FieldID = 1006
	FP32Active           FieldID = 1007
	FP16Active           FieldID = 1008
	PCIeTxBytes          FieldID = 1009
	PCIeRxBytes          FieldID = 1010
	NVLinkTxBytes        FieldID = 1011
	NVLinkRxBytes        FieldID = 1012
	TensorIMMAActive     FieldID = 1013
	TensorHMMAActive     FieldID = 1014
	TensorDFMAActive     FieldID = 1015
	IntActive            FieldID = 1016
)

// table is sorted by id; TestTable holds it to that.
var table = [...]Field{
	{DriverVersion, "DCGM_FI_DRIVER_VERSION", None, Label, Integer, NoAggregate, NoAggregate, "Version of the NVIDIA driver."},
	{NVMLVersion, "DCGM_FI_NVML_VERSION", None, Label, Integer, NoAggregate, NoAggregate, "Version of the NVML library."},
	{CUDADriverVersion, "DCGM_FI_CUDA_DRIVER_VERSION", None, Label, Integer, NoAggregate, NoAggregate, "CUDA version that the driver supports, major*1000+minor*10."},
	{Brand, "DCGM_FI_DEV_BRAND", None, Label, Integer, NoAggregate, NoAggregate, "Brand of the device."},
	{Serial, "DCGM_FI_DEV_SERIAL", None, Label, Integer, NoAggregate, NoAggregate, "Serial number of the board."},
	{MinorNumber, "DCGM_FI_DEV_MINOR_NUMBER", None, Label, Integer, NoAggregate, NoAggregate, "Minor number of the device file."},
	{OEMInforomVersion, "DCGM_FI_DEV_OEM_INFOROM_VER", None, Label, Integer, NoAggregate, NoAggregate, "Version of the InfoROM's OEM object."},
	{ECCInforomVersion, "DCGM_FI_DEV_ECC_INFOROM_VER", None, Label, Integer, NoAggregate, NoAggregate, "Version of the InfoROM's ECC object."},
	{PowerInforomVersion, "DCGM_FI_DEV_POWER_INFOROM_VER", None, Label, Integer, NoAggregate, NoAggregate, "Version of the InfoROM's power object."},
	{InforomImageVersion, "DCGM_FI_DEV_INFOROM_IMAGE_VER", None, Label, Integer, NoAggregate, NoAggregate, "Version of the InfoROM image."},
	{VBIOSVersion, "DCGM_FI_DEV_VBIOS_VERSION", None, Label, Integer, NoAggregate, NoAggregate, "Version of the video BIOS."},

	{SMClock, "DCGM_FI_DEV_SM_CLOCK", Megahertz, Gauge, Integer, Mean, Mean, "Clock of the streaming multiprocessors (in MHz)."},
	{MemClock, "DCGM_FI_DEV_MEM_CLOCK", Megahertz, Gauge, Integer, Mean, Mean, "Clock of the memory (in MHz)."},
	{VideoClock, "DCGM_FI_DEV_VIDEO_CLOCK", Megahertz, Gauge, Integer, Mean, Mean, "Clock of the video engines (in MHz)."},
	{ClocksEventReasons, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", Bitmask, Gauge, Integer, NoAggregate, NoAggregate, "Bit mask of why the clocks are held below their maximum."},
	{MaxSMClock, "DCGM_FI_DEV_MAX_SM_CLOCK", Megahertz, Gauge, Integer, Mean, Mean, "Highest clock of the streaming multiprocessors (in MHz)."},
	{MaxMemClock, "DCGM_FI_DEV_MAX_MEM_CLOCK", Megahertz, Gauge, Integer, Mean, Mean, "Highest clock of the memory (in MHz)."},
	{MemoryTemp, "DCGM_FI_DEV_MEMORY_TEMP", Celsius, Gauge, Integer, Max, Max, "Temperature of the memory (in C)."},
	{GPUTemp, "DCGM_FI_DEV_GPU_TEMP", Celsius, Gauge, Integer, Max, Max, "Temperature of the GPU (in C)."},
	{PowerUsage, "DCGM_FI_DEV_POWER_USAGE", Watt, Gauge, Float, Sum, Sum, "Power drawn (in W)."},
	{TotalEnergy, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Millijoule, Counter, Integer, Rate, Rate, "Energy used since the driver was loaded (in mJ)."},
	{PowerUsageInstant, "DCGM_FI_DEV_POWER_USAGE_INSTANT", Watt, Gauge, Float, Sum, Sum, "Power drawn at this instant, not averaged (in W)."},
	{SlowdownTemp, "DCGM_FI_DEV_SLOWDOWN_TEMP", Celsius, Gauge, Integer, Max, Max, "Temperature at which the clocks are lowered (in C)."},
	{ShutdownTemp, "DCGM_FI_DEV_SHUTDOWN_TEMP", Celsius, Gauge, Integer, Max, Max, "Temperature at which the GPU shuts down (in C)."},
	{PowerMgmtLimit, "DCGM_FI_DEV_POWER_MGMT_LIMIT", Watt, Gauge, Float, Sum, Sum, "Power limit that was asked for (in W)."},
	{EnforcedPowerLimit, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", Watt, Gauge, Float, Sum, Sum, "Power limit in force, the lowest of all limiters (in W)."},
	{PState, "DCGM_FI_DEV_PSTATE", None, Gauge, Integer, NoAggregate, NoAggregate, "Performance state, 0 is the fastest."},
	{FanSpeed, "DCGM_FI_DEV_FAN_SPEED", Percent, Gauge, Integer, Max, Max, "Fan speed (in %)."},
	{PCIeReplayCounter, "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", None, Counter, Integer, Rate, Rate, "Number of PCIe retries."},
	{GPUUtil, "DCGM_FI_DEV_GPU_UTIL", Percent, Gauge, Integer, Mean, Mean, "Share of time in which a kernel ran (in %)."},
	{MemCopyUtil, "DCGM_FI_DEV_MEM_COPY_UTIL", Percent, Gauge, Integer, Mean, Mean, "Share of time in which memory was read or written (in %)."},
	{EncUtil, "DCGM_FI_DEV_ENC_UTIL", Percent, Gauge, Integer, Mean, Mean, "Utilisation of the encoder (in %)."},
	{DecUtil, "DCGM_FI_DEV_DEC_UTIL", Percent, Gauge, Integer, Mean, Mean, "Utilisation of the decoder (in %)."},
	{XIDErrors, "DCGM_FI_DEV_XID_ERRORS", None, Gauge, Integer, NoAggregate, NoAggregate, "Code of the last XID error, 0 while there was none."},
	{PCIeMaxLinkGen, "DCGM_FI_DEV_PCIE_MAX_LINK_GEN", None, Gauge, Integer, NoAggregate, NoAggregate, "Highest PCIe generation of the link."},
	{PCIeMaxLinkWidth, "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", None, Gauge, Integer, NoAggregate, NoAggregate, "Highest PCIe width of the link (lanes)."},
	{PCIeLinkGen, "DCGM_FI_DEV_PCIE_LINK_GEN", None, Gauge, Integer, NoAggregate, NoAggregate, "PCIe generation that the link runs at."},
	{PCIeLinkWidth, "DCGM_FI_DEV_PCIE_LINK_WIDTH", None, Gauge, Integer, NoAggregate, NoAggregate, "PCIe width that the link runs at (lanes)."},
	{PowerViolation, "DCGM_FI_DEV_POWER_VIOLATION", Nanosecond, Counter, Integer, Rate, Rate, "Time throttled by the power limit (in ns)."},
	{ThermalViolation, "DCGM_FI_DEV_THERMAL_VIOLATION", Nanosecond, Counter, Integer, Rate, Rate, "Time throttled by temperature (in ns)."},
	{SyncBoostViolation, "DCGM_FI_DEV_SYNC_BOOST_VIOLATION", Nanosecond, Counter, Integer, Rate, Rate, "Time throttled by sync boost (in ns)."},
	{BoardLimitViolation, "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", Nanosecond, Counter, Integer, Rate, Rate, "Time throttled by the board's limit (in ns)."},
	{LowUtilViolation, "DCGM_FI_DEV_LOW_UTIL_VIOLATION", Nanosecond, Counter, Integer, Rate, Rate, "Time throttled by low utilisation (in ns)."},
	{ReliabilityViolation, "DCGM_FI_DEV_RELIABILITY_VIOLATION", Nanosecond, Counter, Integer, Rate, Rate, "Time throttled by the board's reliability limit (in ns)."},
	{FBTotal, "DCGM_FI_DEV_FB_TOTAL", Mebibyte, Gauge, Integer, Sum, Sum, "Framebuffer memory in all (in MiB)."},
	{FBFree, "DCGM_FI_DEV_FB_FREE", Mebibyte, Gauge, Integer, Sum, Sum, "Framebuffer memory free (in MiB)."},
	{FBUsed, "DCGM_FI_DEV_FB_USED", Mebibyte, Gauge, Integer, Sum, Sum, "Framebuffer memory used (in MiB)."},
	{FBReserved, "DCGM_FI_DEV_FB_RESERVED", Mebibyte, Gauge, Integer, Sum, Sum, "Framebuffer memory reserved by the driver (in MiB)."},
	{FBUsedPercent, "DCGM_FI_DEV_FB_USED_PERCENT", Ratio, Gauge, Float, Mean, Mean, "Framebuffer memory used, of what is not reserved (0 to 1)."},
	{ECCSBEVolatile, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", None, Counter, Integer, Rate, Rate, "Single-bit ECC errors since the driver was loaded."},
	{ECCDBEVolatile, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", None, Counter, Integer, Rate, Rate, "Double-bit ECC errors since the driver was loaded."},
	{ECCSBEAggregate, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", None, Counter, Integer, Rate, Rate, "Single-bit ECC errors over the board's life."},
	{ECCDBEAggregate, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", None, Counter, Integer, Rate, Rate, "Double-bit ECC errors over the board's life."},
	{RetiredSBE, "DCGM_FI_DEV_RETIRED_SBE", None, Counter, Integer, Sum, Sum, "Pages retired for single-bit errors."},
	{RetiredDBE, "DCGM_FI_DEV_RETIRED_DBE", None, Counter, Integer, Sum, Sum, "Pages retired for double-bit errors."},
	{RetiredPending, "DCGM_FI_DEV_RETIRED_PENDING", None, Counter, Integer, Sum, Sum, "Pages that will be retired at the next reset."},
	{UncorrRemappedRows, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", None, Counter, Integer, Sum, Sum, "Rows remapped for uncorrectable errors."},
	{CorrRemappedRows, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", None, Counter, Integer, Sum, Sum, "Rows remapped for correctable errors."},
	{RowRemapFailure, "DCGM_FI_DEV_ROW_REMAP_FAILURE", None, Gauge, Integer, Max, Max, "1 if remapping a row has failed."},
	{RowRemapPending, "DCGM_FI_DEV_ROW_REMAP_PENDING", None, Gauge, Integer, Max, Max, "1 if a row will be remapped at the next reset."},
	{NVLinkCRCFlitErrors, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", None, Counter, Integer, Rate, Rate, "NVLink flow-control CRC errors, all links."},
	{NVLinkCRCDataErrors, "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", None, Counter, Integer, Rate, Rate, "NVLink data CRC errors, all links."},
	{NVLinkReplayErrors, "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", None, Counter, Integer, Rate, Rate, "NVLink retries, all links."},
	{NVLinkRecoveryErrors, "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", None, Counter, Integer, Rate, Rate, "NVLink recoveries, all links."},
	{NVLinkBandwidthL0, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0", MegabytesPerSecond, Counter, Integer, Sum, Sum, "Data over NVLink 0 (in MB/s)."},
	{NVLinkBandwidth, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", MegabytesPerSecond, Counter, Integer, Sum, Sum, "Data over all NVLinks (in MB/s)."},
	{VGPULicenseStatus, "DCGM_FI_DEV_VGPU_LICENSE_STATUS", None, Gauge, Integer, Max, Max, "1 if a vGPU licence is held."},

	{GREngineActive, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of time in which the graphics or compute engine was active (0 to 1)."},
	{SMActive, "DCGM_FI_PROF_SM_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of cycles in which an SM had a warp assigned, mean of all SMs (0 to 1)."},
	{SMOccupancy, "DCGM_FI_PROF_SM_OCCUPANCY", Ratio, Gauge, Float, Mean, Mean, "Resident warps, of the most that fit (0 to 1)."},
	{TensorActive, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of cycles in which the tensor pipe was active (0 to 1)."},
	{DRAMActive, "DCGM_FI_PROF_DRAM_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of cycles in which the device memory sent or received (0 to 1)."},
	{FP64Active, "DCGM_FI_PROF_PIPE_FP64_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of cycles in which the FP64 pipe was active (0 to 1)."},
	{FP32Active, "DCGM_FI_PROF_PIPE_FP32_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of cycles in which the FP32 pipe was active (0 to 1)."},
	{FP16Active, "DCGM_FI_PROF_PIPE_FP16_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of cycles in which the FP16 pipe was active (0 to 1)."},
	{PCIeTxBytes, "DCGM_FI_PROF_PCIE_TX_BYTES", BytesPerSecond, Gauge, Integer, Sum, Sum, "Data sent over PCIe (in bytes a second)."},
	{PCIeRxBytes, "DCGM_FI_PROF_PCIE_RX_BYTES", BytesPerSecond, Gauge, Integer, Sum, Sum, "Data received over PCIe (in bytes a second)."},
	{NVLinkTxBytes, "DCGM_FI_PROF_NVLINK_TX_BYTES", BytesPerSecond, Gauge, Integer, Sum, Sum, "Data sent over NVLink (in bytes a second)."},
	{NVLinkRxBytes, "DCGM_FI_PROF_NVLINK_RX_BYTES", BytesPerSecond, Gauge, Integer, Sum, Sum, "Data received over NVLink (in bytes a second)."},
	{TensorIMMAActive, "DCGM_FI_PROF_PIPE_TENSOR_IMMA_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of cycles in which the tensor pipe did integer products (0 to 1)."},
	{TensorHMMAActive, "DCGM_FI_PROF_PIPE_TENSOR_HMMA_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of cycles in which the tensor pipe did half-precision products (0 to 1)."},
	{TensorDFMAActive, "DCGM_FI_PROF_PIPE_TENSOR_DFMA_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of cycles in which the tensor pipe did double-precision products (0 to 1)."},
	{IntActive, "DCGM_FI_PROF_PIPE_INT_ACTIVE", Ratio, Gauge, Float, Mean, Mean, "Share of cycles in which the integer pipe was active (0 to 1)."},
}
