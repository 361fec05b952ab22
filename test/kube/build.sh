#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the control plane of the demo and the tests (a real etcd, kube-apiserver, kube-controller-manager, kube-scheduler
# and kubelet in one binary) and leaves it at bin/kube of this checkout, or at the path given as the only argument.
#
#	KUBERNETES=v1.34.12  another release of Kubernetes than the one in go.mod, with the dependencies of that release
#	OPTIMISED=1          all of it compiled for speed, as the benchmarks need it
#
# The binary is kept under ${GPUPILOT_CACHE:-${XDG_CACHE_HOME:-~/.cache}/gpupilot}, named by a hash of all that it is
# made of, so that it is built once per machine and not once per checkout.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=$(realpath -ms "${1:-$here/../../bin/kube}")
cache=${GPUPILOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpupilot}
cd "$here"
. ./flags.sh

pinned=$(sed -n 's/^\tk8s\.io\/kubernetes //p' go.mod)
kubernetes=${KUBERNETES:-$pinned}
if [[ ! $kubernetes =~ ^v1\.([0-9]+)\.[0-9]+$ ]]; then
	echo "test/kube: KUBERNETES is a release such as $pinned, not $kubernetes" >&2
	exit 2
fi
# A Kubernetes that is not told its version calls itself v0.0.0-master.
version=k8s.io/component-base/version
ldflags="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=${BASH_REMATCH[1]}"

# module_of makes the current folder the module of another release: the release's own go.mod, in which the staging modules
# are the published ones instead of folders.
module_of() {
	local from
	from=$(go mod download -json "k8s.io/kubernetes@$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	sed -e 's|^module .*|module kube|' \
		-e "s|^\(\tk8s\.io/[a-z-]*\) v0\.0\.0\$|\1 v0${1#v1}|" \
		-e "s|=> \./staging/src/\(k8s\.io/.*\)|=> \1 v0${1#v1}|" "$from/go.mod" >go.mod
	cp "$from/go.sum" go.sum
	chmod u+w go.mod go.sum
	local etcd
	etcd=$(sed -n 's|^\tgo\.etcd\.io/etcd/client/v3 \([^ ]*\).*|\1|p' go.mod)
	go mod edit -require="k8s.io/kubernetes@$1" -require="go.etcd.io/etcd/server/v3@$etcd"
}

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

made_of() {
	go env GOVERSION GOOS GOARCH
	printf '%s\n' "$ldflags" "${flags[@]}"
	if [[ $kubernetes == "$pinned" ]]; then cat go.mod go.sum; else declare -f module_of; fi
	cat ./*.go
}
hash=$(made_of | sha256sum | cut -c1-16)
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
	echo "test/kube: building etcd and Kubernetes $kubernetes from source: 5 to 8 minutes on two idle cores the first time, because the demo and the tests run on a real control plane; kept as $built"
	partial=$(mktemp "$cache/kube-$hash.XXXXXX")
	trap 'rm -rf "$partial" "$partial.module"' EXIT
	mod=readonly
	if [[ $kubernetes != "$pinned" ]]; then
		mkdir "$partial.module"
		cp ./*.go "$partial.module"
		cd "$partial.module"
		module_of "$kubernetes" 2> >(progress 0)
		mod=mod # the published modules' checksums are added to go.sum
	fi
	# -deps lists more than is compiled if a part is in Go's cache.
	most=$(go list -mod=$mod -tags=netgo,osusergo -deps . 2> >(progress 0) | wc -l)
	# A compiler process lives for a second or less: without garbage collection below 1 GiB it needs a fifth less of it.
	GOGC=off GOMEMLIMIT=1GiB go build -v -mod=$mod "${flags[@]}" -ldflags "$ldflags" -o "$partial" . 2>&1 | progress "$most"
	chmod 755 "$partial"
	mv -f "$partial" "$built" # a rename: a reader sees no binary or a whole one
fi

mkdir -p "$(dirname "$target")"
if [[ $(readlink "$target" || true) != "$built" ]]; then
	ln -sfn "$built" "$target.$$" && mv -fT "$target.$$" "$target"
fi
