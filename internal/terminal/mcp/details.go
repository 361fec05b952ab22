// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"time"

	"github.com/gpupilot/gpupilot/internal/serve/webui"
	"github.com/gpupilot/gpupilot/internal/terminal/doctor"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

type gpuArguments struct {
	Node      string `json:"node,omitempty" jsonschema:"only GPUs of this node"`
	UUID      string `json:"uuid,omitempty" jsonschema:"with node: one GPU with all of its fields"`
	Namespace string `json:"namespace,omitempty" jsonschema:"only GPUs that pods of this namespace hold"`
	State     string `json:"state,omitempty" jsonschema:"active, idle-held, free or stale"`
	Search    string `json:"search,omitempty" jsonschema:"part of the node, the UUID or NAMESPACE/POD"`
	Sort      string `json:"sort,omitempty" jsonschema:"name, or utilization or temperature for the highest first"`
	Offset    int    `json:"offset,omitempty" jsonschema:"number of GPUs to leave out at the start, for the next part of a long list"`
}

// device is a GPU or a MIG instance.
type device struct {
	Node        string     `json:"node"`
	UUID        string     `json:"uuid"`
	Model       string     `json:"model,omitempty"`
	State       view.State `json:"state"`
	Utilization *float64   `json:"utilizationPercent,omitempty"`
	Used        *float64   `json:"memoryUsedMiB,omitempty"`
	Total       *float64   `json:"memoryTotalMiB,omitempty"`
	Power       *float64   `json:"powerWatts,omitempty"`
	Temperature *float64   `json:"temperatureCelsius,omitempty"`
	Pods        []string   `json:"pods,omitempty"`
	MorePods    int        `json:"podsOmitted,omitempty"`
	HeldSince   *time.Time `json:"heldSince,omitempty"`
	IdleSince   *time.Time `json:"idleSince,omitempty"`
	IdleAtLeast bool       `json:"idleAtLeast,omitempty"` // it may have been idle for longer
}

// mostPods bounds the pods of a shared GPU in an answer.
const mostPods = 8

func deviceOf(node, model string, state view.State, g *view.GPU) device {
	d := device{
		Node: node, UUID: g.UUID, Model: model, State: state, Utilization: rounded(g.Utilization), Used: rounded(g.MemoryUsedMiB),
		Total: rounded(g.MemoryTotalMiB), Power: rounded(g.PowerWatts), Temperature: rounded(g.TemperatureC),
	}
	d.MorePods = max(0, len(g.Owners)-mostPods)
	for _, o := range g.Owners[:len(g.Owners)-d.MorePods] {
		d.Pods = append(d.Pods, o.Namespace+"/"+o.Pod)
	}
	if !g.HeldSince.IsZero() {
		d.HeldSince = &g.HeldSince
	}
	if !g.IdleSince.IsZero() {
		d.IdleSince, d.IdleAtLeast = &g.IdleSince, g.IdleAtLeast
	}
	return d
}

func (t *tools) gpu(ctx context.Context, in *gpuArguments) (string, error) {
	if in.UUID != "" {
		return t.oneGPU(ctx, in)
	}
	query := url.Values{"offset": {strconv.Itoa(in.Offset)}, "limit": {"100"}}
	for name, value := range map[string]string{"node": in.Node, "namespace": in.Namespace, "state": in.State, "q": in.Search, "sort": in.Sort} {
		if value != "" {
			query.Set(name, value)
		}
	}
	var page webui.GPUPage
	if err := t.get(ctx, "gpus", query, &page); err != nil {
		return "", err
	}
	all := make([]device, len(page.GPUs))
	for i := range page.GPUs {
		g := &page.GPUs[i]
		all[i] = deviceOf(g.Node, g.Model, g.State, &g.GPU)
	}
	head := pageHead{page.Time.Truncate(time.Second), page.Total, page.Offset}
	return fit(head, listOf("gpus", all, page.Total-page.Offset))
}

type field struct {
	Name  string   `json:"name"`
	Unit  string   `json:"unit,omitempty"`
	Value *float64 `json:"value"`
	Age   *float64 `json:"ageSeconds"`
	// The lowest and the highest value of the last minutes.
	Least *float64 `json:"least10min,omitempty"`
	Most  *float64 `json:"most10min,omitempty"`
}

// oneGPU returns a GPU with all of its fields.
func (t *tools) oneGPU(ctx context.Context, in *gpuArguments) (string, error) {
	if in.Node == "" {
		return "", errors.New("uuid without node: give both")
	}
	var d view.Device
	if err := t.get(ctx, "gpu", url.Values{"node": {in.Node}, "uuid": {in.UUID}}, &d); err != nil {
		return "", err
	}
	fields := make([]field, len(d.Fields))
	for i := range d.Fields {
		f := &d.Fields[i]
		age := f.Age.Seconds()
		x := field{Name: f.Name, Unit: f.Unit, Value: rounded(&f.Value), Age: rounded(&age)}
		for _, p := range f.Past {
			v := p[1]
			if x.Least == nil || v < *x.Least {
				x.Least = &v
			}
			if x.Most == nil || v > *x.Most {
				x.Most = &v
			}
		}
		x.Least, x.Most = rounded(x.Least), rounded(x.Most)
		fields[i] = x
	}
	head := struct {
		Time time.Time `json:"time"`
		GPU  device    `json:"gpu"`
	}{d.Time.Truncate(time.Second), deviceOf(d.Node, "", d.State, &d.GPU)}
	return fit(head, listOf("fields", fields, 0))
}

type doctorArguments struct {
	Only []string `json:"only,omitempty" jsonschema:"only these groups (node, metrics, scaling, trust, capacity) or codes such as GP301"`
	Skip []string `json:"skip,omitempty" jsonschema:"without these groups or codes"`
}

// finding is a check that failed or could not run.
type finding struct {
	Code     string           `json:"code"`
	Level    doctor.Level     `json:"level"`
	Status   doctor.Status    `json:"status"`
	Title    string           `json:"wantedState"`
	Reason   string           `json:"reason,omitempty"`
	Fix      string           `json:"fix,omitempty"`
	Findings []doctor.Finding `json:"findings,omitempty"`
	Omitted  int              `json:"findingsOmitted,omitempty"`
}

// mostFindings bounds the findings of one check in an answer.
const mostFindings = 5

func (t *tools) doctor(ctx context.Context, in *doctorArguments) (string, error) {
	r, err := t.Doctor(ctx, &doctor.Selection{Only: in.Only, Skip: in.Skip})
	if err != nil {
		return "", err
	}
	head := struct {
		Checks   int `json:"checks"`
		Passed   int `json:"passed"`
		Errors   int `json:"errors"`
		Warnings int `json:"warnings"`
		Unknown  int `json:"couldNotCheck"`
	}{len(r.Checks), len(r.Checks) - r.Errors - r.Warnings - r.Unknown, r.Errors, r.Warnings, r.Unknown}
	var failed, unknown []finding
	for i := range r.Checks {
		c := &r.Checks[i]
		x := finding{c.Code, c.Level, c.Status, c.Title, c.Reason, c.Fix, c.Findings[:min(mostFindings, len(c.Findings))], c.Omitted + max(0, len(c.Findings)-mostFindings)}
		switch c.Status {
		case doctor.Failed:
			failed = append(failed, x)
		case doctor.Unknown:
			x.Fix = ""
			unknown = append(unknown, x)
		}
	}
	return fit(head, listOf("failed", failed, 0), listOf("couldNotCheck", unknown, 0))
}
