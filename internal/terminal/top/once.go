// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/base/csvtable"
	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Formats are the values of -o.
var Formats = []string{"table", "wide", "json", "yaml", "csv", "name"}

// Printing is how a list is printed once.
type Printing struct {
	Format  string // of Formats
	Sort    string // a column; empty: the view's own order
	Filter  *Filter
	Headers bool // of a table
}

// holderJSON is a pod that holds GPUs. A shared GPU counts as its share.
type holderJSON struct {
	Namespace          string   `json:"namespace"`
	Pod                string   `json:"pod"`
	GPUs               float64  `json:"gpus"`
	IdleHeld           float64  `json:"idleHeldGPUs"`
	UtilizationPercent *float64 `json:"utilizationPercent,omitempty"`
	HeldSeconds        *float64 `json:"heldSeconds,omitempty"`
	IdleSeconds        *float64 `json:"idleSeconds,omitempty"`  // for how long all of its idle-held GPUs have been idle-held
	IdleAtLeast        bool     `json:"idleAtLeast,omitempty"`  // it may be longer
	USDPerHour         *float64 `json:"usdPerHour,omitempty"`   // of the idle-held GPUs
	Unpriced           int      `json:"unpricedGPUs,omitempty"` // idle-held GPUs without a price, which it lacks
	USDSinceIdle       *float64 `json:"usdSinceIdle,omitempty"` // what they have cost since they are idle
	SinceIdleAtLeast   bool     `json:"usdSinceIdleAtLeast,omitempty"`
	Nodes              []string `json:"nodes"`
}

// selected is a view with the rows that are printed, in their order.
func (f *Fleet) selected(name Name, look *Look, p *Printing) (Table, error) {
	t := f.TableOf(name, look)
	t.keep(p.Filter)
	if err := t.SortBy(cmp.Or(p.Sort, t.Sort)); err != nil {
		return t, fmt.Errorf("--sort: %w", err)
	}
	return t, nil
}

// Records are the rows of a view by the keys of its columns, without what is not known. Texts are clean.
func (f *Fleet) Records(name Name, look *Look, p *Printing) ([]map[string]any, error) {
	t, err := f.selected(name, look, p)
	out := make([]map[string]any, len(t.Rows))
	for i := range t.Rows {
		out[i] = map[string]any{}
		for j, c := range t.Rows[i].Cells {
			switch v := c.Value.(type) {
			case float64:
				out[i][t.Columns[j].Key] = v
			case string:
				out[i][t.Columns[j].Key] = termtext.Clean(v)
			}
		}
	}
	return out, err
}

// Print writes a view of the fleet.
func (f *Fleet) Print(out io.Writer, name Name, look *Look, p *Printing) error {
	t, err := f.selected(name, look, p)
	if err != nil {
		return err
	}
	switch p.Format {
	case "json", "yaml":
		body, err := f.encode(name, look, &t)
		if err != nil {
			return err
		}
		if p.Format == "yaml" {
			body = bytes.ReplaceAll(body, []byte("\ufeff"), []byte(`\ufeff`)) // the reader of YAML fails at some of them
			if body, err = yaml.JSONToYAML(body); err != nil {
				return err
			}
			body = bytes.Map(func(r rune) rune {
				if termtext.IsUnsafe(r) {
					return '\uFFFD'
				}
				return r
			}, body)
		} else {
			body = termtext.EscapeJSON(body)
		}
		_, err = out.Write(body)
		return err
	case "csv":
		return t.writeCSV(out)
	case "name":
		for i := range t.Rows {
			if _, err := fmt.Fprintln(out, termtext.Clean(t.Rows[i].ID)); err != nil {
				return err
			}
		}
		return nil
	}
	return t.write(out, p, look.ASCII)
}

