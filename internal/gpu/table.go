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

// The fields of parts, as in DCGM 4.6's dcgm_fields.h; see Part.
const (
	SwitchVoltage       FieldID = 701
	SwitchPowerVDD      FieldID = 705
	SwitchPowerDVDD     FieldID = 706
	SwitchPowerHVDD     FieldID = 707
	SwitchLinkTx        FieldID = 780
	SwitchLinkRx        FieldID = 781
	SwitchLinkFatal     FieldID = 782
	SwitchLinkNonFatal  FieldID = 783
	SwitchLinkReplay    FieldID = 784
	SwitchLinkRecovery  FieldID = 785
	SwitchLinkFlit      FieldID = 786
	SwitchLinkCRC       FieldID = 787
	SwitchLinkECC       FieldID = 788
	SwitchFatal         FieldID = 856
	SwitchNonFatal      FieldID = 857
	SwitchTemp          FieldID = 858
	SwitchSlowdownTemp  FieldID = 859
	SwitchShutdownTemp  FieldID = 860
	SwitchTx            FieldID = 861
	SwitchRx            FieldID = 862
	SwitchPhysicalID    FieldID = 863
	SwitchResetRequired FieldID = 864
	SwitchLinkID        FieldID = 865
	SwitchLinkStatus    FieldID = 870
	SwitchLinkType      FieldID = 871
	CPUUtil             FieldID = 1100
	CPUUtilUser         FieldID = 1101
	CPUUtilNice         FieldID = 1102
	CPUUtilSys          FieldID = 1103
	CPUUtilIRQ          FieldID = 1104
	CPUTemp             FieldID = 1110
	CPUTempWarning      FieldID = 1111
	CPUTempCritical     FieldID = 1112
	CPUClock            FieldID = 1120
	CPUPower            FieldID = 1130
	CPUPowerLimit       FieldID = 1131
	SysIOPower          FieldID = 1132
	ModulePower         FieldID = 1133
	CPUVendor           FieldID = 1140
	CPUModel            FieldID = 1141
)

// numPartFields is the number of the table's rows for parts, which are the last
// ones.
const (
	numPartFields = 40
	numGPUFields  = len(table) - numPartFields
)

