#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Has Kubernetes' HorizontalPodAutoscaler answer the questions in file $1 of internal/scale/peers into file $2.
# Built as ../build.sh builds: what the control plane is made of is not compiled again.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
. ../flags.sh
go test -mod=readonly "${flags[@]}" -count=1 -vet=off -timeout=1h . -args -questions="$1" -answers="$2"
