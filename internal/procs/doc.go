// SPDX-License-Identifier: Apache-2.0

// Package procs says which pod and container a process belongs to, from /proc
// alone: no API server, no container runtime and no capability is asked.
//
// /proc/PID/cgroup names the pod by its UID and the container by its id, and
// /proc/PID/mountinfo names the container as its pod does, because the kubelet
// mounts every container's termination log from a directory of that name. Both
// may be read by anybody who sees the process. The pod's own name is nowhere in
// /proc: it comes from the API server's pods, or from the directories in which
// the kubelet keeps the pods' logs.
package procs
