// SPDX-License-Identifier: Apache-2.0

package top

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"
)

// text is the screen without colours.
func shown(m *Model) string { return ansi.Strip(strings.Join(m.Frame(), "\n")) }

func TestKeys(t *testing.T) {
	m := screen(t, read(t, fleet(), &Request{}), 100, 30, nil)
	f := func(keys, want, without string) {
		t.Helper()
		press(m, strings.Fields(keys)...)
		if got := shown(m); want != "" && !strings.Contains(got, want) || without != "" && strings.Contains(got, without) {
			t.Errorf("after %s: want %q and not %q:\n%s", keys, want, without, got)
		}
	}
	f("4", "llm/chat", "HOLDER")
	f(": w a s enter", "HOLDER", "")
	f(": n o p e enter", `no view "nope"`, "")
	f("3 / n o t e b o o k enter", "notebook-ann", "chat-6b8f9c7d4")
	f("esc", "chat-6b8f9c7d4", "")
	f("/ ! n o t e b o o k enter", "chat-6b8f9c7d4", "notebook-ann")
	f("esc / ( enter", "no regular expression", "")
	f("/ esc", "", "expression, !not")
	press(m, "/")
	m.Update(tea.PasteMsg{Content: "-l state=free"})
	f("enter", "free", "active   ")
	f("esc p", "PAUSED", "")
	f("p", "", "PAUSED")
	f("+", "reads every 2s", "")
	f("- -", "reads every 1s", "")
	f("c c", "colours: none", "")
	f("?", "idle-held    a pod holds", "")
	f("q", "LAST 60 S", "idle-held    a pod")
	f("enter", "UUID", "LAST 60 S")
	f("esc", "LAST 60 S", "")
	// Sorting by the next column and back.
	m.setup.Sort = map[Name]string{}
	f("3 S", "USE↑", "")
	f("S s", "LAST", "USE↑")
	// A pinned row stays at the top.
	m.rebuild()
	last := m.table.Rows[len(m.table.Rows)-1].ID
	f("end space", "", "")
	if m.table.Rows[0].ID != last {
		t.Errorf("the pinned row %s is not the first", last)
	}
	press(m, "space")
	if m.table.Rows[0].ID == last {
		t.Errorf("the row %s is still the first", last)
	}
	if cmd := m.key("q", "q"); cmd == nil || cmd() != tea.Quit() {
		t.Error("q does not quit")
	}
	press(m, "/")
	if cmd := m.key("ctrl+c", ""); cmd == nil || cmd() != tea.Quit() {
		t.Error("ctrl+c does not quit while a filter is edited")
	}
}

// The selection stays on its row when the order changes.
func TestSelectionFollowsItsRow(t *testing.T) {
	m := screen(t, read(t, fleet(), &Request{}), 80, 12, nil)
	press(m, "3", "down", "down", "down")
	was := m.selected
	i := slices.IndexFunc(m.fleet.GPUs, func(g GPU) bool { return g.UUID == was })
	name := m.fleet.GPUs[i].Name()
	press(m, "S")
	if m.selected != was || !strings.Contains(shown(m), name[len(name)-6:]+" ") { // its start is cut
		t.Errorf("selected %s, was %s:\n%s", m.selected, was, shown(m))
	}
}

// After a failed read the last values stay, and the screen says so.
func TestNoAnswer(t *testing.T) {
	m := screen(t, read(t, fleet(), &Request{}), 80, 24, nil)
	m.Update(readMsg{err: errors.New("connection refused")})
	if got := shown(m); !strings.Contains(got, "NO ANSWER for") || !strings.Contains(got, "24 GPUs on 3 nodes") {
		t.Errorf("%s", got)
	}
	first := New(t.Context(), Config{Now: func() time.Time { return noon }})
	first.Update(readMsg{err: errors.New("\x1b[31mconnection refused")})
	if got := shown(first); !strings.Contains(got, "connection refused") {
		t.Errorf("%s", got)
	}
}

func TestSetup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "top.json")
	if s, err := LoadSetup(path); err != nil || s.View != "" {
		t.Errorf("without a file: %+v, %v", s, err)
	}
	m := screen(t, read(t, fleet(), &Request{}), 80, 24, func(c *Config) {
		c.Save = func(s *Setup) (string, error) { return path, SaveSetup(path, s) }
	})
	press(m, "5", "S", "w", "c", "space", "W")
	s, err := LoadSetup(path)
	if err != nil || s.View != Pods || !s.Wide || s.Theme != Contrast || s.Sort[Pods] != "gpus" || len(s.Pinned[Pods]) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if !strings.Contains(shown(m), "saved to") {
		t.Error("it does not say that it saved")
	}
	again := screen(t, read(t, fleet(), &Request{}), 80, 24, func(c *Config) { c.Setup = s })
	if again.setup.View != Pods || again.table.Rows[0].ID != s.Pinned[Pods][0] {
		t.Errorf("the set-up is not used: %+v", again.setup)
	}
	if err := SaveSetup(path, &Setup{Sort: map[Name]string{Pods: "gone"}}); err != nil {
		t.Fatal(err)
	}
	s, _ = LoadSetup(path)
	if m := screen(t, read(t, fleet(), &Request{}), 80, 24, func(c *Config) { c.Setup = s; c.View = Pods }); len(m.table.Rows) == 0 || m.table.sorted == 0 {
		t.Error("a saved order by a column that is gone is not replaced")
	}
}

