// SPDX-License-Identifier: Apache-2.0

// Package compat runs a dcgm-exporter and gpupilot-agent side by side on one libdcgm, scenario by scenario, and tells what
// differs: on purpose, as docs/dcgm-exporter.md has it, or not. make compat gives it the exporter.
package compat

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

// ownPrefix starts the names of what only gpupilot-agent has.
const ownPrefix = "gpupilot_"

// config is what the flags say.
type config struct {
	exporter, agent string
	library         string // folder of libdcgm.so.4
	collectors      string // the exporter's default collectors file
	profile         string
	only            string
	interval        time.Duration
	verbose         bool
}

var given = flags()

func flags() *config {
	c := &config{}
	flag.StringVar(&c.exporter, "exporter", "", "the dcgm-exporter `binary` to compare with")
	flag.StringVar(&c.agent, "agent", "../../bin/gpupilot-agent", "our `binary`")
	flag.StringVar(&c.library, "libdcgm", "", "`folder` of libdcgm.so.4 (default: our fake, without which some scenarios cannot be had)")
	flag.StringVar(&c.collectors, "collectors", "/etc/dcgm-exporter/default-counters.csv", "the exporter's default collectors `file`")
	flag.StringVar(&c.profile, "profile", "", "our --profile (default: by the exporter's version)")
	flag.StringVar(&c.only, "only", "", "run scenarios whose name matches this regular `expression`")
	flag.DurationVar(&c.interval, "interval", 500*time.Millisecond, "collection interval of both")
	flag.BoolVar(&c.verbose, "v", false, "say what each scenario found")
	return c
}

var errUnintended = errors.New("the agent differs from dcgm-exporter in ways that intended_test.go does not list (see above)")

// A dcgm-exporter and the agent differ in nothing that is not meant.
func TestBesideExporter(t *testing.T) {
	if given.exporter == "" {
		t.Skip("give the binary to compare with: make compat EXPORTER=/path/to/dcgm-exporter [LIBDCGM_DIR=/folder/of/libdcgm.so.4]")
	}
	h, err := newHarness(t.Context(), *given)
	if err != nil {
		t.Fatal(err)
	}
	defer h.close()
	fmt.Printf("%s (%s) beside %s --profile %s, on %s\n", given.exporter, h.version, given.agent, h.profile, h.libraryName)
	if err := h.compare(t.Context(), os.Stdout); err != nil {
		t.Fatal(err)
	}
}

// harness runs scenarios.
type harness struct {
	cfg           config
	dir           string // for everything that is written
	library       string // folder for LD_LIBRARY_PATH
	libraryName   string
	fake          bool   // the library is our fake: its GPUs do what a scenario says
	version, help string // of the exporter
	profile       string
}

func newHarness(ctx context.Context, cfg config) (*harness, error) {
	h := &harness{cfg: cfg, profile: cfg.profile}
	var err error
	for _, p := range []*string{&h.cfg.exporter, &h.cfg.agent} {
		if *p, err = filepath.Abs(*p); err != nil {
			return nil, err
		}
		if _, err := os.Stat(*p); err != nil {
			return nil, err
		}
	}
	// Short, because the path of a socket must be.
	if h.dir, err = os.MkdirTemp("", "compat-"); err != nil {
		return nil, err
	}
	if err := h.findLibrary(); err != nil {
		h.close()
		return nil, err
	}
	h.version = h.say(ctx, "--version")
	h.help = h.say(ctx, "--help")
	if h.profile == "" {
		h.profile = profileOf(h.version)
	}
	return h, nil
}

func (h *harness) close() { _ = os.RemoveAll(h.dir) }

// findLibrary makes a folder in which both find libdcgm, under the names that
// releases of dcgm-exporter have looked for.
func (h *harness) findLibrary() error {
	if h.cfg.library != "" {
		dir, err := filepath.Abs(h.cfg.library)
		if err != nil {
			return err
		}
		body, err := os.ReadFile(filepath.Join(dir, "libdcgm.so.4"))
		if err != nil {
			return fmt.Errorf("-libdcgm: %w", err)
		}
		h.library, h.libraryName = dir, filepath.Join(dir, "libdcgm.so.4")
		h.fake = strings.Contains(string(body), "GPUPILOT_FAKE_DCGM")
		return nil
	}
	h.library, h.libraryName, h.fake = filepath.Join(h.dir, "lib"), "our fake libdcgm", true
	return agentrig.LinkLibraries(filepath.Dir(h.cfg.agent), h.library)
}

// say is what the exporter answers to a flag that makes it end.
func (h *harness) say(ctx context.Context, arg string) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, h.cfg.exporter, arg).Output() // some releases end with an error
	return strings.TrimSpace(string(out))
}

// knows says whether the exporter has a flag.
func (h *harness) knows(name string) bool {
	return h.help == "" || strings.Contains(h.help, "--"+name)
}

var versionForm = regexp.MustCompile(`(\d+)\.(\d+)\.(\d+)\s*$`)

// number is a release as a number that grows with it: that of the exporter's
// own version, which comes last, as in 4.5.3-4.8.2. 0 where there is none.
func number(version string) int {
	m := versionForm.FindStringSubmatch(version)
	if m == nil {
		return 0
	}
	n := 0
	for _, part := range m[1:] {
		i, _ := strconv.Atoi(part) // digits
		n = n*1000 + min(i, 999)
	}
	return n
}

// profileOf is the profile of ours that follows a release.
func profileOf(version string) string {
	switch n := number(version); {
	case n > 0 && n < number("4.8.3"):
		return "4.8.2"
	case n < number("4.9.0"):
		return "4.8"
	}
	return "4.9"
}
