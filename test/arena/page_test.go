// SPDX-License-Identifier: Apache-2.0

package arena

import (
	"flag"
	"os"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "play all matches and write the tables of RESULTS.md")

// The page has the tables of gpupilot arena with its defaults; -update writes them, which
// takes a minute of CPU time.
func TestPage(t *testing.T) {
	const file = "RESULTS.md"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := Settings([]time.Duration{30 * time.Second, 2 * time.Minute, 5 * time.Minute}, []time.Duration{0, 15 * time.Second}, 20)
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for i := range settings {
		if first := settings[i].First; first != staticWorkers && (i > 0 || first != 1) {
			t.Errorf("%s: %d workers at first", settings[i].Title(), first)
		}
		title := settings[i].Title()
		before, rest, ok := strings.Cut(page, "```text\n"+title)
		_, after, ok2 := strings.Cut(rest, "\n```")
		if !ok || !ok2 {
			t.Fatalf("%s has no table %q", file, title)
		}
		if *update {
			page = before + "```text\n" + strings.TrimSpace(played(t, settings[i])) + "\n```" + after
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// played is the table of a match with all contenders.
func played(t *testing.T, set Setting) string {
	ours, err := DefaultPolicies()
	if err != nil {
		t.Fatal(err)
	}
	m := Match{Loads: Loads(), Contenders: append(Rivals(), ours...), Seeds: 3, Workers: 2}
	table, err := m.Play(t.Context(), set)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	table.write(&out)
	return out.String()
}
