// SPDX-License-Identifier: Apache-2.0

package price

import (
	"strings"
)

// IsInstance reports whether a device is a MIG instance, by its UUID or by its GPU's UUID with
// its instance: MIG-…, or GPU-…/gi3.
func IsInstance(device string) bool {
	return strings.HasPrefix(device, "MIG-") || strings.Contains(device, "/gi")
}

// Slices returns the compute slices of a MIG profile, such as 3 of 3g.20gb. ok is false if the text
// is no profile.
func Slices(profile string) (n int, ok bool) {
	if c, rest, found := strings.Cut(profile, "c."); found { // a compute instance: 1c.3g.20gb
		if _, ok := digit(c); !ok {
			return 0, false
		}
		profile = rest
	}
	g, size, found := strings.Cut(profile, "g.")
	if n, ok = digit(g); !found || !ok || !strings.Contains(size, "gb") {
		return 0, false
	}
	return n, true
}

// Share returns the share of a GPU that so many of its compute slices are.
func Share(slices int, model string) float64 { return min(1, float64(slices)/slicesOf(model)) }

// Part returns the price of a device where a whole GPU of this model costs usd: of a MIG instance, its
// share of it. share is 0 where only the model's name can tell it. nil: the GPU has no price, or the
// instance's share is not known.
func Part(device string, share float64, model string, usd *float64) *float64 {
	if usd == nil || !IsInstance(device) {
		return usd
	}
	if share == 0 {
		share, _ = ModelShare(model)
	}
	if share == 0 {
		return nil
	}
	part := share * *usd
	return &part
}

func digit(s string) (n int, ok bool) {
	if len(s) != 1 || s[0] < '1' || s[0] > '7' {
		return 0, false
	}
	return int(s[0] - '0'), true
}

// slicesOf is the number of compute slices of a GPU that can be divided: 7 of A100, H100, H200
// and B200, 4 of A30 and RTX PRO 6000 (NVIDIA, "Multi-Instance GPU User Guide").
func slicesOf(model string) float64 {
	if w := words(model); len(w) > 0 && (w[0] == "a30" || w[0] == "rtx") {
		return 4
	}
	return 7
}

// ModelShare returns the share of a GPU's instances whose profile is a part of the model's name,
// as GPU feature discovery names the GPUs of a node that are all divided alike:
// NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.
func ModelShare(model string) (share float64, ok bool) {
	_, profile, found := strings.Cut(strings.ToLower(model), "-mig-")
	if !found {
		return 0, false
	}
	n, ok := Slices(profile)
	return Share(n, model), ok
}
