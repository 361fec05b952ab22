// SPDX-License-Identifier: Apache-2.0

//go:build linux

package webui

import (
	"encoding/csv"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/window/view"
	"github.com/gpupilot/gpupilot/test/weighttest"
)

var hostileValues = flag.Int("hostile", 1, "how many hostile values of each field to try; 0: all")

// page is everything that a page shows.
type page struct {
	View   view.View
	Detail view.WorkloadDetail
	Device view.Device
	Past   view.History
	Hours  []GPUHours
}

func (s *page) source() Source { return &hostileSource{s} }

// hostileSource is a Source of one workload and one device, whatever they are called.
type hostileSource struct{ *page }

func (s *hostileSource) View() view.View                                     { return s.page.View }
func (s *hostileSource) History(string, string) (view.History, bool)         { return s.Past, true }
func (s *hostileSource) Workload(string, string) (view.WorkloadDetail, bool) { return s.Detail, true }

func (s *hostileSource) Device(string, string) (view.Device, bool) { return s.page.Device, true }
func (s *hostileSource) GPUHours(time.Time, time.Time) []GPUHours  { return s.Hours }
func (s *hostileSource) Minutes(string, string, *view.MinuteQuery) (view.Minutes, bool, error) {
	return view.Minutes{}, true, nil
}

// routes are those of the page that have what tenants have written.
var routes = []string{
	"view", "nodes", "node?name=chat", "gpus", "workloads", "workload?namespace=chat&name=chat", "gpu?node=chat&uuid=chat", "holders", "holders?price=2", "decisions", "decisions?namespace=chat&name=chat",
	"history?namespace=chat&name=chat", "allocation?window=7d", "allocation?window=7d&aggregate=namespace&price=2", "allocation?window=7d&format=csv",
}

// mostAnswer bounds an answer of less, whatever is in it.
const mostAnswer = 1 << 20

// Each field of what the page shows has each hostile value in turn. Its answers are JSON without markup, or CSV without
// formulas, bounded, and cost no more than harmless ones, beyond reading what there is.
func TestHostileFields(t *testing.T) {
	prices, err := price.Parse("2")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(s *page, route string) *httptest.ResponseRecorder {
		p := New(s.source(), nil)
		p.Prices = prices
		w := httptest.NewRecorder()
		p.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/"+route, http.NoBody))
		return w
	}
	fresh := func() *page {
		s := &page{}
		weighttest.Fill(s)
		s.View.Omitted, s.View.Namespaces = view.Omitted{}, nil
		return s
	}
	var harmless []weighttest.Cost
	for _, route := range routes {
		if w := ask(fresh(), route); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", route, w.Code, w.Body)
		}
		harmless = append(harmless, weighttest.Measure(func() { ask(fresh(), route) }))
	}
	r, fields, runs := rand.New(rand.NewPCG(1, 4)), map[string]bool{}, 0
	for _, m := range weighttest.Sample(weighttest.Mutants[page](), *hostileValues, r) {
		fields[m.Field] = true
		for i, route := range routes {
			if *hostileValues > 0 && i != r.IntN(len(routes)) && r.IntN(3) > 0 {
				continue
			}
			s := fresh()
			what := m.Set(s)
			whole, err := json.Marshal(s)
			if err != nil {
				continue // JSON has no year -1
			}
			runs++
			var w *httptest.ResponseRecorder
			name := fmt.Sprintf("%s, %s", what, route)
			weighttest.Compare(t, name, harmless[i], len(whole), func() { w = ask(s, route) })
			checkAnswer(t, name, w, max(mostAnswer, 2*len(whole)))
		}
	}
	t.Logf("%d fields, %d runs", len(fields), runs)
	if len(fields) < 200 {
		t.Errorf("only %d fields", len(fields))
	}
}

func checkAnswer(t *testing.T, name string, w *httptest.ResponseRecorder, most int) {
	t.Helper()
	body := w.Body.String()
	if len(body) > most {
		t.Errorf("%s: an answer of %d bytes", name, len(body))
	}
	if !strings.HasPrefix(w.Header().Get("Content-Type"), "text/csv") {
		if !json.Valid(w.Body.Bytes()) || strings.ContainsAny(body, "<>\x1b\x00") {
			t.Errorf("%s: %d, no JSON, or with markup: %.200q", name, w.Code, body)
		}
		return
	}
	rows, err := csv.NewReader(strings.NewReader(body)).ReadAll()
	if err != nil {
		t.Errorf("%s: no CSV: %v", name, err)
	}
	for _, row := range rows {
		for _, cell := range row {
			if _, err := strconv.ParseFloat(cell, 64); err != nil && strings.IndexAny(cell, "=+-@\t\r＝＋－＠") == 0 {
				t.Errorf("%s: a spreadsheet evaluates %.80q", name, cell)
			}
		}
	}
}
