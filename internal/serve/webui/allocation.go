// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/csvtable"
	"github.com/gpupilot/gpupilot/internal/serve/webui/static"
	"github.com/gpupilot/gpupilot/internal/window/history"
)

// GPUHours are the GPU-hours of a workload, or of a namespace without Kind and Name, in a
// window of the history. Minutes without a value are not counted.
type GPUHours struct {
	history.Workload
	Minutes   int     // with a value
	Allocated float64 // hours in which serving pods held GPUs
	Active    float64 // of these, hours in which a GPU was active within the last minute

	// Cost and IdleCost are the recorded USD, by the prices of that time. Unpriced are the hours of
	// Allocated without a price, which Cost lacks, and IdleUnpriced the idle-held ones of these.
	Cost, IdleCost, Unpriced, IdleUnpriced float64
}

// Idle returns the idle-held GPU-hours.
func (h *GPUHours) Idle() float64 { return max(0, h.Allocated-h.Active) }

// hoursOf adds up the history from one time until another.
func hoursOf(s *history.Store, from, to time.Time) (out []GPUHours) {
	for _, w := range s.Workloads() {
		if h := hoursOfWorkload(s, w, from, to); h.Minutes > 0 {
			out = append(out, h)
		}
	}
	return out
}

func hoursOfWorkload(s *history.Store, w history.Workload, from, to time.Time) GPUHours {
	h, scope := GPUHours{Workload: w}, "gpupilot_workload_"
	switch w.Subject() {
	case history.Workloads:
	case history.Namespaces:
		scope = "gpupilot_namespace_"
	default:
		return h
	}
	var metrics []history.Metric
	for _, name := range []string{"gpus", "gpu_cost_usd_per_hour", "unpriced_gpus"} {
		metrics = append(metrics, history.NewMetric(scope+name, "in_use", "allocated"), history.NewMetric(scope+name, "in_use", "active"))
	}
	s.Each(w, from, to, metrics, func(_ time.Time, v []history.Value) { h.add(v) })
	return h
}

// add adds a minute: the GPUs, what they cost and those without a price, each of the allocated and
// of the active ones. Without prices at that time, all are without one.
func (h *GPUHours) add(v []history.Value) {
	allocated, active := v[0].Mean/60, v[1].Mean/60
	if math.IsNaN(allocated) || math.IsNaN(active) {
		return
	}
	h.Minutes++
	h.Allocated += allocated
	h.Active += active
	unpriced, unpricedActive := v[4].Mean/60, v[5].Mean/60
	if math.IsNaN(unpriced) || math.IsNaN(unpricedActive) {
		h.Unpriced += allocated
		h.IdleUnpriced += max(0, allocated-active)
		return
	}
	h.Unpriced += unpriced
	h.IdleUnpriced += max(0, unpriced-unpricedActive)
	known := func(usd float64) float64 {
		if math.IsNaN(usd) {
			return 0 // all are without a price
		}
		return usd / 60
	}
	cost, costActive := known(v[2].Mean), known(v[3].Mean)
	h.Cost += cost
	h.IdleCost += max(0, cost-costActive)
}

// GPUHours implements Source.
func (s WithMinutes) GPUHours(from, to time.Time) []GPUHours { return hoursOf(s.Store, from, to) }

// ledger keeps the hours of a window, because adding them up takes long.
type ledger struct {
	mu   sync.Mutex
	kept map[time.Duration]*sheet
}

type sheet struct {
	from, to time.Time
	hours    []GPUHours
}

const keepSheet = time.Minute

// windows are those of /api/v1/allocation.
var windows = map[string]time.Duration{"1d": 24 * time.Hour, "7d": 7 * 24 * time.Hour, "14d": 14 * 24 * time.Hour}

func (l *ledger) sheet(src Source, window time.Duration) *sheet {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if s := l.kept[window]; s != nil && now.Sub(s.to) < keepSheet {
		return s
	}
	s := &sheet{from: now.Add(-window), to: now}
	s.hours = src.GPUHours(s.from, s.to)
	if l.kept == nil {
		l.kept = map[time.Duration]*sheet{}
	}
	l.kept[window] = s
	return s
}

// Allocation is the GPU-hours of a workload or a namespace, in the shape of OpenCost's API.
type Allocation struct {
	Name       string            `json:"name"`
	Properties map[string]string `json:"properties"` // namespace, controllerKind, controller
	Start      time.Time         `json:"start"`
	End        time.Time         `json:"end"`
	Minutes    int               `json:"minutes"` // with a value
	Hours      float64           `json:"gpuHours"`
	Active     float64           `json:"gpuActiveHours"`
	Idle       float64           `json:"gpuIdleHours"`
	Cost       *float64          `json:"gpuCost,omitempty"` // by --gpu-price, or by the parameter price
	IdleCost   *float64          `json:"gpuIdleCost,omitempty"`
	// Unpriced are the gpuHours without a price, which the costs lack.
	Unpriced float64 `json:"gpuUnpricedHours,omitempty"`
}

// Allocations is the answer of /api/v1/allocation.
type Allocations struct {
	Code    int                     `json:"code"`
	Data    []map[string]Allocation `json:"data"`                    // one set, by name
	Omitted int                     `json:"omitted"`                 // of the smallest
	Price   float64                 `json:"usdPerGPUHour,omitempty"` // if there is one for all GPUs
}

// mostAllocations bounds an answer.
const mostAllocations = 1000

// account is the parameters of a request.
type account struct {
	window  time.Duration
	subject history.Subject
	csv     bool
	price   float64 // USD of a GPU-hour, for all hours; 0: as recorded
	rest    float64 // of hours without a recorded cost; 0: unknown
	priced  bool    // there are prices
}

