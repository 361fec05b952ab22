// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
)

// key handles a key.
func (m *Model) key(key, text string) tea.Cmd {
	if key == "ctrl+c" {
		return tea.Quit
	}
	switch m.mode {
	case filter, command:
		return m.editKey(key, text)
	case details, help:
		return m.pagerKey(key)
	}
	return m.listKey(key)
}

// editKey handles a key while a line is edited.
func (m *Model) editKey(key, text string) tea.Cmd {
	switch key {
	case "esc":
		m.mode, m.input = list, ""
	case "enter":
		was, input := m.mode, m.input
		m.mode, m.input = list, ""
		if was == filter {
			return m.setFilter(input)
		}
		return m.run(input)
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(m.input)
		m.input = m.input[:len(m.input)-n]
	case "ctrl+u":
		m.input = ""
	default:
		m.edit(text)
	}
	return nil
}

// run handles a command: the name of a view, or the start of one.
func (m *Model) run(input string) tea.Cmd {
	input = strings.ToLower(strings.TrimSpace(input))
	switch input {
	case "":
		return nil
	case "q", "quit":
		return tea.Quit
	case "gpa", "gpuautoscalers":
		return m.show(Workloads)
	}
	for _, n := range Names {
		if strings.HasPrefix(string(n), input) {
			return m.show(n)
		}
	}
	m.note = fmt.Sprintf("there is no view %q", input)
	return nil
}

// pagerKey handles a key in the details or the help.
func (m *Model) pagerKey(key string) tea.Cmd {
	switch key {
	case "q", "esc", "enter", "?", "left", "h":
		m.mode, m.scroll = list, 0
	case "down", "j":
		m.scroll++
	case "up", "k":
		m.scroll = max(0, m.scroll-1)
	case "pgdown", "space", "ctrl+f":
		m.scroll += m.bodyLines() - 1
	case "pgup", "ctrl+b":
		m.scroll = max(0, m.scroll-m.bodyLines()+1)
	case "home", "g":
		m.scroll = 0
	}
	return nil
}

// listKey handles a key in a list.
func (m *Model) listKey(key string) tea.Cmd {
	if len(key) == 1 && key[0] >= '1' && int(key[0]-'1') < len(Names) {
		return m.show(Names[key[0]-'1'])
	}
	switch key {
	case "q":
		return tea.Quit
	case "esc":
		if m.filter != nil && !m.filter.Empty() {
			return m.setFilter("")
		}
	case "down", "j":
		return m.move(1)
	case "up", "k":
		return m.move(-1)
	case "pgdown", "ctrl+f":
		return m.move(m.listLines())
	case "pgup", "ctrl+b":
		return m.move(-m.listLines())
	case "home", "g":
		return m.move(-len(m.table.Rows))
	case "end", "G":
		return m.move(max(1, len(m.table.Rows)-1-m.current()))
	case "tab", "right", "l":
		return m.next(1)
	case "shift+tab", "left", "h":
		return m.next(-1)
	case "enter":
		if m.selected != "" {
			m.mode, m.scroll = details, 0
			return m.fetch()
		}
	case "?":
		m.mode = help
	case "/":
		m.mode, m.input = filter, ""
		if m.filter != nil {
			m.input = m.filter.String()
		}
	case ":":
		m.mode, m.input = command, ""
	default:
		return m.settingKey(key)
	}
	return nil
}

// settingKey handles a key that changes how the list is shown.
func (m *Model) settingKey(key string) tea.Cmd {
	switch key {
	case "s":
		return m.sortNext()
	case "S":
		order := m.order()
		if name, descending := strings.CutPrefix(order, "-"); descending {
			order = name
		} else {
			order = "-" + name
		}
		return m.sortBy(order)
	case "space":
		m.pin()
	case "p":
		m.paused = !m.paused
	case "+", "=":
		m.setup.Interval = min(maxInterval, m.setup.Interval*2)
		m.note = "reads every " + m.setup.Interval.String()
	case "-":
		m.setup.Interval = max(minInterval, (m.setup.Interval / 2).Round(time.Second))
		m.note = "reads every " + m.setup.Interval.String()
	case "w":
		m.setup.Wide = !m.setup.Wide
	case "c":
		m.setup.Theme = m.setup.Theme.next()
		m.note = "colours: " + string(m.setup.Theme)
	case "W":
		m.save()
	}
	return nil
}

// next shows the view that is n behind the present one.
func (m *Model) next(n int) tea.Cmd {
	at := slices.Index(Names, m.setup.View)
	for range Names {
		at = (at + n + len(Names)) % len(Names)
		if m.fleet == nil || !m.fleet.Agent || Names[at].ofAgent() || Names[at] == Pools {
			break
		}
	}
	return m.show(Names[at])
}

// sortBy sorts by a column. Of a list that is read in part, the first part is another one then.
func (m *Model) sortBy(order string) tea.Cmd {
	m.setup.Sort[m.setup.View] = order
	m.rebuild()
	if m.fleet == nil || !m.more() && m.offset == 0 {
		return nil
	}
	if orders := map[Name]map[string]string{GPUs: gpuOrders, Nodes: nodeOrders}[m.setup.View]; orders[order] == "" {
		m.note = "sorted are the rows that were read, not all of them"
	}
	return m.page(0)
}

// sortNext sorts by the next column that is shown: numbers from the highest.
func (m *Model) sortNext() tea.Cmd {
	order := m.order()
	at := m.table.column(strings.TrimPrefix(order, "-"))
	widths := m.table.layout(m.width, m.setup.Wide)
	for range m.table.Columns {
		at = (at + 1) % len(m.table.Columns)
		if c := &m.table.Columns[at]; widths[at] > 0 && c.Key != "trend" {
			if c.Right || strings.HasSuffix(c.Key, "_percent") || c.Key == "time" {
				return m.sortBy("-" + c.Key)
			}
			return m.sortBy(c.Key)
		}
	}
	return nil
}

// maxPinned bounds the pinned rows of a view.
const maxPinned = 20

// pin keeps the selected row at the top, or releases it.
func (m *Model) pin() {
	pinned := m.setup.Pinned[m.setup.View]
	if i := slices.Index(pinned, m.selected); i >= 0 {
		m.setup.Pinned[m.setup.View] = slices.Delete(pinned, i, i+1)
	} else if m.selected != "" && len(pinned) < maxPinned {
		m.setup.Pinned[m.setup.View] = append(pinned, m.selected)
	}
	m.rebuild()
}

func (m *Model) save() {
	if m.cfg.Save == nil {
		m.note = "there is no folder for the set-up"
		return
	}
	path, err := m.cfg.Save(&m.setup)
	if m.note = "saved to " + path; err != nil {
		m.note = "cannot save: " + err.Error()
	}
}
