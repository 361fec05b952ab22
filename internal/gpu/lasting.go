// SPDX-License-Identifier: Apache-2.0

package gpu

// lasting are the fields that say what has happened to a device: the code of its last
// error, counts of errors, and memory that failed. The ids are DCGM's.
var lasting = [...]struct{ first, last FieldID }{
	{PCIeReplayCounter, PCIeReplayCounter},
	{XIDErrors, XIDErrors},
	{ECCSBEVolatile, 333}, // ECC errors by kind and place
	{RetiredSBE, RowRemapPending},
	{400, NVLinkRecoveryErrors}, // errors by kind and NVLink, and their sums
	{450, 474},
	{481, 493},
	{SwitchLinkFatal, SwitchLinkECC},
	{SwitchFatal, SwitchNonFatal},
	{SwitchResetRequired, SwitchResetRequired},
	{1204, 1214}, // errors of NVLink 5
	{1219, 1220},
	{1404, 1419},
	{1501, 1501}, // PCIe's correctable errors
}

// IsLasting reports whether the field says what has happened to the device, and not how
// it is now. Such a value stays when the device can no longer be read.
func (id FieldID) IsLasting() bool {
	for _, r := range lasting {
		if r.first <= id && id <= r.last {
			return true
		}
	}
	return false
}
