// SPDX-License-Identifier: Apache-2.0

package top

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

var update = flag.Bool("update", false, "write the golden frames")

// The frames have local times.
func TestMain(m *testing.M) {
	time.Local = time.UTC
	os.Exit(m.Run())
}

// screen is a live view with what was read, on a screen of that size.
func screen(t testing.TB, f *Fleet, width, height int, change func(*Config)) *Model {
	t.Helper()
	now := noon
	cfg := Config{Now: func() time.Time { return now }}
	if change != nil {
		change(&cfg)
	}
	m := New(t.Context(), cfg)
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	if f == nil {
		return m // nothing was read
	}
	for range 3 {
		m.Update(readMsg{fleet: f})
		now = now.Add(trendSeconds / trendPoints * time.Second)
	}
	now = now.Add(-trendSeconds / trendPoints * time.Second)
	return m
}

// press sends keys, as they are written in the help.
func press(m *Model, keys ...string) {
	for _, k := range keys {
		key := tea.Key{Text: k}
		if special, ok := map[string]rune{"enter": tea.KeyEnter, "esc": tea.KeyEscape, "down": tea.KeyDown, "up": tea.KeyUp, "space": tea.KeySpace, "end": tea.KeyEnd, "pgdown": tea.KeyPgDown, "tab": tea.KeyTab}[k]; ok {
			key = tea.Key{Code: special}
		} else if len(k) == 1 {
			key.Code = rune(k[0])
		}
		m.Update(tea.KeyPressMsg(key))
	}
}

func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	got := strings.ReplaceAll(strings.Join(lines, "\n"), "\x1b", "␛") + "\n"
	file := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is not as before; go test ./internal/terminal/top -update writes it. Now:\n%s", file, got)
	}
}

// Each view on the screens that people have.
func TestGoldenFrames(t *testing.T) {
	plain := func(c *Config) { c.Theme, c.Prices = NoColor, all2 }
	f := read(t, fleet(), &Request{})
	for _, size := range [][2]int{{80, 24}, {120, 40}, {200, 60}} {
		m := screen(t, f, size[0], size[1], plain)
		var all []string
		for i, n := range Names {
			press(m, fmt.Sprint(i+1))
			all = append(all, "=== "+string(n))
			for _, l := range m.Frame() {
				all = append(all, ansi.Strip(l))
			}
		}
		golden(t, fmt.Sprintf("frames-%dx%d", size[0], size[1]), all)
	}
	golden(t, "frame-colours", screen(t, f, 80, 24, func(c *Config) { c.Prices = all2 }).Frame())
	golden(t, "frame-ascii", screen(t, f, 80, 24, func(c *Config) { plain(c); c.ASCII = true }).Frame())

	chat, _ := fixed{f.View}.Workload("llm", "chat")
	f.Detail = &chat
	m := screen(t, f, 80, 24, plain)
	var details []string
	for _, keys := range [][]string{{"2", "enter"}, {"3", "enter"}, {"4", "enter"}, {"4", "down", "enter"}, {"6", "enter"}, {"7", "enter"}, {"?"}} {
		press(m, keys...)
		details = append(details, "=== "+strings.Join(keys, " "))
		for _, l := range m.Frame() {
			details = append(details, ansi.Strip(l))
		}
		press(m, "esc")
	}
	golden(t, "details-80x24", details)
}

// hostile are texts that a terminal could obey, or that break a table.
var hostile = []string{
	"\x1b[2J\x1b[31mroot", "a\x9b2Jb", "\x1b]0;title\x07", "line\nbreak\r\tand tab", "\u202egpj.exe\u202c", "zero\u200bwidth\ufeff", "e" + strings.Repeat("\u0301", 50),
	"日本語のポッド名前", "👩‍👩‍👧‍👦", "\xff\xfe", strings.Repeat("x", 5000), "", "\u2028", "\U000e0041tag", "=cmd|' /C calc'!A0",
}

