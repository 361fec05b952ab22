#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the control plane of the demo and the tests (a real etcd, kube-apiserver, kube-controller-manager, kube-scheduler
# and kubelet in one binary) and leaves it at bin/kube of this checkout, or at the path given as the only argument.
#
# The binary is kept under ${GPUPILOT_CACHE:-${XDG_CACHE_HOME:-~/.cache}/gpupilot}, named by a hash of all that it is
# made of, so that it is built once per machine and not once per checkout.
#
# With OPTIMISED=1 all of it is compiled for speed, as the benchmarks need it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${1:-$here/../../bin/kube}
cache=${GPUPILOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpupilot}

kubernetes=v1.37.1 # as in go.mod; a Kubernetes that is not told its version calls itself v0.0.0-master
version=k8s.io/component-base/version
ldflags="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=37"
# Tags and no -trimpath as the Makefile has them, so that the packages that GPUPilot needs too are compiled once for both.
flags=(-mod=readonly -buildvcs=false -tags=netgo,osusergo -gcflags=all=-dwarf=false)
# Packages that only Kubernetes needs: without inlining, they compile in half of the time.
only=(
	k8s.io/{kubernetes,apiextensions-apiserver,cloud-provider,cluster-bootstrap,component-helpers,controller-manager,cri-api,cri-client,cri-streaming,csi-translation-lib,dynamic-resource-allocation,endpointslice,kubectl,mount-utils,pod-security-admission}
	go.etcd.io/{bbolt,etcd/pkg,etcd/server,raft} github.com/{container-storage-interface,containerd,cyphar,google/cadvisor,opencontainers}
)
if [[ -z ${OPTIMISED:-} ]]; then
	for part in "${only[@]}"; do flags+=("-gcflags=$part/...=-l -dwarf=false"); done
fi

# What the caller's environment says about builds must not change this one. No cgo: the binary needs no C library.
export GOWORK=off GOFLAGS= CGO_ENABLED=0
cd "$here"

# progress says how far go is, by its output: the names of packages that it compiles. It passes on what is neither that nor
# a download.
progress() {
	local most=$1 compiled=0 downloaded=0 shown=0 line
	while IFS= read -r line; do
		case $line in
		"go: downloading "*)
			downloaded=$((downloaded + 1))
			((downloaded % 50)) || echo "test/kube: downloaded $downloaded modules after $SECONDS s"
			;;
		"" | *[!A-Za-z0-9._/~-]*) echo "$line" ;;
		*)
			compiled=$((compiled + 1))
			if ((most > 0 && compiled * 20 / most > shown)); then
				shown=$((compiled * 20 / most))
				echo "test/kube: compiled $compiled of at most $most packages after $SECONDS s"
			fi
			;;
		esac
	done >&2
}

hash=$({ go env GOVERSION GOOS GOARCH; printf '%s\n' "$ldflags" "${flags[@]}"; cat go.mod go.sum ./*.go; } | sha256sum | cut -c1-16)
built=$cache/kube-$hash

if [[ ! -x $built ]]; then
	mkdir -p "$cache"
	# One build at a time: a second one waits here and then finds the first one's binary.
	exec 9>"$cache/kube-$hash.lock"
	if command -v flock >/dev/null && ! flock -n 9; then
		echo "test/kube: waiting for the build of Kubernetes $kubernetes that already runs"
		flock 9
	fi
fi
if [[ ! -x $built ]]; then
	echo "test/kube: building etcd and Kubernetes $kubernetes from source: 11 to 15 minutes on two cores the first time, because the demo and the tests run on a real control plane; kept as $built"
	partial=$(mktemp "$cache/kube-$hash.XXXXXX")
	trap 'rm -f "$partial"' EXIT
	# -deps lists more than is compiled if a part is in Go's cache.
	most=$(go list -mod=readonly -deps . 2> >(progress 0) | wc -l)
	go build -v "${flags[@]}" -ldflags "$ldflags" -o "$partial" . 2>&1 | progress "$most"
	chmod 755 "$partial"
	mv -f "$partial" "$built" # a rename: a reader sees no binary or a whole one
fi

mkdir -p "$(dirname "$target")"
if [[ $(readlink "$target" || true) != "$built" ]]; then
	ln -sfn "$built" "$target.$$" && mv -fT "$target.$$" "$target"
fi