func TestFilter(t *testing.T) {
	row := &Row{ID: "n1", Labels: map[string]string{"state": "free", "node": "n1"}, Cells: []Cell{text("Node-1"), text("llm/chat")}}
	f := func(s string, want bool) {
		t.Helper()
		x, err := ParseFilter(s)
		if err != nil {
			t.Fatal(err)
		}
		if x.Match(row) != want {
			t.Errorf("%q matches: %v", s, !want)
		}
	}
	for s, want := range map[string]bool{
		"": true, "node": true, "NODE": false, "Node": true, "chat$": true, "!chat": false, "!x": true, "!": true, "-l state=free": true, "-l state!=free": false,
		"-l state=free,node=n2": false, "-l node==n1": true, "-f nchat": true, "-f tahc": false, "-l": true, "-f": true, "-lx": false,
	} {
		f(s, want)
	}
	for _, bad := range []string{"(", "-l x", "-l =y", strings.Repeat("x", 600)} {
		if _, err := ParseFilter(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
	for s, want := range map[string]string{"chat": "chat", "ch.t": "", "!chat": "", "-l a=b": "", "-f x": ""} {
		if x, _ := ParseFilter(s); x.Literal() != want {
			t.Errorf("the plain text of %q is %q", s, x.Literal())
		}
	}
}

// A filter never fails otherwise than with an error, and !F selects the rows that F does not.
func FuzzFilter(f *testing.F) {
	f.Add("a.*b", "n1")
	f.Add("-l a=b", "")
	f.Add("!x", "y")
	f.Fuzz(func(t *testing.T, s, name string) {
		x, err := ParseFilter(s)
		if err != nil {
			return
		}
		row := &Row{ID: name, Cells: []Cell{text(name)}, Labels: map[string]string{"a": name}}
		got := x.Match(row)
		if strings.HasPrefix(strings.TrimSpace(s), "!") || strings.HasPrefix(strings.TrimSpace(s), "-") || x.Empty() {
			return
		}
		inverse, err := ParseFilter("!" + strings.TrimSpace(s))
		if err != nil {
			return // too long by one
		}
		if inverse.Match(row) == got {
			t.Errorf("%q and its inverse both match %q: %v", s, name, got)
		}
	})
}

// A large fleet is read in parts: never more than two requests for a frame, which is drawn
// every two seconds.
func TestLargeFleetIsPaged(t *testing.T) {
	a := serve(large(1000))
	source := &Controller{API: a, Name: "prod"}
	m := New(t.Context(), Config{Source: source, Now: func() time.Time { return noon }, Setup: Setup{View: Nodes}})
	answer := func(cmd tea.Cmd) {
		t.Helper()
		if cmd == nil {
			t.Fatal("nothing is read")
		}
		m.Update(cmd())
	}
	answer(m.fetch())
	if got := shown(m); !strings.Contains(got, "8,000 GPUs on 1,000 nodes") || !strings.Contains(got, "200 of 1,000") {
		t.Errorf("%s\n%q", got, a.requests)
	}
	if m.interval() < 2*time.Second {
		t.Errorf("two requests every %s", m.interval())
	}
	press(m, "end")
	answer(m.move(1))
	if got := shown(m); m.offset != 200 || !strings.Contains(got, "node-00200") {
		t.Errorf("offset %d:\n%s", m.offset, got)
	}
	answer(m.show(GPUs))
	answer(m.setFilter("node-00777"))
	if got := shown(m); len(m.table.Rows) != 8 || !strings.HasPrefix(m.table.Rows[0].Cells[0].Text, "node-00777:") {
		t.Errorf("%d rows\n%s", len(m.table.Rows), got)
	}
	answer(m.show(Waste))
	want := []string{
		"api/v1/view?", "api/v1/nodes?limit=200&offset=0&sort=problems", "api/v1/view?", "api/v1/nodes?limit=200&offset=200&sort=problems",
		"api/v1/view?", "api/v1/gpus?limit=200&offset=0&sort=utilization", "api/v1/view?", "api/v1/gpus?limit=200&offset=0&q=node-00777&sort=utilization",
		"api/v1/view?", "api/v1/gpus?limit=200&offset=0&q=node-00777&state=idle-held",
	}
	if !slices.Equal(a.requests, want) {
		t.Errorf("requests %q,\nwant %q", a.requests, want)
	}
}