// write writes the table as kubectl does.
func (t *Table) write(out io.Writer, p *Printing, ascii bool) error {
	if len(t.Rows) == 0 {
		_, err := fmt.Fprintln(out, "nothing found")
		return err
	}
	widths := t.layout(1<<20, p.Format == "wide")
	line := func(cell func(i int) string) error {
		var b strings.Builder
		for i, w := range widths {
			if w > 0 {
				b.WriteString(t.Columns[i].cellText(cell(i), w))
				b.WriteString("   ")
			}
		}
		s := strings.TrimRight(b.String(), " ")
		if ascii {
			s = termtext.ASCII(s)
		}
		_, err := fmt.Fprintln(out, s)
		return err
	}
	if p.Headers {
		if err := line(func(i int) string { return t.Columns[i].Head }); err != nil {
			return err
		}
	}
	for j := range t.Rows {
		if err := line(func(i int) string { return t.Rows[j].Cells[i].Text }); err != nil {
			return err
		}
	}
	return nil
}

// writeCSV writes all columns but the curves. Unknown values are empty.
func (t *Table) writeCSV(out io.Writer) error {
	w := csvtable.NewWriter(out)
	rows := make([][]any, len(t.Rows)+1)
	for j, c := range t.Columns {
		if c.Key == "trend" {
			continue
		}
		rows[0] = append(rows[0], c.Key)
		for i := range t.Rows {
			rows[i+1] = append(rows[i+1], t.Rows[i].Cells[j].Value)
		}
	}
	for _, row := range rows {
		w.Write(row...)
	}
	return w.Flush()
}

// encode returns the JSON of a view: the values are those of the API.
func (f *Fleet) encode(name Name, look *Look, t *Table) ([]byte, error) {
	if f.Agent {
		return indent(f.Raw)
	}
	at := make(map[string]int, len(t.Rows))
	for i := range t.Rows {
		at[t.Rows[i].ID] = i
	}
	v, selected := &f.View, f.Only(look.Namespace)
	var doc any
	switch name {
	case Nodes:
		doc = view.NodePage{Time: v.Time, Total: len(t.Rows), Nodes: pick(f.Nodes, at, func(n *view.NodeSummary) string { return n.Name })}
	case GPUs:
		page := view.GPUPage{Time: v.Time, MaxAge: v.MaxAge, Total: len(t.Rows), GPUs: []view.GPUEntry{}}
		for _, g := range pick(selected.GPUs, at, func(g *GPU) string { return g.UUID }) {
			page.GPUs = append(page.GPUs, g.GPUEntry)
		}
		doc = page
	case Workloads:
		doc = view.WorkloadPage{Time: v.Time, Total: len(t.Rows), Workloads: pick(selected.View.Workloads, at, workloadID)}
	case Decisions:
		doc = map[string]any{"time": v.Time, "decisions": pick(selected.View.Recent, at, eventID)}
	case Pods, Waste:
		doc = map[string]any{"time": v.Time, string(name): f.holdersJSON(look, at)}
	default:
		doc = v
	}
	body, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	return indent(body)
}

func indent(body []byte) ([]byte, error) {
	var out bytes.Buffer
	if err := json.Indent(&out, bytes.TrimSpace(body), "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// pick returns the entries whose rows are in a table, in its order.
func pick[T any](list []T, at map[string]int, id func(*T) string) []T {
	out := make([]T, 0, len(at))
	for i := range list {
		if _, ok := at[id(&list[i])]; ok {
			out = append(out, list[i])
		}
	}
	slices.SortStableFunc(out, func(a, b T) int { return at[id(&a)] - at[id(&b)] })
	return out
}

func (f *Fleet) holdersJSON(look *Look, at map[string]int) []holderJSON {
	list := []holderJSON{}
	for _, h := range f.holders(look) {
		x := holderJSON{Namespace: h.namespace, Pod: h.pod, GPUs: h.gpus, IdleHeld: h.idle, UtilizationPercent: h.totals.use.mean(), Nodes: h.nodes}
		if held, ok := h.held(look.Now).Value.(float64); ok {
			x.HeldSeconds = &held
		}
		if idle, ok := h.idleSeen().Value.(float64); ok {
			x.IdleSeconds, x.IdleAtLeast = &idle, h.idleAtLeast
		}
		cost := h.cost.Sum()
		if x.USDPerHour = cost.Cost; cost.Cost != nil {
			x.Unpriced = h.unpriced
		}
		x.USDSinceIdle, x.SinceIdleAtLeast = cost.SinceIdle, cost.AtLeast
		list = append(list, x)
	}
	return pick(list, at, func(h *holderJSON) string { return ownerName(&view.Owner{Namespace: h.Namespace, Pod: h.Pod}) })
}
