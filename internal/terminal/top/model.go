// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
)

// Setup is what a user can change and save.
type Setup struct {
	View     Name              `json:"view,omitempty"`
	Sort     map[Name]string   `json:"sort,omitempty"`
	Interval time.Duration     `json:"interval,omitempty"` // in ns
	Wide     bool              `json:"wide,omitempty"`
	Theme    Theme             `json:"theme,omitempty"`
	ASCII    bool              `json:"ascii,omitempty"`
	Prices   price.Table       `json:"gpuPrice"`         // as Look.Prices
	Pinned   map[Name][]string `json:"pinned,omitempty"` // rows, by their names
}

// The bounds of the time between two reads.
const (
	minInterval = time.Second
	maxInterval = time.Minute
)

// Config holds the settings of a live view.
type Config struct {
	Setup
	Source    Source
	Namespace string
	Node      string
	Filter    *Filter
	Save      func(*Setup) (path string, err error) // nil: the set-up cannot be saved
	Now       func() time.Time
}

// mode is what keys do.
type mode int

const (
	list    mode = iota
	filter       // keys edit the filter
	command      // keys edit the name of a view
	details
	help
)

// Model is the live view as bubbletea's Model.
type Model struct {
	cfg    Config
	setup  Setup
	filter *Filter
	width  int
	height int

	fleet  *Fleet
	trends *Trends
	read   time.Time // when fleet arrived
	err    error     // of the last read
	since  time.Time // of the first failed read in a row
	busy   bool      // a read is under way
	paused bool

	table    Table
	selected string // the row's ID
	first    int    // the first row on the screen
	offset   int    // of the list, where it is read in part

	mode   mode
	input  string
	note   string // shown once
	scroll int    // of details and help
	ctx    context.Context
}

// New returns a live view. ctx ends its reads.
func New(ctx context.Context, cfg Config) *Model {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	m := &Model{cfg: cfg, setup: cfg.Setup, filter: cfg.Filter, trends: NewTrends(), width: 80, height: 24, ctx: ctx}
	if !slices.Contains(Names, m.setup.View) {
		m.setup.View = Pools
	}
	m.setup.Interval = min(max(m.setup.Interval, minInterval), maxInterval)
	if m.setup.Theme == "" {
		m.setup.Theme = Standard
	}
	if m.setup.Sort == nil {
		m.setup.Sort = map[Name]string{}
	}
	if m.setup.Pinned == nil {
		m.setup.Pinned = map[Name][]string{}
	}
	return m
}

// The messages of the program.
type (
	tickMsg struct{}
	readMsg struct {
		fleet *Fleet
		err   error
	}
)

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return tea.Batch(m.fetch(), m.tick()) }

// interval is the time between two reads: not more often than there is something new.
func (m *Model) interval() time.Duration {
	d := m.setup.Interval
	if m.fleet != nil {
		d = max(d, m.fleet.View.Refresh)
	}
	return d
}

func (m *Model) tick() tea.Cmd {
	return tea.Tick(m.interval(), func(time.Time) tea.Msg { return tickMsg{} })
}

// readTimeout bounds a read, also of a slow network.
const readTimeout = 15 * time.Second

// fetch reads what the view shows.
func (m *Model) fetch() tea.Cmd {
	if m.busy {
		return nil
	}
	m.busy = true
	r := &Request{View: m.setup.View, Node: m.cfg.Node, Namespace: m.cfg.Namespace, Sort: m.order(), Offset: m.offset, Prices: m.setup.Prices.String()}
	if m.mode == details && r.View == Workloads {
		r.Workload = m.selected
	}
	if m.filter != nil {
		r.Query = m.filter.Literal()
	}
	ctx, source := m.ctx, m.cfg.Source
	return func() tea.Msg {
		ctx, cancel := context.WithTimeout(ctx, readTimeout)
		defer cancel()
		f, err := source.Read(ctx, r)
		return readMsg{f, err}
	}
}

// order is the column by which the view is sorted.
func (m *Model) order() string {
	if s := m.setup.Sort[m.setup.View]; s != "" {
		return s
	}
	return (&Fleet{}).TableOf(m.setup.View, &Look{}).Sort
}

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = max(20, msg.Width), max(6, msg.Height)
	case tickMsg:
		if m.paused {
			return m, m.tick()
		}
		return m, tea.Batch(m.fetch(), m.tick())
	case readMsg:
		m.receive(msg)
	case tea.PasteMsg:
		if m.mode == filter || m.mode == command {
			m.edit(msg.Content)
		}
	case tea.KeyPressMsg:
		m.note = ""
		return m, m.key(msg.String(), msg.Text)
	}
	return m, nil
}

