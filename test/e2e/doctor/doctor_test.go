// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/terminal/doctor"
)

// breakage is one way to break something.
type breakage struct {
	// want is what the doctor finds then, and nothing else: CODE OBJECT, or CODE? where it cannot look.
	want []string
	// do breaks it. The test's end mends it.
	do func(*testing.T)
}

// together are breakages that have nothing to do with one another: they are made at the same time, and the objects of
// the findings tell them apart.
type together []breakage

// run breaks, and looks.
func (all together) run(t *testing.T, l *look) {
	t.Helper()
	var want []string
	for _, b := range all {
		want = append(want, b.want...)
	}
	t.Run(codes(want), func(t *testing.T) {
		for _, b := range all {
			b.do(t)
		}
		l.wants(t, want...)
	})
	l.wants(t)
}

// codes are those of findings, each once.
func codes(found []string) string {
	var out []string
	for _, f := range found {
		code, _, _ := strings.Cut(f, " ")
		out = append(out, code)
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), " ")
}

// On a healthy control plane nothing fails, before an installation and after it. What is broken fails with its own code
// only, and nothing fails after it was mended.
func TestDoctor(t *testing.T) {
	before := &look{Selection: doctor.Selection{Pre: true}}
	before.wants(t)
	for _, all := range beforeInstallation {
		all.run(t, before)
	}
	looksAs(t)

	install(t)
	for _, node := range oldNodes {
		x := &exporter{node: node}
		x.start(t)
		old = append(old, x)
	}
	for _, name := range workloads {
		workload(t, name, 0, nil)
	}
	after := &look{}
	after.wants(t)
	before.wants(t)
	slow(t)
	for _, all := range installed {
		all.run(t, after)
	}
	skippedHour(t)
}

// Every check of the doctor is broken by TestDoctor. A check that cannot be broken is to be listed here, with the reason.
func TestEveryCheckIsBroken(t *testing.T) {
	// GP101 is broken behind a proxy, since there is no older control plane to run.
	// GP308 is not: simulated GPUs do not need DCGM. internal/terminal/doctor and internal/autoscaler/gpuexporter test it.
	broken := map[string]bool{"GP101": true, "GP102": true, "GP418": true, "GP308": true} // in looksAs and skippedHour
	for _, all := range slices.Concat(beforeInstallation, installed) {
		for _, b := range all {
			for _, code := range b.want {
				broken[codes([]string{code})] = true
			}
		}
	}
	for _, c := range doctor.Checks() {
		if !broken[c.Code] {
			t.Errorf("%s, %s: it is not broken here", c.Code, c.Title)
		}
		delete(broken, c.Code)
	}
	for code := range broken {
		if !strings.HasSuffix(code, "?") {
			t.Errorf("%s is no code of a check", code)
		}
	}
}
