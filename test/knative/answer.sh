#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Has Knative's autoscaler answer the questions in file $1 of internal/scale/peers into file $2.
set -euo pipefail
export GOWORK=off GOFLAGS= CGO_ENABLED=0
cd "$(dirname "${BASH_SOURCE[0]}")"
go test -mod=readonly -trimpath -buildvcs=false -count=1 -vet=off -timeout=1h . -args -questions="$1" -answers="$2"
