#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Loads the archives of make images into a cluster of this machine: load.sh FOLDER [containerd|k3s|kind|minikube]
set -euo pipefail
folder=$1 into=${2:-}

works() { "$@" >/dev/null 2>&1; }

context=$(kubectl config current-context 2>/dev/null) || context=
if [[ -z $into ]]; then # the cluster of kubectl, else the containerd of this machine, else what runs here
	case $context in
	kind-*) into=kind ;;
	minikube) into=minikube ;;
	*)
		if works k3s ctr version; then
			into=k3s
		elif works ctr version; then
			into=containerd
		elif works kind get clusters && [[ -n $(kind get clusters 2>/dev/null) ]]; then
			into=kind
		elif works minikube status; then
			into=minikube
		fi
		;;
	esac
fi

load() {
	case $into in
	containerd) ctr --namespace k8s.io images import "$1" ;;
	k3s) k3s ctr --namespace k8s.io images import "$1" ;;
	kind) kind load image-archive "$1" $([[ $context != kind-* ]] || printf -- '--name %s' "${context#kind-}") ;;
	minikube) minikube image load "$1" ;;
	*)
		cat >&2 <<-END
			make load: there is no containerd, k3s, kind or minikube here that answers${into:+ to the name $into}.
			  on a node:       run make load there as root; it imports bin/images/*.tar
			  with a registry: skopeo copy --all oci-archive:$1 docker://registry.example/gpupilot/$(basename "$1" .tar):TAG
			                   and helm install with --set global.imageRegistry=registry.example
			docs/packages.md has every way.
		END
		exit 1
		;;
	esac
}

shopt -s nullglob
archives=("$folder"/*.tar)
if ((${#archives[@]} == 0)); then
	echo "make load: no archive is in $folder; run make images first" >&2
	exit 1
fi
for archive in "${archives[@]}"; do
	load "$archive"
done
echo "The images are loaded into $into of this machine. Pods that run already keep the images of before; replace them with
  kubectl -n gpupilot-system delete pods --all"
