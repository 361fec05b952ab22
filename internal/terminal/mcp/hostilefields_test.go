// SPDX-License-Identifier: Apache-2.0

//go:build linux

package mcp

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/terminal/top"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/weighttest"
)

var hostileValues = flag.Int("hostile", 1, "how many hostile values of each field to try; 0: all")

// Each field of the controller's view has each hostile value in turn. The answers are valid JSON of bounded size, of clean
// texts, and cost no more than harmless ones, beyond reading the view.
func TestHostileFields(t *testing.T) {
	a := &answers{by: map[string]any{}}
	c := session(t, Deps{Fleet: &top.Controller{API: a}, Prices: prices("2"), Version: "v1"})
	fresh := func() *view.View {
		v := &view.View{}
		weighttest.Fill(v)
		v.Omitted, v.Namespaces = view.Omitted{}, nil
		return v
	}
	var views []map[string]any
	var harmless []weighttest.Cost
	a.by["api/v1/view"] = fresh()
	for _, name := range top.Names {
		arguments := map[string]any{"view": name}
		views = append(views, arguments)
		askText(t, c, "get", arguments)
		harmless = append(harmless, weighttest.Measure(func() { askText(t, c, "get", arguments) }))
	}
	r, fields, runs := rand.New(rand.NewPCG(1, 5)), map[string]bool{}, 0
	for _, m := range weighttest.Sample(weighttest.Mutants[view.View](), *hostileValues, r) {
		fields[m.Field] = true
		v := fresh()
		what := m.Set(v)
		b, err := json.Marshal(v)
		if err != nil {
			continue // JSON has no year -1
		}
		a.by["api/v1/view"] = v
		i := r.IntN(len(views))
		name := fmt.Sprintf("%s, %v", what, views[i]["view"])
		text, failed := "", false
		weighttest.Compare(t, name, harmless[i], len(b), func() { text, failed = call(t, c, "get", views[i]) })
		var out map[string]any
		if err := json.Unmarshal([]byte(text), &out); err != nil && !failed {
			t.Errorf("%s: %v: %.300q", name, err, text)
		}
		checkTexts(t, name, out)
		if strings.ContainsAny(text, "<>&\n\x1b") {
			t.Errorf("%s: markup or a control: %.300q", name, text)
		}
		runs++
	}
	t.Logf("%d fields, %d runs", len(fields), runs)
	if len(fields) < 150 {
		t.Errorf("only %d fields", len(fields))
	}
}
