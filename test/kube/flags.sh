# SPDX-License-Identifier: Apache-2.0
#
# How the packages of this module are compiled, for build.sh and podautoscaler/answer.sh, which source it: one that differs
# compiles them all again.

# What the caller's environment says about builds must not change this one. No cgo: the binary needs no C library.
export GOWORK=off GOFLAGS='' CGO_ENABLED=0

# The tags, the debugging information and the missing -trimpath are those of the Makefile: packages that GPUPilot needs too
# are compiled once for both.
flags=(-buildvcs=false -tags=netgo,osusergo -gcflags=all=-dwarf=false)

# Packages that only Kubernetes needs are compiled without inlining, in four fifths of the time.
if [[ -z ${OPTIMISED:-} ]]; then
	for module in \
		k8s.io/{kubernetes,apiextensions-apiserver,cloud-provider,cluster-bootstrap,component-helpers,controller-manager} \
		k8s.io/{cri-api,cri-client,cri-streaming,csi-translation-lib,dynamic-resource-allocation,endpointslice,kubectl} \
		k8s.io/{mount-utils,pod-security-admission} go.etcd.io/{bbolt,etcd/pkg,etcd/server,raft} \
		github.com/{container-storage-interface,containerd,cyphar,google/cadvisor,opencontainers}; do
		flags+=("-gcflags=$module/...=-l -dwarf=false")
	done
fi
