// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/gpupilot/gpupilot/internal/terminal/doctor"
	"github.com/gpupilot/gpupilot/internal/terminal/top"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

type getArguments struct {
	View      top.Name `json:"view" jsonschema:"fleet, nodes, gpus, workloads, pods, waste or decisions"`
	Namespace string   `json:"namespace,omitempty" jsonschema:"only what is in this namespace, and GPUs that its pods hold"`
	Node      string   `json:"node,omitempty" jsonschema:"only GPUs of this node"`
	Filter    string   `json:"filter,omitempty" jsonschema:"a regular expression that a row contains, or with ! before it, does not contain"`
	Sort      string   `json:"sort,omitempty" jsonschema:"a column, such as utilization_percent; with a minus from the highest"`
	Offset    int      `json:"offset,omitempty" jsonschema:"number of rows to leave out at the start, for the next part of a long list"`
}

// get returns the rows of a view by the keys of its columns.
func (t *tools) get(ctx context.Context, in *getArguments) (string, error) {
	if !slices.Contains(top.Names, in.View) {
		return "", fmt.Errorf("view is %.40q: want one of %v", in.View, top.Names)
	}
	if in.Offset < 0 {
		return "", fmt.Errorf("offset is %d: want 0 or more", in.Offset)
	}
	filter, err := top.ParseFilter(in.Filter)
	if err != nil {
		return "", fmt.Errorf("filter: %w", err)
	}
	f, err := t.Fleet.Read(ctx, &top.Request{View: in.View, Node: in.Node, Namespace: in.Namespace, Sort: in.Sort, All: true})
	if err != nil {
		return "", fmt.Errorf("read the controller: %w", err)
	}
	look := &top.Look{ASCII: true, Prices: t.Prices, Namespace: in.Namespace, Now: f.View.Time}
	rows, err := f.Records(in.View, look, &top.Printing{Sort: in.Sort, Filter: filter})
	if err != nil {
		return "", err
	}
	total := len(rows)
	rows = rows[min(in.Offset, total):]
	for i := range rows {
		for key, v := range rows[i] {
			if x, ok := v.(float64); ok {
				rows[i][key] = *rounded(&x)
			}
		}
	}
	head := struct {
		Time    time.Time `json:"time"`
		Version string    `json:"version"`
		Total   int       `json:"total"`
		Offset  int       `json:"offset"`
	}{f.View.Time.Truncate(time.Second), f.View.Version, total, in.Offset}
	return fit(head, listOf("rows", rows, 0))
}

// explainArguments name a GPUAutoscaler.
type explainArguments struct {
	Namespace string `json:"namespace" jsonschema:"namespace of the GPUAutoscaler"`
	Name      string `json:"name" jsonschema:"name of the GPUAutoscaler"`
}

// explain returns the lines of gpupilot explain.
func (t *tools) explain(ctx context.Context, in *explainArguments) (string, error) {
	for _, name := range []string{in.Namespace, in.Name} {
		// The names become parts of a path of the API server.
		if name == "" || len(content.IsPathSegmentName(name)) > 0 || len(name) > view.MaxName {
			return "", fmt.Errorf("%.100q is no name of an object", name)
		}
	}
	var out bytes.Buffer
	if err := t.Explain(ctx, in.Namespace, in.Name, &out); err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	return fit(in, listOf("lines", lines, 0))
}

type doctorArguments struct {
	Only []string `json:"only,omitempty" jsonschema:"only these groups (node, metrics, scaling, trust, capacity) or codes such as GP301"`
	Skip []string `json:"skip,omitempty" jsonschema:"without these groups or codes"`
}

// mostFindings bounds the findings of one check in an answer.
const mostFindings = 5

// doctor returns the checks that did not pass.
func (t *tools) doctor(ctx context.Context, in *doctorArguments) (string, error) {
	r, err := t.Doctor(ctx, &doctor.Selection{Only: in.Only, Skip: in.Skip})
	if err != nil {
		return "", err
	}
	var failed, unknown []doctor.Result
	for _, c := range r.Checks {
		n := min(mostFindings, len(c.Findings))
		c.Findings, c.Omitted = c.Findings[:n], c.Omitted+len(c.Findings)-n
		switch c.Status {
		case doctor.Failed:
			failed = append(failed, c)
		case doctor.Unknown:
			unknown = append(unknown, c)
		}
	}
	head := struct {
		Checks int `json:"checks"`
		Passed int `json:"passed"`
	}{len(r.Checks), len(r.Checks) - r.Errors - r.Warnings - r.Unknown}
	return fit(head, listOf("failed", failed, 0), listOf("couldNotCheck", unknown, 0))
}
