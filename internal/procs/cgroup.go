// SPDX-License-Identifier: Apache-2.0

package procs

import "strings"

// parseCgroup reads a /proc/PID/cgroup of either version. It gives the UID of
// the pod and the id of the container in whose cgroups the process is, empty
// where it is in none.
//
// These forms are understood, each with anything before it, such as the cgroup
// of a node that is a container itself, or the /../.. of a reader in a cgroup
// namespace of its own:
//
//	kubepods/burstable/podUID/ID                                       cgroupfs
//	kubepods-burstable-podUID.slice/cri-containerd-ID.scope            systemd
//	kubepods-burstable-podUID.slice:cri-containerd:ID                  systemd's notation taken for a path
//	…/podUID/crio-ID, …-podUID.slice/crio-ID.scope/container           CRI-O
//	…/podUID/ID, …-podUID.slice/docker-ID.scope                        Docker
//
// Of pods within pods the outer one counts: it is the one that the node's
// kubelet knows. Of several hierarchies one that names a container is taken
// before one that does not.
func parseCgroup(text string) (podUID, containerID string) {
	for line := range strings.Lines(text) {
		// hierarchy:controllers:path, and the path may have colons too.
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		uid, id := parsePath(parts[2])
		if uid != "" && id != "" {
			return uid, id
		}
		if podUID == "" {
			podUID = uid
		}
	}
	return podUID, ""
}

func parsePath(path string) (podUID, containerID string) {
	for piece := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == ':' }) {
		if podUID == "" {
			podUID = uidOf(piece)
			continue
		}
		if id := idOf(piece); id != "" {
			return podUID, id
		}
	}
	return podUID, ""
}

// uidOf is the pod's UID in podUID or kubepods-…-podUID.slice.
func uidOf(piece string) string {
	piece = strings.TrimSuffix(piece, ".slice")
	i := strings.LastIndex(piece, "pod")
	if i < 0 || i > 0 && piece[i-1] != '-' {
		return ""
	}
	// A slice's name has - between its levels, so the UID has _ instead.
	uid := strings.ReplaceAll(piece[i+len("pod"):], "_", "-")
	if !isUID(uid) {
		return ""
	}
	return uid
}

// isUID says whether s is a UUID, or the 32 digits of a static pod's hash.
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

// idLength is how many digits the id of a container has in every runtime.
const idLength = 64

// idOf is the container's id in ID, runtime-ID or runtime-ID.scope.
func idOf(piece string) string {
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

// parseMounts reads a /proc/PID/mountinfo. It gives the pod and the name of the
// container that the mount of a termination log tells, empty where there is
// none: its root is …/pods/UID/containers/NAME/FILE of the kubelet's directory,
// or of the file system which that is.
func parseMounts(text string) (podUID, container string) {
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

// isName says whether s can be the name of a container: a DNS label.
func isName(s string) bool {
	for i := range len(s) {
		if c := s[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return 0 < len(s) && len(s) <= 63
}