// table has the fields of GPUs sorted by id, then those of parts sorted by id,
// which a test checks. Rows with a number instead of a name are fields that
// only DCGM gives and that the code does not use; collectors files can.
var table = [...]Field{
	{DriverVersion, "DCGM_FI_DRIVER_VERSION", None, Label, Integer, NoAggregate, NoAggregate, "Version of the NVIDIA driver."},
	{NVMLVersion, "DCGM_FI_NVML_VERSION", None, Label, Integer, NoAggregate, NoAggregate, "Version of the NVML library."},
	{4, "DCGM_FI_DEV_COUNT", None, Gauge, Integer, NoAggregate, NoAggregate, "Number of GPUs of the node."},
	{CUDADriverVersion, "DCGM_FI_CUDA_DRIVER_VERSION", None, Label, Integer, NoAggregate, NoAggregate, "CUDA version that the driver supports, major*1000+minor*10."},
	{Brand, "DCGM_FI_DEV_BRAND", None, Label, Integer, NoAggregate, NoAggregate, "Brand of the device."},
	{52, "DCGM_FI_DEV_NVML_INDEX", None, Gauge, Integer, NoAggregate, NoAggregate, "NVML index of the GPU."},
	{Serial, "DCGM_FI_DEV_SERIAL", None, Label, Integer, NoAggregate, NoAggregate, "Serial number of the board."},
	{MinorNumber, "DCGM_FI_DEV_MINOR_NUMBER", None, Label, Integer, NoAggregate, NoAggregate, "Minor number of the device file."},
	{OEMInforomVersion, "DCGM_FI_DEV_OEM_INFOROM_VER", None, Label, Integer, NoAggregate, NoAggregate, "Version of the InfoROM's OEM object."},
	{65, "DCGM_FI_DEV_COMPUTE_MODE", None, Gauge, Integer, NoAggregate, NoAggregate, "Compute mode: 0 default, 2 prohibited, 3 one process."},
	{66, "DCGM_FI_DEV_PERSISTENCE_MODE", None, Gauge, Integer, NoAggregate, NoAggregate, "1 if the driver stays loaded without users."},
	{67, "DCGM_FI_DEV_MIG_MODE", None, Gauge, Integer, NoAggregate, NoAggregate, "1 if MIG is on."},
	{69, "DCGM_FI_DEV_MIG_MAX_SLICES", None, Gauge, Integer, NoAggregate, NoAggregate, "Most slices that MIG can cut the GPU into."},
	{74, "DCGM_FI_DEV_CC_MODE", None, Gauge, Integer, NoAggregate, NoAggregate, "1 if confidential computing is on."},
	{ECCInforomVersion, "DCGM_FI_DEV_ECC_INFOROM_VER", None, Label, Integer, NoAggregate, NoAggregate, "Version of the InfoROM's ECC object."},
	{PowerInforomVersion, "DCGM_FI_DEV_POWER_INFOROM_VER", None, Label, Integer, NoAggregate, NoAggregate, "Version of the InfoROM's power object."},
	{InforomImageVersion, "DCGM_FI_DEV_INFOROM_IMAGE_VER", None, Label, Integer, NoAggregate, NoAggregate, "Version of the InfoROM image."},
	{83, "DCGM_FI_DEV_INFOROM_CONFIG_CHECK", None, Gauge, Integer, NoAggregate, NoAggregate, "Checksum of the inforom."},
	{84, "DCGM_FI_DEV_INFOROM_CONFIG_VALID", None, Gauge, Integer, NoAggregate, NoAggregate, "1 if the inforom is valid."},
	{VBIOSVersion, "DCGM_FI_DEV_VBIOS_VERSION", None, Label, Integer, NoAggregate, NoAggregate, "Version of the video BIOS."},

	{90, "DCGM_FI_DEV_BAR1_TOTAL", Mebibyte, Gauge, Integer, NoAggregate, NoAggregate, "BAR1 memory in all (in MiB)."},
	{91, "DCGM_FI_SYNC_BOOST", None, Gauge, Integer, NoAggregate, NoAggregate, "1 if clocks are boosted together with other GPUs."},
	{92, "DCGM_FI_DEV_BAR1_USED", Mebibyte, Gauge, Integer, NoAggregate, NoAggregate, "BAR1 memory used (in MiB)."},
	{93, "DCGM_FI_DEV_BAR1_FREE", Mebibyte, Gauge, Integer, NoAggregate, NoAggregate, "BAR1 memory free (in MiB)."},
	{SMClock, "DCGM_FI_DEV_SM_CLOCK", Megahertz, Gauge, Integer, Mean, Mean, "Clock of the streaming multiprocessors (in MHz)."},
	{MemClock, "DCGM_FI_DEV_MEM_CLOCK", Megahertz, Gauge, Integer, Mean, Mean, "Clock of the memory (in MHz)."},
	{VideoClock, "DCGM_FI_DEV_VIDEO_CLOCK", Megahertz, Gauge, Integer, Mean, Mean, "Clock of the video engines (in MHz)."},
	{110, "DCGM_FI_DEV_APP_SM_CLOCK", Megahertz, Gauge, Integer, NoAggregate, NoAggregate, "Clock of the streaming multiprocessors that applications asked for (in MHz)."},
	{111, "DCGM_FI_DEV_APP_MEM_CLOCK", Megahertz, Gauge, Integer, NoAggregate, NoAggregate, "Clock of the memory that applications asked for (in MHz)."},
	{ClocksEventReasons, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", Bitmask, Gauge, Integer, NoAggregate, NoAggregate, "Bit mask of why the clocks are held below their maximum."},
	{MaxSMClock, "DCGM_FI_DEV_MAX_SM_CLOCK", Megahertz, Gauge, Integer, Mean, Mean, "Highest clock of the streaming multiprocessors (in MHz)."},
	{MaxMemClock, "DCGM_FI_DEV_MAX_MEM_CLOCK", Megahertz, Gauge, Integer, Mean, Mean, "Highest clock of the memory (in MHz)."},
	{115, "DCGM_FI_DEV_MAX_VIDEO_CLOCK", Megahertz, Gauge, Integer, NoAggregate, NoAggregate, "Highest clock of the video engines (in MHz)."},
	{120, "DCGM_FI_DEV_AUTOBOOST", None, Gauge, Integer, NoAggregate, NoAggregate, "1 if clocks are boosted by themselves."},
	{MemoryTemp, "DCGM_FI_DEV_MEMORY_TEMP", Celsius, Gauge, Integer, Max, Max, "Temperature of the memory (in C)."},
	{GPUTemp, "DCGM_FI_DEV_GPU_TEMP", Celsius, Gauge, Integer, Max, Max, "Temperature of the GPU (in C)."},
	{151, "DCGM_FI_DEV_MEM_MAX_OP_TEMP", Celsius, Gauge, Integer, NoAggregate, NoAggregate, "Highest temperature at which the memory may work (in C)."},
	{152, "DCGM_FI_DEV_GPU_MAX_OP_TEMP", Celsius, Gauge, Integer, NoAggregate, NoAggregate, "Highest temperature at which the GPU may work (in C)."},
	{PowerUsage, "DCGM_FI_DEV_POWER_USAGE", Watt, Gauge, Float, Sum, Sum, "Power drawn (in W)."},
	{TotalEnergy, "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", Millijoule, Counter, Integer, Rate, Rate, "Energy used since the driver was loaded (in mJ)."},
	{PowerUsageInstant, "DCGM_FI_DEV_POWER_USAGE_INSTANT", Watt, Gauge, Float, Sum, Sum, "Power drawn at this instant, not averaged (in W)."},
	{SlowdownTemp, "DCGM_FI_DEV_SLOWDOWN_TEMP", Celsius, Gauge, Integer, Max, Max, "Temperature at which the clocks are lowered (in C)."},
	{ShutdownTemp, "DCGM_FI_DEV_SHUTDOWN_TEMP", Celsius, Gauge, Integer, Max, Max, "Temperature at which the GPU shuts down (in C)."},
	{PowerMgmtLimit, "DCGM_FI_DEV_POWER_MGMT_LIMIT", Watt, Gauge, Float, Sum, Sum, "Power limit that was asked for (in W)."},
	{161, "DCGM_FI_DEV_POWER_MGMT_LIMIT_MIN", Watt, Gauge, Float, NoAggregate, NoAggregate, "Lowest power limit that can be set (in W)."},
	{162, "DCGM_FI_DEV_POWER_MGMT_LIMIT_MAX", Watt, Gauge, Float, NoAggregate, NoAggregate, "Highest power limit that can be set (in W)."},
	{163, "DCGM_FI_DEV_POWER_MGMT_LIMIT_DEF", Watt, Gauge, Float, NoAggregate, NoAggregate, "Power limit by default (in W)."},
	{EnforcedPowerLimit, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", Watt, Gauge, Float, Sum, Sum, "Power limit in force, the lowest of all limiters (in W)."},
	{170, "DCGM_FI_DEV_FABRIC_MANAGER_STATUS", None, Gauge, Integer, NoAggregate, NoAggregate, "State of the fabric manager, as DCGM numbers it."},
	{173, "DCGM_FI_DEV_FABRIC_CLIQUE_ID", None, Gauge, Integer, NoAggregate, NoAggregate, "Id of the GPU's clique in the NVLink fabric."},
	{174, "DCGM_FI_DEV_FABRIC_HEALTH_MASK", None, Gauge, Integer, NoAggregate, NoAggregate, "Health of the NVLink fabric, as NVML's bits."},
	{175, "DCGM_FI_DEV_FABRIC_HEALTH_SUMMARY", None, Gauge, Integer, NoAggregate, NoAggregate, "Health of the NVLink fabric: 1 healthy, 2 unhealthy, 3 limited."},
	{PState, "DCGM_FI_DEV_PSTATE", None, Gauge, Integer, NoAggregate, NoAggregate, "Performance state, 0 is the fastest."},
	{FanSpeed, "DCGM_FI_DEV_FAN_SPEED", Percent, Gauge, Integer, Max, Max, "Fan speed (in %)."},
	{200, "DCGM_FI_DEV_PCIE_TX_THROUGHPUT", None, Gauge, Integer, NoAggregate, NoAggregate, "Data sent over PCIe (in KB/s)."},
	{201, "DCGM_FI_DEV_PCIE_RX_THROUGHPUT", None, Gauge, Integer, NoAggregate, NoAggregate, "Data received over PCIe (in KB/s)."},
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
	{246, "DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION", None, Counter, Integer, NoAggregate, NoAggregate, "Time below the clocks that applications asked for, as DCGM counts it."},
	{247, "DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION", None, Counter, Integer, NoAggregate, NoAggregate, "Time below the base clocks, as DCGM counts it."},
	{FBTotal, "DCGM_FI_DEV_FB_TOTAL", Mebibyte, Gauge, Integer, Sum, Sum, "Framebuffer memory in all (in MiB)."},
	{FBFree, "DCGM_FI_DEV_FB_FREE", Mebibyte, Gauge, Integer, Sum, Sum, "Framebuffer memory free (in MiB)."},
	{FBUsed, "DCGM_FI_DEV_FB_USED", Mebibyte, Gauge, Integer, Sum, Sum, "Framebuffer memory used (in MiB)."},
	{FBReserved, "DCGM_FI_DEV_FB_RESERVED", Mebibyte, Gauge, Integer, Sum, Sum, "Framebuffer memory reserved by the driver (in MiB)."},
	{FBUsedPercent, "DCGM_FI_DEV_FB_USED_PERCENT", Ratio, Gauge, Float, Mean, Mean, "Framebuffer memory used, of what is not reserved (0 to 1)."},
	{285, "DCGM_FI_DEV_C2C_LINK_COUNT", None, Gauge, Integer, NoAggregate, NoAggregate, "Number of links to the CPU (C2C)."},
	{286, "DCGM_FI_DEV_C2C_LINK_STATUS", None, Gauge, Integer, NoAggregate, NoAggregate, "1 if the links to the CPU (C2C) are up."},
	{287, "DCGM_FI_DEV_C2C_MAX_BANDWIDTH", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Speed of the links to the CPU (C2C, in MB/s)."},
	{300, "DCGM_FI_DEV_ECC_CURRENT", None, Gauge, Integer, NoAggregate, NoAggregate, "1 if ECC is on."},
	{301, "DCGM_FI_DEV_ECC_PENDING", None, Gauge, Integer, NoAggregate, NoAggregate, "1 if ECC will be on after the next reboot."},
	{ECCSBEVolatile, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", None, Counter, Integer, Rate, Rate, "Single-bit ECC errors since the driver was loaded."},
	{ECCDBEVolatile, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", None, Counter, Integer, Rate, Rate, "Double-bit ECC errors since the driver was loaded."},
	{ECCSBEAggregate, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", None, Counter, Integer, Rate, Rate, "Single-bit ECC errors over the board's life."},
	{ECCDBEAggregate, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", None, Counter, Integer, Rate, Rate, "Double-bit ECC errors over the board's life."},
	{314, "DCGM_FI_DEV_ECC_SBE_VOL_L1", None, Counter, Integer, NoAggregate, NoAggregate, "Corrected memory errors in the L1 cache, since the driver was loaded."},
	{315, "DCGM_FI_DEV_ECC_DBE_VOL_L1", None, Counter, Integer, NoAggregate, NoAggregate, "Uncorrected memory errors in the L1 cache, since the driver was loaded."},
	{316, "DCGM_FI_DEV_ECC_SBE_VOL_L2", None, Counter, Integer, NoAggregate, NoAggregate, "Corrected memory errors in the L2 cache, since the driver was loaded."},
	{317, "DCGM_FI_DEV_ECC_DBE_VOL_L2", None, Counter, Integer, NoAggregate, NoAggregate, "Uncorrected memory errors in the L2 cache, since the driver was loaded."},
	{318, "DCGM_FI_DEV_ECC_SBE_VOL_DEV", None, Counter, Integer, NoAggregate, NoAggregate, "Corrected memory errors in the device memory, since the driver was loaded."},
	{319, "DCGM_FI_DEV_ECC_DBE_VOL_DEV", None, Counter, Integer, NoAggregate, NoAggregate, "Uncorrected memory errors in the device memory, since the driver was loaded."},
	{320, "DCGM_FI_DEV_ECC_SBE_VOL_REG", None, Counter, Integer, NoAggregate, NoAggregate, "Corrected memory errors in the register file, since the driver was loaded."},
	{321, "DCGM_FI_DEV_ECC_DBE_VOL_REG", None, Counter, Integer, NoAggregate, NoAggregate, "Uncorrected memory errors in the register file, since the driver was loaded."},
	{322, "DCGM_FI_DEV_ECC_SBE_VOL_TEX", None, Counter, Integer, NoAggregate, NoAggregate, "Corrected memory errors in the texture memory, since the driver was loaded."},
	{323, "DCGM_FI_DEV_ECC_DBE_VOL_TEX", None, Counter, Integer, NoAggregate, NoAggregate, "Uncorrected memory errors in the texture memory, since the driver was loaded."},
	{324, "DCGM_FI_DEV_ECC_SBE_AGG_L1", None, Counter, Integer, NoAggregate, NoAggregate, "Corrected memory errors in the L1 cache, in the GPU's life."},
	{325, "DCGM_FI_DEV_ECC_DBE_AGG_L1", None, Counter, Integer, NoAggregate, NoAggregate, "Uncorrected memory errors in the L1 cache, in the GPU's life."},
	{326, "DCGM_FI_DEV_ECC_SBE_AGG_L2", None, Counter, Integer, NoAggregate, NoAggregate, "Corrected memory errors in the L2 cache, in the GPU's life."},
	{327, "DCGM_FI_DEV_ECC_DBE_AGG_L2", None, Counter, Integer, NoAggregate, NoAggregate, "Uncorrected memory errors in the L2 cache, in the GPU's life."},
	{328, "DCGM_FI_DEV_ECC_SBE_AGG_DEV", None, Counter, Integer, NoAggregate, NoAggregate, "Corrected memory errors in the device memory, in the GPU's life."},
	{329, "DCGM_FI_DEV_ECC_DBE_AGG_DEV", None, Counter, Integer, NoAggregate, NoAggregate, "Uncorrected memory errors in the device memory, in the GPU's life."},
	{330, "DCGM_FI_DEV_ECC_SBE_AGG_REG", None, Counter, Integer, NoAggregate, NoAggregate, "Corrected memory errors in the register file, in the GPU's life."},
	{331, "DCGM_FI_DEV_ECC_DBE_AGG_REG", None, Counter, Integer, NoAggregate, NoAggregate, "Uncorrected memory errors in the register file, in the GPU's life."},
	{332, "DCGM_FI_DEV_ECC_SBE_AGG_TEX", None, Counter, Integer, NoAggregate, NoAggregate, "Corrected memory errors in the texture memory, in the GPU's life."},
	{333, "DCGM_FI_DEV_ECC_DBE_AGG_TEX", None, Counter, Integer, NoAggregate, NoAggregate, "Uncorrected memory errors in the texture memory, in the GPU's life."},
	{385, "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX", None, Gauge, Integer, NoAggregate, NoAggregate, "Memory banks with all rows left for remapping."},
	{386, "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_HIGH", None, Gauge, Integer, NoAggregate, NoAggregate, "Memory banks with many rows left for remapping."},
	{387, "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_PARTIAL", None, Gauge, Integer, NoAggregate, NoAggregate, "Memory banks with some rows left for remapping."},
	{388, "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_LOW", None, Gauge, Integer, NoAggregate, NoAggregate, "Memory banks with few rows left for remapping."},
	{389, "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_NONE", None, Gauge, Integer, NoAggregate, NoAggregate, "Memory banks with no rows left for remapping."},
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
	{441, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L1", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 1 (in MB/s)."},
	{442, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L2", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 2 (in MB/s)."},
	{443, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L3", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 3 (in MB/s)."},
	{444, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L4", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 4 (in MB/s)."},
	{445, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L5", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 5 (in MB/s)."},
	{446, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L12", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 12 (in MB/s)."},
	{447, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L13", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 13 (in MB/s)."},
	{448, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L14", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 14 (in MB/s)."},
	{NVLinkBandwidth, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", MegabytesPerSecond, Counter, Integer, Sum, Sum, "Data over all NVLinks (in MB/s)."},
	{450, "DCGM_FI_DEV_GPU_NVLINK_ERRORS", None, Gauge, Integer, NoAggregate, NoAggregate, "Kind of the last NVLink error."},
	{475, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L6", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 6 (in MB/s)."},
	{476, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L7", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 7 (in MB/s)."},
	{477, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L8", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 8 (in MB/s)."},
	{478, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L9", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 9 (in MB/s)."},
	{479, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L10", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 10 (in MB/s)."},
	{480, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L11", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 11 (in MB/s)."},
	{494, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L15", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 15 (in MB/s)."},
	{495, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L16", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 16 (in MB/s)."},
	{496, "DCGM_FI_DEV_NVLINK_BANDWIDTH_L17", MegabytesPerSecond, Gauge, Integer, NoAggregate, NoAggregate, "Data over NVLink 17 (in MB/s)."},
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
	{1017, "DCGM_FI_PROF_NVDEC0_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which decoder 0 was active (0 to 1)."},
	{1018, "DCGM_FI_PROF_NVDEC1_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which decoder 1 was active (0 to 1)."},
	{1019, "DCGM_FI_PROF_NVDEC2_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which decoder 2 was active (0 to 1)."},
	{1020, "DCGM_FI_PROF_NVDEC3_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which decoder 3 was active (0 to 1)."},
	{1021, "DCGM_FI_PROF_NVDEC4_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which decoder 4 was active (0 to 1)."},
	{1022, "DCGM_FI_PROF_NVDEC5_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which decoder 5 was active (0 to 1)."},
	{1023, "DCGM_FI_PROF_NVDEC6_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which decoder 6 was active (0 to 1)."},
	{1024, "DCGM_FI_PROF_NVDEC7_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which decoder 7 was active (0 to 1)."},
	{1025, "DCGM_FI_PROF_NVJPG0_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which JPEG decoder 0 was active (0 to 1)."},
	{1026, "DCGM_FI_PROF_NVJPG1_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which JPEG decoder 1 was active (0 to 1)."},
	{1027, "DCGM_FI_PROF_NVJPG2_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which JPEG decoder 2 was active (0 to 1)."},
	{1028, "DCGM_FI_PROF_NVJPG3_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which JPEG decoder 3 was active (0 to 1)."},
	{1029, "DCGM_FI_PROF_NVJPG4_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which JPEG decoder 4 was active (0 to 1)."},
	{1030, "DCGM_FI_PROF_NVJPG5_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which JPEG decoder 5 was active (0 to 1)."},
	{1031, "DCGM_FI_PROF_NVJPG6_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which JPEG decoder 6 was active (0 to 1)."},
	{1032, "DCGM_FI_PROF_NVJPG7_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which JPEG decoder 7 was active (0 to 1)."},
	{1033, "DCGM_FI_PROF_NVOFA0_ACTIVE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of cycles in which the optical flow engine was active (0 to 1)."},

	{SwitchVoltage, "DCGM_FI_DEV_NVSWITCH_VOLTAGE_MVOLT", None, Gauge, Integer, NoAggregate, NoAggregate, "Voltage of the NvSwitch (in mV)."},
	{SwitchPowerVDD, "DCGM_FI_DEV_NVSWITCH_POWER_VDD", Watt, Gauge, Integer, NoAggregate, NoAggregate, "Power of the NvSwitch's VDD rail (in W)."},
	{SwitchPowerDVDD, "DCGM_FI_DEV_NVSWITCH_POWER_DVDD", Watt, Gauge, Integer, NoAggregate, NoAggregate, "Power of the NvSwitch's DVDD rail (in W)."},
	{SwitchPowerHVDD, "DCGM_FI_DEV_NVSWITCH_POWER_HVDD", Watt, Gauge, Integer, NoAggregate, NoAggregate, "Power of the NvSwitch's HVDD rail (in W)."},
	{SwitchLinkTx, "DCGM_FI_DEV_NVSWITCH_LINK_THROUGHPUT_TX", None, Counter, Integer, NoAggregate, NoAggregate, "Data sent over the link, as DCGM counts it."},
	{SwitchLinkRx, "DCGM_FI_DEV_NVSWITCH_LINK_THROUGHPUT_RX", None, Counter, Integer, NoAggregate, NoAggregate, "Data received over the link, as DCGM counts it."},
	{SwitchLinkFatal, "DCGM_FI_DEV_NVSWITCH_LINK_FATAL_ERRORS", None, Counter, Integer, NoAggregate, NoAggregate, "Fatal errors of the link."},
	{SwitchLinkNonFatal, "DCGM_FI_DEV_NVSWITCH_LINK_NON_FATAL_ERRORS", None, Counter, Integer, NoAggregate, NoAggregate, "Errors of the link that were not fatal."},
	{SwitchLinkReplay, "DCGM_FI_DEV_NVSWITCH_LINK_REPLAY_ERRORS", None, Counter, Integer, NoAggregate, NoAggregate, "Retries of the link."},
	{SwitchLinkRecovery, "DCGM_FI_DEV_NVSWITCH_LINK_RECOVERY_ERRORS", None, Counter, Integer, NoAggregate, NoAggregate, "Recoveries of the link."},
	{SwitchLinkFlit, "DCGM_FI_DEV_NVSWITCH_LINK_FLIT_ERRORS", None, Counter, Integer, NoAggregate, NoAggregate, "Flow-control errors of the link."},
	{SwitchLinkCRC, "DCGM_FI_DEV_NVSWITCH_LINK_CRC_ERRORS", None, Counter, Integer, NoAggregate, NoAggregate, "CRC errors of the link."},
	{SwitchLinkECC, "DCGM_FI_DEV_NVSWITCH_LINK_ECC_ERRORS", None, Counter, Integer, NoAggregate, NoAggregate, "ECC errors of the link."},
	{SwitchFatal, "DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", None, Gauge, Integer, NoAggregate, NoAggregate, "Code of the NvSwitch's last fatal error (SXid)."},
	{SwitchNonFatal, "DCGM_FI_DEV_NVSWITCH_NON_FATAL_ERRORS", None, Gauge, Integer, NoAggregate, NoAggregate, "Code of the NvSwitch's last error that was not fatal (SXid)."},
	{SwitchTemp, "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT", Celsius, Gauge, Integer, NoAggregate, NoAggregate, "Temperature of the NvSwitch (in C)."},
	{SwitchSlowdownTemp, "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_LIMIT_SLOWDOWN", Celsius, Gauge, Integer, NoAggregate, NoAggregate, "Temperature at which the NvSwitch slows down (in C)."},
	{SwitchShutdownTemp, "DCGM_FI_DEV_NVSWITCH_TEMPERATURE_LIMIT_SHUTDOWN", Celsius, Gauge, Integer, NoAggregate, NoAggregate, "Temperature at which the NvSwitch shuts down (in C)."},
	{SwitchTx, "DCGM_FI_DEV_NVSWITCH_THROUGHPUT_TX", None, Counter, Integer, NoAggregate, NoAggregate, "Data sent over the NvSwitch, as DCGM counts it."},
	{SwitchRx, "DCGM_FI_DEV_NVSWITCH_THROUGHPUT_RX", None, Counter, Integer, NoAggregate, NoAggregate, "Data received over the NvSwitch, as DCGM counts it."},
	{SwitchPhysicalID, "DCGM_FI_DEV_NVSWITCH_PHYS_ID", None, Gauge, Integer, NoAggregate, NoAggregate, "Physical id of the NvSwitch."},
	{SwitchResetRequired, "DCGM_FI_DEV_NVSWITCH_RESET_REQUIRED", None, Gauge, Integer, NoAggregate, NoAggregate, "1 if the NvSwitch needs a reset."},
	{SwitchLinkID, "DCGM_FI_DEV_NVSWITCH_LINK_ID", None, Gauge, Integer, NoAggregate, NoAggregate, "Id of the link."},
	{SwitchLinkStatus, "DCGM_FI_DEV_NVSWITCH_LINK_STATUS", None, Gauge, Integer, NoAggregate, NoAggregate, "State of the link: 0 off, 1 safe, 2 active, 3 error."},
	{SwitchLinkType, "DCGM_FI_DEV_NVSWITCH_LINK_TYPE", None, Gauge, Integer, NoAggregate, NoAggregate, "What is at the link's other end: 1 a GPU, 2 a switch."},
	{CPUUtil, "DCGM_FI_DEV_CPU_UTIL_TOTAL", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of time in which the CPU was busy (0 to 1)."},
	{CPUUtilUser, "DCGM_FI_DEV_CPU_UTIL_USER", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of time in user mode (0 to 1)."},
	{CPUUtilNice, "DCGM_FI_DEV_CPU_UTIL_NICE", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of time in user mode at low priority (0 to 1)."},
	{CPUUtilSys, "DCGM_FI_DEV_CPU_UTIL_SYS", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of time in the kernel (0 to 1)."},
	{CPUUtilIRQ, "DCGM_FI_DEV_CPU_UTIL_IRQ", Ratio, Gauge, Float, NoAggregate, NoAggregate, "Share of time serving interrupts (0 to 1)."},
	{CPUTemp, "DCGM_FI_DEV_CPU_TEMP_CURRENT", Celsius, Gauge, Float, NoAggregate, NoAggregate, "Temperature of the CPU (in C)."},
	{CPUTempWarning, "DCGM_FI_DEV_CPU_TEMP_WARNING", Celsius, Gauge, Float, NoAggregate, NoAggregate, "Temperature at which the CPU warns (in C)."},
	{CPUTempCritical, "DCGM_FI_DEV_CPU_TEMP_CRITICAL", Celsius, Gauge, Float, NoAggregate, NoAggregate, "Temperature that is critical for the CPU (in C)."},
	{CPUClock, "DCGM_FI_DEV_CPU_CLOCK_CURRENT", None, Gauge, Integer, NoAggregate, NoAggregate, "Clock of the CPU, as DCGM gives it."},
	{CPUPower, "DCGM_FI_DEV_CPU_POWER_UTIL_CURRENT", Watt, Gauge, Float, NoAggregate, NoAggregate, "Power that the CPU draws (in W)."},
	{CPUPowerLimit, "DCGM_FI_DEV_CPU_POWER_LIMIT", Watt, Gauge, Float, NoAggregate, NoAggregate, "Power limit of the CPU (in W)."},
	{SysIOPower, "DCGM_FI_DEV_SYSIO_POWER_UTIL_CURRENT", Watt, Gauge, Float, NoAggregate, NoAggregate, "Power that the CPU's input and output draws (in W)."},
	{ModulePower, "DCGM_FI_DEV_MODULE_POWER_UTIL_CURRENT", Watt, Gauge, Float, NoAggregate, NoAggregate, "Power that CPU and GPU of the module draw (in W)."},
	{CPUVendor, "DCGM_FI_DEV_CPU_VENDOR", None, Label, Integer, NoAggregate, NoAggregate, "Vendor of the CPU."},
	{CPUModel, "DCGM_FI_DEV_CPU_MODEL", None, Label, Integer, NoAggregate, NoAggregate, "Model of the CPU."},
}
