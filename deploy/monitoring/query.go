// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
)

// The labels by which GPUs are told apart. dcgm-exporter names the node hostname, and
// up to 4.8.2 Hostname: a query keeps both, and one of the two is empty. GPU_I_ID is
// the instance of a GPU in MIG mode.
const (
	perNode = "cluster, hostname, Hostname"
	perGPU  = perNode + ", gpu"
	perPart = perGPU + ", GPU_I_ID" // what a MIG instance has of its own
	perXID  = perGPU + ", xid"
)

// base is the factor from a unit of the field table to the base unit that dashboards
// and rules use.
var base = map[gpu.Unit]float64{
	"MHz": 1e6, "%": 1e-2, "MiB": 1 << 20, "mJ": 1e-3, "ns": 1e-9, "MB/s": 1e6,
}

// selectors are those of one field in all profiles, grouped by the factor from their
// unit to the base unit.
type selectors []selector

type selector struct {
	names  []string
	factor float64
}

// fieldOf returns the selectors of a field. The profiles 4.8 and 1.x share a unit, so
// that there are at most two of them.
func fieldOf(id gpu.FieldID) selectors {
	f, ok := gpu.Lookup(id)
	if !ok {
		panic(fmt.Sprintf("field %d is not in the table", id))
	}
	unit := base[f.Unit]
	if unit == 0 {
		unit = 1
	}
	var out selectors
	for _, p := range names.Profiles() {
		name, scale := p.Name(f)
		factor := round(scale * unit)
		i := slices.IndexFunc(out, func(s selector) bool { return s.factor == factor })
		if i < 0 {
			i = len(out)
			out = append(out, selector{factor: factor})
		}
		if !slices.Contains(out[i].names, name) {
			out[i].names = append(out[i].names, name)
		}
	}
	return out
}

// round removes the error of a product of powers of ten.
func round(x float64) float64 {
	r, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 12, 64), 64)
	return r
}

// query joins the names of the field with these matchers in base units. wrap, if it is
// not nil, is what is made of each selector, such as a rate.
func (s selectors) query(matchers string, wrap func(string) string) string {
	var parts []string
	for _, one := range s {
		q := one.text(matchers)
		if wrap != nil {
			q = wrap(q)
		}
		if one.factor != 1 {
			q += " * " + number(one.factor)
		}
		parts = append(parts, q)
	}
	return strings.Join(parts, "\nor\n")
}

func (s selector) text(matchers string) string {
	if len(s.names) == 1 {
		return s.names[0] + braces(matchers)
	}
	return braces(fmt.Sprintf(`__name__=~"%s"`, strings.Join(s.names, "|")), matchers)
}

// braces joins matchers into a selector's braces, if there are any.
func braces(matchers ...string) string {
	matchers = slices.DeleteFunc(slices.Clone(matchers), func(m string) bool { return m == "" })
	if len(matchers) == 0 {
		return ""
	}
	return "{" + strings.Join(matchers, ",") + "}"
}

// number writes a factor as people do: 0.01, 1e6.
func number(x float64) string {
	if x >= 1e5 || x < 1e-4 {
		if e := math.Log10(x); e == math.Trunc(e) {
			return fmt.Sprintf("1e%d", int(e))
		}
	}
	return strconv.FormatFloat(x, 'f', -1, 64)
}

// rate is the wrap for counters over the window.
func rate(window string) func(string) string {
	return func(s string) string { return "rate(" + s + "[" + window + "])" }
}

func increase(window string) func(string) string {
	return func(s string) string { return "increase(" + s + "[" + window + "])" }
}

// by aggregates a query: by("max", perGPU, q).
func by(aggregation, labels, query string) string {
	if !strings.Contains(query, "\n") {
		return fmt.Sprintf("%s by (%s) (%s)", aggregation, labels, query)
	}
	return fmt.Sprintf("%s by (%s) (\n%s\n)", aggregation, labels, indent(query))
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(text, "\n", "\n  ")
}

// own joins a metric of our agent, which knows its device by UUID alone, with what the
// device is: gpu, model and hostname. What is measured of a whole GPU has its UUID also
// in MIG mode, where the devices are the instances.
func own(query, infoMatchers string) string {
	info := "gpupilot_gpu_info" + braces(infoMatchers)
	parent := "label_replace(\n" + indent(info+" * on (cluster, uuid) group_left (parent_uuid) gpupilot_mig_device_info,\n"+
		`"uuid", "$1", "parent_uuid", "(.+)"`) + "\n)"
	return query + "\n* on (cluster, uuid) group_left (gpu, model, hostname)\n" +
		by("max", "cluster, uuid, gpu, model, hostname", info+"\nor\n"+parent)
}

// relabel copies a label to another one where it is not empty.
func relabel(query, to, from string) string {
	return fmt.Sprintf("label_replace(\n%s,\n  \"%s\", \"$1\", \"%s\", \"(.+)\"\n)", indent(query), to, from)
}

// withNode gives each series the label node, for tables and for joins.
func withNode(query string) string {
	return relabel(relabel(query, "node", "hostname"), "node", "Hostname")
}

// Which GPUs a container holds. Prometheus calls a pod's label exported_pod unless the
// scrape honours labels; then a GPU without a pod has the exporter's own pod. pod_name
// is that of --use-old-namespace.
const exporterPods = `.*(dcgm-exporter|gpupilot-agent|gpu-exporter).*`

// allocated selects the series of the field's devices that a pod holds.
func (s selectors) allocated(matchers string, wrap func(string) string) string {
	var parts []string
	for _, pods := range []string{
		`exported_pod!=""`, `exported_pod="",pod!="",pod!~"` + exporterPods + `"`, `pod_name!=""`,
	} {
		parts = append(parts, s.query(strings.Trim(matchers+","+pods, ","), wrap))
	}
	return strings.Join(parts, "\nor\n")
}
