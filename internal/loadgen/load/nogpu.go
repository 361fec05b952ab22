// SPDX-License-Identifier: Apache-2.0

package load

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
)

// LookedFor says what there is of a GPU's driver on a machine where a load could not start: what a user looks at next.
// root is / except in tests.
func LookedFor(root, library string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "looked for:\n  library       %s, in the loader's folders and LD_LIBRARY_PATH=%s\n", library, os.Getenv("LD_LIBRARY_PATH"))
	nodes, _ := filepath.Glob(filepath.Join(root, "dev/nvidia*"))
	wsl, _ := filepath.Glob(filepath.Join(root, "dev/dxg"))
	names := "none: no driver is loaded, or the container has no GPU"
	if nodes = append(nodes, wsl...); len(nodes) > 0 {
		for i := range nodes {
			nodes[i] = "/" + strings.TrimPrefix(strings.TrimPrefix(nodes[i], root), "/")
		}
		names = strings.Join(nodes, " ")
	}
	fmt.Fprintf(&out, "  device nodes  /dev/nvidia*: %s\n", names)
	version := "none: /proc/driver/nvidia/version does not exist"
	if b, err := os.ReadFile(filepath.Join(root, "proc/driver/nvidia/version")); err == nil {
		first, _, _ := strings.Cut(string(b), "\n")
		version = excerpt.Of(first, 200)
	}
	fmt.Fprintf(&out, "  driver        %s\n", version)
	for _, name := range []string{"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"} {
		if value, ok := os.LookupEnv(name); ok {
			fmt.Fprintf(&out, "  %s=%s\n", name, value)
		}
	}
	return strings.TrimSuffix(out.String(), "\n")
}

// Explained returns the failure in an error, with what was looked for if there is no GPU; nil: there is none.
func Explained(err error, library string) *Failure {
	var failure *Failure
	if errors.As(err, &failure) && failure.Code == ExitNoGPU {
		return &Failure{Code: failure.Code, Message: failure.Message + "\n" + LookedFor("/", library)}
	}
	return failure
}
