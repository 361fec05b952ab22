// SPDX-License-Identifier: Apache-2.0

// Package realnode runs gpupilot-agent on one real Kubernetes node and compares what it says about pods with what the
// kubelet really did: a kubelet, containerd and runc that start real containers, a device plugin that hands out the
// agent's GPUs, and the control plane of package cluster, all of it in network, mount and process namespaces of its own.
// On the same node it counts the requests that scale-downs with spec.drain cut.
//
// The tests are behind the build tag e2e:
//
//	go test -tags e2e ./test/e2e/realnode
//
// They need Linux, root and Debian's packages containerd and runc, which are downloaded but not installed. Where one of
// these is missing they skip and say so; with GPUPILOT_REQUIRE_REALNODE=1, as in CI, they fail instead.
//
// Package chart (test/chart) uses the same node, with a pod network, for the test that installs the chart.
//
// The test binary is started three times, each time inside the last one. The first builds and downloads, and makes the
// node's cgroup; it starts the second in new namespaces as their process 1 (namespaces_linux.go), which mounts what the
// node needs and reaps orphans; the third is the test proper. Killing the second ends every process and mount of the node.
package realnode