// attacked is a fleet in which every name and text is s.
func attacked(s string) view.View {
	v := fleet()
	for i := range v.Nodes {
		n := &v.Nodes[i]
		n.Name, n.Pool, n.Model, n.Fault = s+fmt.Sprint(i), s, s, s
		for j := range n.GPUs {
			n.GPUs[j].UUID = s + fmt.Sprint(i, j)
			for k := range n.GPUs[j].Owners {
				n.GPUs[j].Owners[k] = view.Owner{Namespace: s, Pod: s, Container: s}
			}
		}
	}
	for i := range v.Workloads {
		w := &v.Workloads[i]
		w.Namespace, w.Name, w.Kind, w.Target, w.Problem = s, s+fmt.Sprint(i), s, s, s
		w.Override, w.Schedules = s, []string{s, s}
		for j := range w.Signals {
			w.Signals[j].Name, w.Signals[j].Unit = s, s
		}
		if d := w.Decision; d != nil {
			d.Why, d.Sentence = s, s
		}
		for j := range w.Objectives {
			w.Objectives[j].Attained, w.Objectives[j].Sentence, w.Objectives[j].Signal = s, s, s
		}
	}
	for i := range v.Recent {
		e := &v.Recent[i]
		e.Namespace, e.Name, e.Decision.Why, e.Decision.Rule = s, s, s, "r"
		e.Decision.Steps[0].Sentence = s
	}
	for i := range v.Targets {
		v.Targets[i].Error, v.Targets[i].URL = s, s
	}
	return v
}

// checkFrame fails if a line is wider than the screen, or has characters other than printable
// ones and our own colours.
func checkFrame(t *testing.T, what string, m *Model) {
	t.Helper()
	lines := m.Frame()
	if len(lines) != m.height {
		t.Fatalf("%s: %d lines on a screen of %d", what, len(lines), m.height)
	}
	for _, l := range lines {
		if w := ansi.StringWidth(l); w > m.width {
			t.Fatalf("%s: %d cells on a screen of %d: %q", what, w, m.width, l)
		}
		for part := range strings.SplitSeq(l, "\x1b") {
			if rest, ok := strings.CutPrefix(part, "["); ok && part != l {
				part = strings.TrimLeft(rest, "0123456789;")
				if !strings.HasPrefix(part, "m") {
					t.Fatalf("%s: an escape sequence that is no colour: %q", what, l)
				}
			}
			for _, r := range part {
				if !unicode.IsPrint(r) {
					t.Fatalf("%s: %U in %q", what, r, l)
				}
			}
		}
	}
}

// checkAll checks every view, its details and its lists.
func checkAll(t *testing.T, f *Fleet, width, height int, input string) {
	t.Helper()
	m := screen(t, f, width, height, func(c *Config) { c.Namespace = "" })
	for i, n := range Names {
		press(m, fmt.Sprint(i+1))
		checkFrame(t, string(n), m)
		press(m, "down", "enter")
		checkFrame(t, string(n)+" details", m)
		press(m, "esc", "/")
		m.Update(tea.PasteMsg{Content: input})
		checkFrame(t, "filter", m)
		press(m, "enter")
		checkFrame(t, "filtered", m)
		press(m, "esc", "esc")
		for _, format := range Formats {
			var b strings.Builder
			if err := f.Print(&b, n, &Look{Now: noon}, &Printing{Format: format, Headers: true}); err != nil {
				t.Fatal(err)
			}
			for _, r := range b.String() {
				if r != '\n' && termtext.IsUnsafe(r) || r < ' ' && r != '\n' {
					t.Fatalf("%s of %s has %U: %q", format, n, r, b.String())
				}
			}
		}
	}
}

func TestHostileTexts(t *testing.T) {
	for _, s := range hostile {
		checkAll(t, read(t, attacked(s), &Request{}), 80, 24, s)
	}
}

// Whatever a text is, no frame and no list has it as more than text.
func FuzzFrame(f *testing.F) {
	for _, s := range hostile {
		f.Add(s, 80, 24)
	}
	f.Fuzz(func(t *testing.T, s string, width, height int) {
		fleet := &Fleet{Source: s, View: attacked(s)}
		fleet.View = fleet.View.Bounded(fleet.View.NodeSummaries(), true)
		fleet.whole("")
		checkAll(t, fleet, 20+abs(width)%300, 6+abs(height)%100, s)
	})
}

func abs(n int) int { return max(n, -(n + 1)) }
