// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/serve/webui"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// noArguments is the input of a tool without arguments.
type noArguments struct{}

// counts are GPUs by state.
type counts struct {
	Name         *string  `json:"name,omitempty"` // of a pool
	Models       []string `json:"models,omitempty"`
	Nodes        int      `json:"nodes"`
	ProblemNodes int      `json:"problemNodes"`
	GPUs         int      `json:"gpus"`
	Active       int      `json:"active"`
	Idle         int      `json:"idleHeld"`
	Free         int      `json:"free"`
	Stale        int      `json:"stale"`
	Utilization  *float64 `json:"utilizationPercentOfHeld,omitempty"`
}

func countsOf(c *view.Counts) counts {
	return counts{Nodes: c.Nodes, ProblemNodes: c.ProblemNodes, GPUs: c.GPUs, Active: c.Active, Idle: c.Idle, Free: c.Free, Stale: c.Stale, Utilization: rounded(c.Utilization)}
}

type problem struct {
	Node     string   `json:"node"`
	Problems []string `json:"problems"`
}

// change is a decision that changed replicas, or would have.
type change struct {
	Time     time.Time `json:"time"`
	Workload string    `json:"workload"`
	From     int32     `json:"from"`
	To       int32     `json:"to"`
	Rule     string    `json:"rule"`
	Why      string    `json:"why"`
	Advice   bool      `json:"adviceOnly,omitempty"`
}

func changesOf(events []view.Event) []change {
	out := make([]change, len(events))
	for i := range events {
		e := &events[i]
		d := &e.Decision
		out[i] = change{d.Time.Truncate(time.Second), e.Namespace + "/" + e.Name, d.Current, d.Replicas, string(d.Rule), d.Reason(), e.Advice}
	}
	return out
}

func (t *tools) fleetSummary(ctx context.Context, _ *noArguments) (string, error) {
	var v view.View
	if err := t.get(ctx, "view", nil, &v); err != nil {
		return "", err
	}
	pools := make([]counts, len(v.Pools))
	for i := range v.Pools {
		p := &v.Pools[i]
		pools[i] = countsOf(&p.Counts)
		pools[i].Name, pools[i].Models = &p.Name, p.Models
	}
	var problems []problem
	for i := range v.Problems {
		problems = append(problems, problem{v.Problems[i].Name, v.Problems[i].Problems})
	}
	var broken []workload
	for i := range v.Workloads {
		if w := &v.Workloads[i]; w.Problem != "" {
			broken = append(broken, workload{Namespace: w.Namespace, Name: w.Name, Problem: w.Problem})
		}
	}
	uniform, list := t.priceList()
	head := struct {
		Time      time.Time    `json:"time"`
		Version   string       `json:"version"`
		Fleet     counts       `json:"fleet"`
		Targets   view.Answers `json:"scrapeTargets"`
		Workloads int          `json:"workloads"`
		Price     float64      `json:"usdPerGPUHour,omitempty"`
		Prices    string       `json:"prices,omitempty"`
		Cost      *view.Cost   `json:"cost,omitempty"`

		Hottest *view.Hottest `json:"hottestGPU,omitempty"`
	}{v.Time.Truncate(time.Second), v.Version, countsOf(&v.Fleet), v.Targeted, len(v.Workloads) + v.Omitted.Workloads, uniform, list, v.CostBy(&t.Prices), v.Hottest}
	recent := changesOf(v.Recent[:min(10, len(v.Recent))])
	return fit(head, listOf("pools", pools, len(pools)+v.Omitted.Pools), listOf("nodesWithProblems", problems, len(problems)+v.Omitted.Problems),
		listOf("workloadsNotReady", broken, 0), listOf("lastChanges", recent, len(v.Recent)+v.Omitted.Recent))
}

// priceList returns the user's price of all GPUs, or the user's list if it has others.
func (t *tools) priceList() (uniform float64, list string) {
	if usd, ok := t.Prices.All(); ok {
		return usd, ""
	}
	return 0, t.Prices.String()
}

// get reads a path of the controller's API.
func (t *tools) get(ctx context.Context, path string, query url.Values, into any) error {
	if err := t.Controller.Get(ctx, "api/v1/"+path, query, into); err != nil {
		return fmt.Errorf("read the controller: %w", err)
	}
	return nil
}

