// SPDX-License-Identifier: Apache-2.0

package procs

import "strings"

// parseCgroup parses /proc/PID/cgroup of either version. It returns the UID of the pod
// and the id of the container of the process; empty if it is in none.
//
// It supports these forms with any prefix, such as the cgroup of a node that is itself
// a container, or /../.. for a reader in another cgroup namespace:
//
//	kubepods/burstable/podUID/ID                                       cgroupfs
//	kubepods-burstable-podUID.slice/cri-containerd-ID.scope            systemd
//	kubepods-burstable-podUID.slice:cri-containerd:ID                  systemd's notation taken for a path
//	…/podUID/crio-ID, …-podUID.slice/crio-ID.scope/container           CRI-O
//	…/podUID/ID, …-podUID.slice/docker-ID.scope                        Docker
//
// For pods within pods it returns the outer one, which belongs to the node's kubelet.
// Hierarchies with a container have precedence over those without.
func parseCgroup(text string) (podUID, containerID string) {
	for line := range strings.Lines(text) {
		// hierarchy:controllers:path; the path may contain colons.
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		uid, id := parseCgroupPath(parts[2])
		if uid != "" && id != "" {
			return uid, id
		}
		if podUID == "" {
			podUID = uid
		}
	}
	return podUID, ""
}

func parseCgroupPath(path string) (podUID, containerID string) {
	for piece := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == ':' }) {
		if podUID == "" {
			podUID = podUIDFrom(piece)
			continue
		}
		if id := containerIDFrom(piece); id != "" {
			return podUID, id
		}
	}
	return podUID, ""
}

// podUIDFrom returns the pod's UID in podUID or kubepods-…-podUID.slice.
func podUIDFrom(piece string) string {
	piece = strings.TrimSuffix(piece, ".slice")
	i := strings.LastIndex(piece, "pod")
	if i < 0 || i > 0 && piece[i-1] != '-' {
		return ""
	}
	// The levels of a slice are separated by -, so the UID has _ instead.
	uid := strings.ReplaceAll(piece[i+len("pod"):], "_", "-")
	if !isUID(uid) {
		return ""
	}
	return uid
}

// isUID reports whether s is a UUID, or the 32 digits of a static pod's hash.
func isUID(s string) bool {
	switch len(s) {
	case 32:
		return isHex(s)
	case 36:
		for i, part := range strings.Split(s, "-") {
			if i > 4 || len(part) != [...]int{8, 4, 4, 4, 12}[i] || !isHex(part) {
				return false
			}
		}
		return true
	}
	return false
}

// idLength is the number of digits of a container's id, in every runtime.
const idLength = 64

// containerIDFrom returns the container's id in ID, runtime-ID or runtime-ID.scope.
func containerIDFrom(piece string) string {
	piece = strings.TrimSuffix(piece, ".scope")
	if i := strings.LastIndexByte(piece, '-'); i >= 0 {
		piece = piece[i+1:]
	}
	if len(piece) != idLength || !isHex(piece) {
		return ""
	}
	return piece
}

func isHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// parseMountinfo parses /proc/PID/mountinfo. It returns the pod and the name of the
// container from the mount of the termination log; empty if there is none. The root of
// that mount ends with pods/UID/containers/NAME/FILE.
func parseMountinfo(text string) (podUID, container string) {
	for line := range strings.Lines(text) {
		// id, parent, device, root, mount point, …
		fields := strings.SplitN(line, " ", 5)
		if len(fields) < 5 {
			continue
		}
		_, rest, found := strings.Cut(fields[3], "/pods/")
		if !found {
			continue
		}
		parts := strings.Split(rest, "/")
		if len(parts) == 4 && isUID(parts[0]) && parts[1] == "containers" && isName(parts[2]) {
			return parts[0], parts[2]
		}
	}
	return "", ""
}

// isName reports whether s is a valid name of a container: a DNS label.
func isName(s string) bool {
	for i := range len(s) {
		if c := s[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return 0 < len(s) && len(s) <= 63
}
