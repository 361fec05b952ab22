// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"net/url"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

// Request is what a view needs.
type Request struct {
	View      Name
	Node      string // only its GPUs
	Namespace string // only GPUs of its pods
	Query     string // part of a name
	Prices    string // a price list instead of the controller's
	Sort      string // a column, as for SortBy
	Offset    int    // of a list that is read in part
	Workload  string // whose details are shown, NAMESPACE/NAME
	All       bool   // all of a list, in several requests
}

// Source reads a fleet.
type Source interface {
	Read(ctx context.Context, r *Request) (*Fleet, error)
}

// Getter reads the JSON at a path of the controller.
type Getter interface {
	Get(ctx context.Context, path string, query url.Values, into any) error
}

// Controller is the controller as a source.
type Controller struct {
	API  Getter
	Name string // for the head
}

// Read reads the view, and of a fleet that is not sent whole the list that is shown.
func (c *Controller) Read(ctx context.Context, r *Request) (*Fleet, error) {
	f := &Fleet{Source: c.Name}
	if err := c.API.Get(ctx, "api/v1/view", nil, &f.View); err != nil {
		return nil, err
	}
	f.TotalWorkloads = len(f.View.Workloads) + f.View.Omitted.Workloads
	if namespace, name, ok := strings.Cut(r.Workload, "/"); ok {
		var d view.WorkloadDetail
		if c.API.Get(ctx, "api/v1/workload", url.Values{"namespace": {namespace}, "name": {name}}, &d) == nil {
			f.Detail = &d
		}
	}
	if f.View.Omitted.Nodes == 0 {
		f.whole(r.Node)
	} else if err := c.readNodes(ctx, r, f); err != nil {
		return nil, err
	}
	if r.View == Workloads && f.View.Omitted.Workloads > 0 {
		return f, c.readWorkloads(ctx, r, f)
	}
	return f, nil
}

// whole fills the lists from a view that has all nodes.
func (f *Fleet) whole(node string) {
	f.Nodes = f.View.NodeSummaries()
	for i := range f.View.Nodes {
		n := &f.View.Nodes[i]
		if node != "" && n.Name != node {
			continue
		}
		for j := range n.GPUs {
			g := &n.GPUs[j]
			f.GPUs = append(f.GPUs, GPU{GPUEntry: view.GPUEntry{Node: n.Name, Pool: n.Pool, Model: n.Model, State: f.View.State(g), GPU: *g}})
		}
	}
	f.TotalNodes, f.TotalGPUs = len(f.Nodes), len(f.GPUs)
}

// The sizes of the pages that are read of lists: what fits on a screen, and the largest.
const (
	screenful    = 200
	mostGPUs     = 1000
	mostWorkload = 50
)

func (c *Controller) readNodes(ctx context.Context, r *Request, f *Fleet) error {
	f.TotalNodes, f.TotalGPUs = f.View.Fleet.Nodes, f.View.Fleet.GPUs
	if (r.View == Pools || r.View == Waste) && !r.All && r.Namespace+r.Node+r.Query == "" {
		f.Holders = &view.HolderPage{}
		return c.API.Get(ctx, "api/v1/holders", url.Values{"price": {r.Prices}}, f.Holders)
	}
	switch r.View {
	case Nodes:
		q := url.Values{}
		if order := nodeOrders[r.Sort]; order != "" {
			q.Set("sort", order)
		}
		return c.pages(ctx, r, q, screenful, func(q url.Values) (int, int, error) {
			var p view.NodePage
			err := c.API.Get(ctx, "api/v1/nodes", q, &p)
			f.Nodes, f.TotalNodes, f.Offset = append(f.Nodes, p.Nodes...), p.Total, r.Offset
			return len(p.Nodes), p.Total, err
		})
	case GPUs, Pods, Waste:
		q := url.Values{}
		if r.View == Waste {
			q.Set("state", string(view.Idle))
		}
		if order := gpuOrders[r.Sort]; r.View == GPUs && order != "" {
			q.Set("sort", order)
		}
		for name, value := range map[string]string{"node": r.Node, "namespace": r.Namespace} {
			if value != "" {
				q.Set(name, value)
			}
		}
		return c.pages(ctx, r, q, mostGPUs, func(q url.Values) (int, int, error) {
			var p view.GPUPage
			err := c.API.Get(ctx, "api/v1/gpus", q, &p)
			for i := range p.GPUs {
				f.GPUs = append(f.GPUs, GPU{GPUEntry: p.GPUs[i]})
			}
			f.TotalGPUs, f.Offset = p.Total, r.Offset
			return len(p.GPUs), p.Total, err
		})
	}
	return nil
}

// pages reads one page of a list, or all of them.
func (c *Controller) pages(ctx context.Context, r *Request, q url.Values, size int, read func(url.Values) (got, total int, err error)) error {
	if !r.All {
		size = screenful
	}
	q.Set("limit", strconv.Itoa(size))
	if r.Query != "" {
		q.Set("q", r.Query)
	}
	for offset := r.Offset; ; {
		q.Set("offset", strconv.Itoa(offset))
		got, total, err := read(q)
		if offset += got; err != nil || !r.All || got == 0 || offset >= total {
			return err
		}
	}
}

// The parameters sort for columns of GPUs and of nodes. By other columns, only the part that
// was read is sorted.
var (
	gpuOrders  = map[string]string{"-utilization_percent": "utilization", "-temperature_celsius": "temperature", "gpu": "name"}
	nodeOrders = map[string]string{
		"-utilization_percent": "utilization", "-temperature_celsius": "temperature", "-idle_held_gpus": "idle", "-free_gpus": "free", "problem": "problems", "node": "name",
	}
)

// readWorkloads reads the workloads that the view lacks.
func (c *Controller) readWorkloads(ctx context.Context, r *Request, f *Fleet) error {
	f.View.Workloads = nil
	return c.pages(ctx, r, url.Values{}, mostWorkload, func(q url.Values) (int, int, error) {
		q.Set("limit", strconv.Itoa(mostWorkload))
		var p view.WorkloadPage
		err := c.API.Get(ctx, "api/v1/workloads", q, &p)
		f.View.Workloads, f.TotalWorkloads, f.Offset = append(f.View.Workloads, p.Workloads...), p.Total, r.Offset
		return len(p.Workloads), p.Total, err
	})
}