func parseAccount(q url.Values) (a account, err error) {
	var ok bool
	if a.window, ok = windows[cmp.Or(q.Get("window"), "7d")]; !ok {
		return a, fmt.Errorf("window is %.40q, want 1d, 7d or 14d", q.Get("window"))
	}
	switch q.Get("aggregate") {
	case "", "controller":
		a.subject = history.Workloads
	case "namespace":
		a.subject = history.Namespaces
	default:
		return a, fmt.Errorf("aggregate is %.40q, want controller or namespace", q.Get("aggregate"))
	}
	switch q.Get("format") {
	case "", "json":
	case "csv":
		a.csv = true
	default:
		return a, fmt.Errorf("format is %.40q, want json or csv", q.Get("format"))
	}
	if s := q.Get("price"); s != "" {
		if a.price, err = strconv.ParseFloat(s, 64); err != nil || !(a.price > 0 && a.price <= 1e6) {
			return a, errors.New("price is not a number of USD per GPU-hour above 0")
		}
	}
	return a, nil
}

// allocations returns what a selects of a sheet, the most idle-held hours first.
func (s *sheet) allocations(a *account, may func(namespace string) bool) (out []Allocation) {
	for i := range s.hours {
		h := &s.hours[i]
		if h.Subject() != a.subject || !may(h.Namespace) {
			continue
		}
		x := Allocation{
			Name: h.Namespace, Properties: map[string]string{"namespace": h.Namespace}, Start: s.from, End: s.to,
			Minutes: h.Minutes, Hours: h.Allocated, Active: h.Active, Idle: h.Idle(),
		}
		if a.subject == history.Workloads {
			x.Name += "/" + strings.ToLower(h.Kind) + "/" + h.Name
			x.Properties["controllerKind"], x.Properties["controller"] = strings.ToLower(h.Kind), h.Name
		}
		x.charge(h, a)
		out = append(out, x)
	}
	slices.SortFunc(out, func(x, y Allocation) int { return cmp.Or(cmp.Compare(y.Idle, x.Idle), cmp.Compare(x.Name, y.Name)) })
	return out
}

// charge sets the costs. Without any price there are none: missing is not zero.
func (x *Allocation) charge(h *GPUHours, a *account) {
	all, idle, lacking := h.Cost, h.IdleCost, h.Unpriced
	switch {
	case a.price > 0:
		all, idle, lacking = x.Hours*a.price, x.Idle*a.price, 0
	case a.rest > 0: // also of the time before there was a price
		all, idle, lacking = all+h.Unpriced*a.rest, idle+h.IdleUnpriced*a.rest, 0
	case !a.priced:
		return
	}
	if x.Unpriced = lacking; all > 0 || lacking == 0 {
		x.Cost, x.IdleCost = &all, &idle
	}
}

// serveAllocation sends the GPU-hours of the viewer's namespaces.
func (p *Page) serveAllocation(w http.ResponseWriter, r *http.Request, v Viewer) {
	a, err := parseAccount(r.URL.Query())
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	a.rest, _ = p.Prices.All()
	a.priced = p.Prices.Has()
	body, err := p.allocationBody(r, v, &a)
	if err != nil {
		p.refuseAnswer(w, err)
		return
	}
	if describe(w, r); a.csv {
		w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		w.Header().Del("Content-Encoding")
	}
	p.deliver(w, v, body)
}

// allocationBody is the answer, of what the viewer may see.
func (p *Page) allocationBody(r *http.Request, v Viewer, a *account) ([]byte, error) {
	give, ok := p.slot(r.Context(), v)
	if !ok {
		return nil, errBusy
	}
	defer give()
	s := p.ledger.sheet(p.source, a.window)
	all, err := v.All(r.Context())
	var readable []string
	if err == nil && !all {
		var namespaces []string
		for i := range s.hours {
			namespaces = append(namespaces, s.hours[i].Namespace)
		}
		slices.Sort(namespaces)
		readable, _, err = v.Readable(r.Context(), slices.Compact(namespaces))
	}
	if err != nil {
		return nil, err
	}
	list := s.allocations(a, func(namespace string) bool { return all || slices.Contains(readable, namespace) })
	omitted := max(0, len(list)-mostAllocations)
	list = list[:len(list)-omitted]
	if a.csv {
		return allocationCSV(list), nil
	}
	set := make(map[string]Allocation, len(list))
	for _, x := range list {
		set[x.Name] = x
	}
	return encode(Allocations{Code: http.StatusOK, Data: []map[string]Allocation{set}, Omitted: omitted, Price: cmp.Or(a.price, a.rest)}, static.AcceptsGzip(r))
}

func allocationCSV(list []Allocation) []byte {
	var body bytes.Buffer
	out := csvtable.NewWriter(&body)
	out.Write("namespace", "controllerKind", "controller", "start", "end", "minutes", "gpuHours", "gpuActiveHours", "gpuIdleHours", "gpuCost", "gpuIdleCost", "gpuUnpricedHours")
	number := func(x *float64) any {
		if x == nil {
			return nil
		}
		return csvtable.Number(strconv.FormatFloat(*x, 'f', 3, 64))
	}
	for i := range list {
		x := &list[i]
		var lacking any
		if x.Cost != nil || x.Unpriced > 0 {
			lacking = number(&x.Unpriced)
		}
		out.Write(x.Properties["namespace"], x.Properties["controllerKind"], x.Properties["controller"], x.Start.UTC().Format(time.RFC3339),
			x.End.UTC().Format(time.RFC3339), x.Minutes, number(&x.Hours), number(&x.Active), number(&x.Idle), number(x.Cost), number(x.IdleCost), lacking)
	}
	_ = out.Flush() // to memory
	return body.Bytes()
}
