// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Owner is a container that holds a device, or a share of one.
type Owner struct {
	Namespace string
	Pod       string
	Container string
	Replica   string // the share's id on a time-sliced or MPS device; empty if the owner holds the whole device
	Claim     *Claim // the resource claim; nil: allocated by a device plugin
}

// Claim is a device that a container holds through a resource claim (DRA).
// Claims are immutable; equal claims of one source have the same address.
type Claim struct {
	Namespace, Name      string // of the ResourceClaim
	Driver, Pool, Device string // as its ResourceSlice names the device
	MIGProfile, MIGUUID  string // empty: not a MIG device, or unknown
	ParentUUID           string // of a MIG device's GPU; empty: not a MIG device, or unknown
}

// Allocation is one device of one container, under the kubelet's names.
type Allocation struct {
	Resource string // such as nvidia.com/gpu
	DeviceID string // the device plugin's id, see ParseDeviceID; POOL/DEVICE for a claim whose device is unknown
	Owner    Owner
	// Uncounted says that DeviceID names a GPU, but Resource is no name that
	// counts: nothing is attributed.
	Uncounted bool
}

// DeviceID is a parsed device plugin's id. Either UUID or Minor (≥ 0) is set.
type DeviceID struct {
	UUID        string // GPU-… or MIG-…
	Minor       int    // N of nvidiaN, or -1
	GPUInstance int    // of GKE's nvidiaN/giM, or -1
	Replica     string // of UUID::k or …/vgpuK, or empty
}

// ParseDeviceID parses the ids of NVIDIA's and GKE's device plugins: a GPU's or
// MIG device's UUID, UUID::k for share k of a time-sliced GPU, nvidiaN,
// nvidiaN/giM, and the last two with /vgpuK. ok is false for other ids.
func ParseDeviceID(s string) (DeviceID, bool) {
	id := DeviceID{Minor: -1, GPUInstance: -1}
	if uuid, k, found := strings.Cut(s, "::"); found {
		s, id.Replica = uuid, k
	}
	parts := strings.Split(s, "/")
	for _, p := range parts[1:] {
		switch {
		case strings.HasPrefix(p, "vgpu") && len(p) > 4:
			id.Replica = p[4:]
		case strings.HasPrefix(p, "gi") && len(p) > 2:
			n, err := strconv.ParseUint(p[2:], 10, 16)
			if err != nil {
				return DeviceID{}, false
			}
			id.GPUInstance = int(n)
		default:
			// MIG-GPU-<uuid>/<gi>/<ci>, the UUID form of drivers before 470.
			if strings.HasPrefix(s, "MIG-GPU-") {
				id.UUID = s
				return id, true
			}
			return DeviceID{}, false
		}
	}
	head := parts[0]
	if n, ok := strings.CutPrefix(head, "nvidia"); ok {
		minor, err := strconv.ParseUint(n, 10, 16)
		if err != nil {
			return DeviceID{}, false
		}
		id.Minor = int(minor)
		return id, true
	}
	if !strings.HasPrefix(head, "GPU-") && !strings.HasPrefix(head, "MIG-") {
		return DeviceID{}, false
	}
	id.UUID = head
	return id, true
}

// Matches reports whether the id names device d.
func (id DeviceID) Matches(d *Device) bool {
	if id.UUID != "" {
		return id.UUID == d.UUID
	}
	minor := d.Minor
	if minor < 0 { // unknown; usually it equals the index
		minor = d.Index
	}
	if id.Minor != minor {
		return false
	}
	if id.GPUInstance >= 0 {
		return d.MIG != nil && d.MIG.GPUInstance == id.GPUInstance
	}
	return d.MIG == nil
}

// Attribute sets the owners of each device, in place, and returns the
// allocations that match no device.
func Attribute(devices []DeviceSnapshot, allocs []Allocation) (unmatched []Allocation) {
	for i := range devices {
		devices[i].Owners = nil
	}
	for _, a := range allocs {
		if !attribute(devices, a) {
			unmatched = append(unmatched, a)
		}
	}
	for i := range devices {
		slices.SortFunc(devices[i].Owners, compareOwners)
		devices[i].Owners = slices.Compact(devices[i].Owners)
	}
	return unmatched
}

func attribute(devices []DeviceSnapshot, a Allocation) bool {
	if a.Uncounted {
		return false
	}
	id, ok := ParseDeviceID(a.DeviceID)
	for i := range devices {
		if ok && id.Matches(&devices[i].Device) {
			o := a.Owner
			o.Replica = id.Replica
			devices[i].Owners = append(devices[i].Owners, o)
			return true
		}
	}
	return attributeToParent(devices, a)
}

// attributeToParent attributes a claim's MIG device that is not listed to its
// GPU, if that is listed. That happens if only GPUs are collected, or if the
// DRA driver has not published the device's UUID.
func attributeToParent(devices []DeviceSnapshot, a Allocation) bool {
	if a.Owner.Claim == nil || a.Owner.Claim.ParentUUID == "" {
		return false
	}
	for i := range devices {
		if devices[i].UUID == a.Owner.Claim.ParentUUID {
			devices[i].Owners = append(devices[i].Owners, a.Owner)
			return true
		}
	}
	return false
}

func compareOwners(a, b Owner) int {
	return cmp.Or(
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod),
		cmp.Compare(a.Container, b.Container), cmp.Compare(a.Replica, b.Replica), compareClaims(a.Claim, b.Claim),
	)
}

func compareClaims(a, b *Claim) int {
	switch {
	case a == b:
		return 0
	case a == nil:
		return -1
	case b == nil:
		return 1
	}
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Device, b.Device))
}

// ComparePods orders owners by their pods.
func ComparePods(a, b Owner) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod))
}

// EachPod calls f for each pod in two lists of owners that are sorted by pod, and reports which of the
// lists have it.
func EachPod(a, b []Owner, f func(namespace, pod string, inA, inB bool)) {
	for len(a) > 0 || len(b) > 0 {
		first := a
		if len(a) == 0 || len(b) > 0 && ComparePods(b[0], a[0]) < 0 {
			first = b
		}
		of := first[0]
		x, y := ownersOf(a, of), ownersOf(b, of)
		f(of.Namespace, of.Pod, x > 0, y > 0)
		a, b = a[x:], b[y:]
	}
}

// ownersOf returns how many owners at the start of the list are of an owner's pod.
func ownersOf(list []Owner, of Owner) int {
	n := 0
	for n < len(list) && list[n].Namespace == of.Namespace && list[n].Pod == of.Pod {
		n++
	}
	return n
}
