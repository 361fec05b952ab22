// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

// A driver that is replaced under the agent ends it with a message, so that it is started again. A start that still finds
// the old library stays, and reads the GPUs as soon as driver and library fit.
func TestADriverIsReplaced(t *testing.T) {
	gpus := filepath.Join(t.TempDir(), "gpus")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(gpus+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(gpus+".new", gpus); err != nil {
			t.Fatal(err)
		}
	}
	library, err := filepath.Abs(filepath.Join(bin, "libnvidia-ml-fake.so"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := agentrig.Config{
		Binary: filepath.Join(bin, "gpupilot-agent"), Args: []string{"--nvml-library", library, "--collect-interval", "100"},
		Env: []string{"GPUPILOT_FAKE_NVML=" + gpus},
	}
	put("gpus 2\n")
	first, err := agentrig.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Stop() }()
	shows(t, first, `gpupilot_backend_up{backend="nvml"} 1`, "\nDCGM_FI_DEV_GPU_UTIL{")
	put("gpus 2\nmodule-version 600.00.00\n")
	select {
	case <-first.Done:
	case <-time.After(patience):
		t.Fatalf("it does not end; it said:\n%s", first.Log())
	}
	if first.Err == nil || !strings.Contains(first.Log(), "gpupilot-agent: the driver was replaced") {
		t.Errorf("it ended with %v, and said:\n%s", first.Err, first.Log())
	}
	second := start(t, cfg)
	shows(t, second, `gpupilot_backend_up{backend="nvml"} 0`, "!\nDCGM_FI_DEV_GPU_UTIL{")
	put("gpus 2\n")
	shows(t, second, `gpupilot_backend_up{backend="nvml"} 1`, "\nDCGM_FI_DEV_GPU_UTIL{")
}
