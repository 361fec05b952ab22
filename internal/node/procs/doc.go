// SPDX-License-Identifier: Apache-2.0

// Package procs maps processes to pods and containers, from /proc alone. It needs no
// API server, no container runtime and no capability.
//
// /proc/PID/cgroup contains the UID of the pod and the id of the container.
// /proc/PID/mountinfo contains the container's name in its pod, because the kubelet
// mounts each container's termination log from a directory of that name. Every process
// that sees PID can read both files. The pod's name is not in /proc: it comes from the
// API server, or from the directories of the pods' logs on the node.
package procs
