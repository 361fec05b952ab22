// SPDX-License-Identifier: Apache-2.0

package backtest

import (
	"fmt"
	"strconv"
	"strings"
)

// role returns the label of an attainment in tables.
func (a *Attainment) role() string {
	switch a.Kind {
	case KindPolicy:
		return "policy"
	case KindSetting:
		return "most cells"
	case KindChosen:
		return "chosen"
	case KindMatching:
		return "as many"
	case KindHindsight:
		return "hindsight"
	}
	return ""
}

// cost formats the GPU-hours ÷ the oracle's.
func (a *Attainment) cost() string {
	if a.OverOracle == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", a.OverOracle)
}

// Sees says what the contenders read, and of which traces the cells are.
func (o *Objective) Sees() string {
	if o.Untouched {
		return classText(o.Class) + ", untouched traces"
	}
	return classText(o.Class)
}

// writeObjectives writes a table of the objectives per class.
func (r *Report) writeObjectives(b *strings.Builder) {
	for _, sees := range distinct(r.Objectives, (*Objective).Sees) {
		t := &textTable{textColumns: 2, titles: []string{"kept", "", "cells", "GPU-hours", "who"}, textColumnsAtEnd: 1}
		cells := 0
		for i := range r.Objectives {
			o := &r.Objectives[i]
			if o.Sees() != sees {
				continue
			}
			cells = o.Cells
			for k := range o.Attainments {
				a := &o.Attainments[k]
				t.add(fmt.Sprintf("%g%%", o.Percent), a.role(), strconv.Itoa(a.Cells), a.cost(), shorten(a.Contender, contenderWidth))
			}
		}
		fmt.Fprintf(b, "\nwho keeps 99, 98 and 95 %% of the requests, %s (%s)\n", sees, count(cells, "cell", "cells"))
		t.write(b)
	}
}

// contenderWidth is the width of a contender's name in the table.
const contenderWidth = 62

// objectivesLegend explains the table of objectives.
const objectivesLegend = "kept: cells whose replays miss at most 1, 2 or 5 % on the mean; GPU-hours: all cells ÷ the oracle's\n" +
	"chosen: the setting that keeps it in the most cells of the other traces, on the untouched ones\n" +
	"bounds, found afterwards: as many, the cheapest single setting that keeps it in as many cells as\n" +
	"the policy above; most cells, the one that keeps it in the most; hindsight, each replay's cheapest\n" +
	"oracle: the cheapest schedule that keeps it, knowing the load and each start\n"