type wasteArguments struct {
	Namespace string `json:"namespace,omitempty" jsonschema:"only this namespace"`
	Window    string `json:"window,omitempty" jsonschema:"1d, 7d or 14d; 7d if it is left out"`
}

// holder is a pod that holds idle GPUs now.
type holder struct {
	Pod       string     `json:"pod"`
	Node      string     `json:"node"`
	GPUs      float64    `json:"idleHeldGPUs"`
	HeldSince *time.Time `json:"heldSince,omitempty"`
	IdleSince *time.Time `json:"idleSince,omitempty"`
	AtLeast   bool       `json:"idleAtLeast,omitempty"` // it may have been idle for longer
	Cost      *float64   `json:"usdPerHour,omitempty"`
	Unpriced  float64    `json:"unpricedGPUs,omitempty"` // which the cost lacks
}

// account is the GPU-hours of a workload.
type account struct {
	Workload string   `json:"workload"`
	Minutes  int      `json:"minutesWithValues"`
	Hours    *float64 `json:"gpuHours"`
	Idle     *float64 `json:"idleHeldGPUHours"`
	IdleCost *float64 `json:"idleHeldUSD,omitempty"`
	Unpriced float64  `json:"gpuHoursWithoutPrice,omitempty"` // which the cost lacks
}

func (t *tools) waste(ctx context.Context, in *wasteArguments) (string, error) {
	var page webui.HolderPage
	uniform, list := t.priceList()
	if err := t.get(ctx, "holders", url.Values{"price": {t.Prices.String()}}, &page); err != nil {
		return "", err
	}
	query := url.Values{"aggregate": {"controller"}}
	if in.Window != "" {
		query.Set("window", in.Window)
	}
	if uniform > 0 {
		query.Set("price", strconv.FormatFloat(uniform, 'g', -1, 64))
	}
	var hours webui.Allocations
	if err := t.get(ctx, "allocation", query, &hours); err != nil {
		return "", err
	}
	var holders []holder
	total := page.Total
	if in.Namespace != "" {
		total = 0 // of the part that the controller sent
	}
	for i := range page.Holders {
		h := &page.Holders[i]
		if in.Namespace != "" && h.Namespace != in.Namespace {
			continue
		}
		x := holder{Pod: h.Namespace + "/" + h.Pod, Node: h.Node, GPUs: *rounded(&h.GPUs)}
		if !h.HeldSince.IsZero() {
			x.HeldSince = &h.HeldSince
		}
		if !h.IdleSince.IsZero() {
			x.IdleSince, x.AtLeast = &h.IdleSince, h.IdleAtLeast
		}
		if x.Cost, x.Unpriced = rounded(h.Cost), h.Unpriced; page.Prices != t.Prices.String() { // an older controller counts with its own
			x.Cost, x.Unpriced = nil, h.GPUs
		}
		holders = append(holders, x)
	}
	var all []webui.Allocation
	for _, set := range hours.Data {
		for _, a := range set {
			if a.Idle > 0 && (in.Namespace == "" || a.Properties["namespace"] == in.Namespace) {
				all = append(all, a)
			}
		}
	}
	slices.SortFunc(all, func(a, b webui.Allocation) int {
		return cmp.Or(cmp.Compare(b.Idle, a.Idle), cmp.Compare(a.Name, b.Name))
	})
	accounts := make([]account, len(all))
	for i := range all {
		a := &all[i]
		accounts[i] = account{a.Name, a.Minutes, rounded(&a.Hours), rounded(&a.Idle), rounded(a.IdleCost), a.Unpriced}
		if list != "" { // what was recorded does not tell models and pools
			accounts[i].IdleCost, accounts[i].Unpriced = nil, a.Hours
		}
	}
	head := struct {
		Time   time.Time `json:"time"`
		GPUs   *float64  `json:"idleHeldGPUsNow"`
		Window string    `json:"window"`
		Price  float64   `json:"usdPerGPUHour,omitempty"`
		Prices string    `json:"prices,omitempty"`
	}{page.Time.Truncate(time.Second), rounded(&page.GPUs), query.Get("window"), uniform, list}
	if head.Window == "" {
		head.Window = "7d"
	}
	return fit(head, listOf("holdersNow", holders, total), listOf("idleHeldHours", accounts, len(accounts)+hours.Omitted))
}
