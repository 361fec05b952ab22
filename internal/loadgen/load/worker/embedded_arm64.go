// SPDX-License-Identifier: Apache-2.0

//go:build linux && !cgo

package worker

import "embed"

//go:embed embedded/arm64
var files embed.FS