// receive takes the result of a read. After a failure the last values stay, with their age.
func (m *Model) receive(msg readMsg) {
	m.busy = false
	now := m.cfg.Now()
	if m.err = msg.err; msg.err != nil {
		if m.since.IsZero() {
			m.since = now
		}
		return
	}
	m.since = time.Time{}
	if m.paused && m.fleet != nil {
		return
	}
	m.fleet, m.read = msg.fleet, now
	m.trends.Add(msg.fleet, now)
	m.rebuild()
}

// look is how values are shown now.
func (m *Model) look() *Look {
	return &Look{ASCII: m.setup.ASCII, Prices: m.setup.Prices, Namespace: m.cfg.Namespace, Now: m.read, Trends: m.trends}
}

// rebuild makes the rows of the view.
func (m *Model) rebuild() {
	if m.fleet == nil {
		return
	}
	m.table = m.fleet.TableOf(m.setup.View, m.look())
	m.table.keep(m.filter)
	if m.table.SortBy(m.order()) != nil { // a saved column that is gone
		delete(m.setup.Sort, m.setup.View)
		_ = m.table.SortBy(m.order()) // the views' own columns exist
	}
	pinned := m.setup.Pinned[m.setup.View]
	slices.SortStableFunc(m.table.Rows, func(a, b Row) int {
		return boolInt(!slices.Contains(pinned, a.ID)) - boolInt(!slices.Contains(pinned, b.ID))
	})
	if m.current() < 0 {
		m.selected = ""
		if len(m.table.Rows) > 0 {
			m.selected = m.table.Rows[min(m.first, len(m.table.Rows)-1)].ID
		}
	}
}

// current returns the index of the selected row; -1: there is none.
func (m *Model) current() int {
	return slices.IndexFunc(m.table.Rows, func(r Row) bool { return r.ID == m.selected })
}

// move moves the selection by n rows. Beyond the end of a list that was read in part it
// reads the next part.
func (m *Model) move(n int) tea.Cmd {
	rows := len(m.table.Rows)
	if rows == 0 {
		return nil
	}
	at := m.current() + n
	switch {
	case at >= rows && m.fleet != nil && m.more() && m.current() == rows-1:
		return m.page(m.offset + m.readRows())
	case at < 0 && m.offset > 0 && m.current() == 0:
		return m.page(max(0, m.offset-screenful))
	}
	m.selected = m.table.Rows[min(max(0, at), rows-1)].ID
	return nil
}

// readRows is the number of entries of the list that were read.
func (m *Model) readRows() int {
	switch m.setup.View {
	case Nodes:
		return len(m.fleet.Nodes)
	case Workloads:
		return len(m.fleet.View.Workloads)
	}
	return len(m.fleet.GPUs)
}

// more reports whether the list goes on behind the part that was read.
func (m *Model) more() bool {
	total := m.fleet.TotalGPUs
	switch m.setup.View {
	case Nodes:
		total = m.fleet.TotalNodes
	case Workloads:
		total = m.fleet.TotalWorkloads
	case Pools, Decisions:
		return false
	}
	return m.offset+m.readRows() < total
}

// page reads the part of the list from an offset.
func (m *Model) page(offset int) tea.Cmd {
	m.offset, m.first, m.selected = offset, 0, ""
	return m.fetch()
}

// show changes the view.
func (m *Model) show(name Name) tea.Cmd {
	if m.fleet != nil && m.fleet.Agent && !name.ofAgent() && name != Pools {
		m.note = string(name) + " are known to a controller only"
		return nil
	}
	m.setup.View, m.mode, m.first, m.offset, m.selected = name, list, 0, 0, ""
	m.table = Table{}
	m.rebuild()
	if m.fleet != nil && m.fleet.View.Omitted.Nodes == 0 && m.fleet.View.Omitted.Workloads == 0 {
		return nil // everything was read
	}
	return m.fetch()
}

// setFilter uses a filter.
func (m *Model) setFilter(s string) tea.Cmd {
	f, err := ParseFilter(s)
	if err != nil {
		m.note = err.Error()
		return nil
	}
	m.filter, m.first, m.offset = f, 0, 0
	m.rebuild()
	if m.fleet != nil && m.fleet.View.Omitted.Nodes > 0 {
		return m.fetch()
	}
	return nil
}

// edit adds to the line that is edited.
func (m *Model) edit(s string) {
	for _, r := range termtext.Clean(strings.ReplaceAll(s, "\n", " ")) {
		if len(m.input) < maxFilter {
			m.input += string(r)
		}
	}
}
