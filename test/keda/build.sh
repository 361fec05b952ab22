#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds KEDA's operator, metrics server and webhooks from its Go module, for test/e2e/keda: 25 CPU minutes once per machine.
# The result is kept under ${GPUPILOT_CACHE:-${XDG_CACHE_HOME:-~/.cache}/gpupilot}/keda-VERSION, which is printed. With --built
# nothing is built, and nothing is printed if it is not there.
set -euo pipefail

version=v2.21.0
to=${GPUPILOT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gpupilot}/keda-$version
if [[ ! -x $to/webhooks ]]; then
	[[ ${1:-} != --built ]] || exit 0
	echo "test/keda: building KEDA $version" >&2
	work=$(mktemp -d)
	trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
	cd "$work"
	GOWORK=off go mod init keda-build >&2
	from=$(GOWORK=off go mod download -json "github.com/kedacore/keda/v2@$version" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
	cp -R "$from" src # KEDA's own go.mod has replacements, so it is built as the main module
	chmod -R u+w src
	rm -rf "$to" && mkdir -p "$to"
	cd src
	cp -R config/crd/bases "$to/crds"
	for program in operator adapter webhooks; do
		GOWORK=off CGO_ENABLED=0 nice go build -trimpath -ldflags '-s -w' -o "$to/$program" "./cmd/$program"
	done
fi
echo "$to"
