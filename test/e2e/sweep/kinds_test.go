// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package sweep

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/schema"
	"github.com/gpupilot/gpupilot/test/stack"
)

func readCRD(t *testing.T, plural string) *schema.Schema {
	t.Helper()
	s, err := schema.ReadCRD(filepath.Join("..", "..", "..", "deploy", "crds", "gpupilot.dev_"+plural+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// swept and renewed are the namespaces of a worker's object and of the fresh one.
func (w *worker) swept() string {
	return fmt.Sprintf("swept-%s-%d", strings.ToLower(w.name[:3]), w.id)
}

func (w *worker) renewed() string {
	return fmt.Sprintf("fresh-%s-%d", strings.ToLower(w.name[:3]), w.id)
}

// server is the name of the worker's object, and of its Deployment.
const server = "server"

// prepareWorkloads makes a Deployment in both namespaces of a worker, and the object.
func prepareWorkloads(t *testing.T, w *worker) {
	t.Helper()
	for _, ns := range []string{w.swept(), w.renewed()} {
		createNamespace(t, ns)
		// A wrong scale costs this many pods at most.
		create(t, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "pods"}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("8")},
		}}, deployment(ns, server, 2))
		t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), deployment(ns, server, 2)) })
	}
	w.object = object(w.name, w.swept(), server, "{}")
	w.object.Object["spec"] = schema.Copy(w.bases[0])
	w.fresh = object(w.name, w.renewed(), server, "{}")
	create(t, w.object)
	t.Cleanup(func() {
		_ = rig.Client.Delete(context.Background(), w.object)
		_ = rig.Client.Delete(context.Background(), w.fresh)
	})
}

// renewIn makes the fresh object in its namespace anew.
func renewIn(ctx context.Context, w *worker, spec map[string]any) error {
	name := client.ObjectKeyFromObject(w.fresh)
	w.fresh = object(w.name, name.Namespace, name.Name, "{}")
	w.fresh.Object["spec"] = schema.Copy(spec)
	return rig.Client.Create(ctx, w.fresh)
}

func deleteFresh(ctx context.Context, w *worker) error {
	return client.IgnoreNotFound(rig.Client.Delete(ctx, w.fresh))
}

const swept20 = `"query": {"promql": "load{w=\"swept\"}"}`

// autoscalerKind sweeps GPUAutoscalers. The fresh one has a Deployment of its own, with
// the replicas that the other had when its spec was changed.
func autoscalerKind(t *testing.T) *kind {
	t.Helper()
	rig.loads.set("swept", 20)
	rig.loads.set("other", 30)
	k := &kind{name: "GPUAutoscaler", plural: "gpuautoscalers", schema: readCRD(t, "gpuautoscalers"), workers: 8, prepare: prepareWorkloads}
	for _, signal := range []string{
		`{` + swept20 + `, "target": {"type": "AverageValue", "value": "10"}}`,
		`{"pods": {"metric": "queue_length", "port": 8000, "path": "/metrics"}, "target": {"type": "AverageValue", "value": "5"}}`,
		`{"gpu": {"metric": "Utilization"}, "target": {"value": "60"}}`,
		`{"preset": "vllm", "port": "http", "path": "/metrics", "slo": {"interTokenLatency": "50ms", "timeToFirstToken": "2s"}}`,
		`{"preset": "epp", "pool": "chat", "port": 9090, "path": "/m", "activation": "1", "target": {"value": "8"},
			"selector": {"matchLabels": {"app": "picker"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}}`,
		`{"preset": "dynamo", "model": "qwen", "activation": "0"}`,
	} {
		k.bases = append(k.bases, schema.Parse(`{
			"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "server"}, "minReplicas": 1, "maxReplicas": 4, "missingData": "Hold", "actuation": "Scale",
			"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "tolerance": "0.1", "policies": [{"type": "Pods", "value": 4, "periodSeconds": 1}]},
				"scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "tolerance": "0.1", "policies": [{"type": "Percent", "value": 400, "periodSeconds": 1}]}},
			"startup": {"expectedSeconds": 1}, "budget": {"maxGPUs": 8},
			"signals": [`+signal+`, {`+swept20+`, "target": {"type": "AverageValue", "value": "10"}}]}`).(map[string]any))
	}
	for _, more := range []string{
		`{"override": {"replicas": 2, "until": "` + schema.Soon + `", "reason": "INC-1"}, "drain": {"maxSeconds": 5},
			"schedules": [{"name": "day", "timezone": "Europe/Berlin", "days": ["Mon"], "start": "08:00", "end": "18:00", "minReplicas": 1, "maxReplicas": 4, "leadTime": "Auto"}]}`,
		`{"formula": "queue.replicas", "schedules": [{"name": "night", "cron": "0 22 * * *", "duration": "8h", "minReplicas": 1}],
			"signals": [{"name": "queue", "fallback": "Hold", "activation": "1", ` + swept20 + `, "target": {"type": "AverageValue", "value": "10"}}]}`,
	} {
		base := schema.Copy(k.bases[0]).(map[string]any)
		maps.Copy(base, schema.Parse(more).(map[string]any))
		k.bases = append(k.bases, base)
	}
	k.renew = func(ctx context.Context, w *worker, spec map[string]any) error {
		if err := deleteFresh(ctx, w); err != nil {
			return err
		}
		replicas, err := rig.Replicas(ctx, w.swept(), server)
		if err != nil {
			return err
		}
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.renewed(), Name: server}}
		if err := rig.Client.Patch(ctx, d, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))); err != nil {
			return err
		}
		return renewIn(ctx, w, spec)
	}
	k.differ = func(ctx context.Context, w *worker) (string, error) {
		if err := w.settled(ctx); err != nil {
			return "", err
		}
		is, want := autoscalerState(w.object), autoscalerState(w.fresh)
		for ns, state := range map[string]map[string]any{w.swept(): is, w.renewed(): want} {
			n, err := rig.Replicas(ctx, ns, server)
			if err != nil {
				return "", err
			}
			state["replicas"] = n
		}
		return cmp.Diff(want, is), nil
	}
	return k
}

// autoscalerState is the part of a status that does not depend on what was before: the
// last decision stays where none can be made.
func autoscalerState(u *unstructured.Unstructured) map[string]any {
	out := map[string]any{"conditions": conditions(u)}
	if slices.ContainsFunc(conditions(u), func(c string) bool { return strings.HasPrefix(c, "AbleToScale=False") }) {
		return out
	}
	inputs, _, _ := unstructured.NestedSlice(u.Object, "status", "lastDecision", "inputs")
	for _, in := range inputs {
		in, _ := in.(map[string]any)
		out[fmt.Sprint("input ", in["signal"])] = fmt.Sprint(in["target"], in["unit"], in["value"])
	}
	return out
}

// queryKind sweeps MetricQueries.
func queryKind(t *testing.T) *kind {
	t.Helper()
	k := &kind{name: "MetricQuery", plural: "metricqueries", schema: readCRD(t, "metricqueries"), workers: 3}
	for _, spec := range []string{
		`{"metricName": "depth", "query": {"promql": "load{w=\"swept\"}"}}`,
		`{"gpu": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "server"}, "metric": "Utilization", "stat": "avg", "window": "1m", "inUse": "allocated"}}`,
		`{"autoscaler": {"name": "server"}}`,
	} {
		k.bases = append(k.bases, schema.Parse(spec).(map[string]any))
	}
	k.prepare = func(t *testing.T, w *worker) {
		t.Helper()
		prepareWorkloads(t, w)
		for _, ns := range []string{w.swept(), w.renewed()} {
			a := autoscalerObject(ns, server, "swept")
			create(t, a)
			t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), a) })
		}
	}
	k.renew = func(ctx context.Context, w *worker, spec map[string]any) error {
		if err := deleteFresh(ctx, w); err != nil {
			return err
		}
		return renewIn(ctx, w, spec)
	}
	k.differ = func(ctx context.Context, w *worker) (string, error) {
		if err := w.settled(ctx); err != nil {
			return "", err
		}
		state := func(u *unstructured.Unstructured) map[string]any {
			name, _, _ := unstructured.NestedString(u.Object, "status", "metricName")
			v, _, _ := unstructured.NestedString(u.Object, "status", "value")
			return map[string]any{"conditions": conditions(u), "metric": name, "value": v}
		}
		return cmp.Diff(state(w.fresh), state(w.object)), nil
	}
	return k
}

// exporterKind sweeps GPUExporters. Their pods fit on no node, unless the sweep takes the
// selector away.
func exporterKind(t *testing.T) *kind {
	t.Helper()
	installMonitoring(t)
	k := &kind{name: "GPUExporter", plural: "gpuexporters", schema: readCRD(t, "gpuexporters"), workers: 6}
	monitor := `{"labels": {"release": "p"}, "interval": "15s", "scrapeTimeout": "10s", "honorLabels": true, "metricRelabelings": [{"action": "keep"}], "endpoint": {"path": "/metrics"}}`
	for _, spec := range []string{
		`{"nodeSelector": {"sweep": "none"}}`,
		`{"image": "` + stack.AgentImage + `", "imagePullPolicy": "Always", "imagePullSecrets": [{"name": "a"}], "discovery": "Probe", "nodeSelector": {"sweep": "none"},
			"tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 5}], "backend": "dcgm",
			"dcgm": {"hostEngine": "$(HOST_IP):5555"}, "runtimeClassName": "nvidia", "privileged": false, "collectors": {"csv": "DCGM_FI_DEV_GPU_TEMP, gauge, Temperature.\n"},
			"interval": "2s", "profile": "4.9", "kubernetes": {"attribution": true, "podLabels": true, "podLabelAllowlist": ["a.*"], "podUID": true, "virtualGPUs": true,
			"dra": true, "resourceNames": ["example.com/gpu"], "kubeletPath": "/var/lib/kubelet"}, "web": {"secretName": "web", "key": "web-config.yml", "scheme": "https"},
			"monitoring": {"serviceMonitor": ` + monitor + `, "prometheusRule": {"labels": {"release": "p"}}}, "resources": {"requests": {"cpu": "10m"}, "limits": {"memory": "1Gi"}},
			"priorityClassName": "system-cluster-critical", "updateStrategy": {"type": "RollingUpdate", "maxUnavailable": 1, "maxSurge": 0},
			"args": ["--sim-gpus=2"], "env": [{"name": "A", "value": "b"}], "podLabels": {"a": "b"}, "podAnnotations": {"a": "b"}}`,
		`{"nodeSelector": {"sweep": "none"}, "backend": "nvml", "processMetrics": true, "driver": {"root": "/run/nvidia/driver", "library": "usr/lib/libnvidia-ml.so.1"},
			"kubernetes": {"podLabels": true}, "collectors": {"configMap": {"name": "list", "key": "metrics"}}, "monitoring": {"podMonitor": ` + monitor + `}, "updateStrategy": {"type": "OnDelete"}}`,
	} {
		k.bases = append(k.bases, schema.Parse(spec).(map[string]any))
	}
	list := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: stack.Namespace, Name: "list"}, Data: map[string]string{
		"metrics": "DCGM_FI_DEV_POWER_USAGE, gauge, Power.\n", "a": "DCGM_FI_DEV_GPU_UTIL, gauge, Utilization.\n",
	}}
	create(t, list)
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), list) })
	k.prepare = func(t *testing.T, w *worker) {
		t.Helper()
		w.object = object(w.name, "", w.swept(), "{}")
		w.object.Object["spec"] = schema.Copy(w.bases[0])
		create(t, w.object)
		w.fresh = w.object
		t.Cleanup(func() {
			_ = rig.Client.Delete(context.Background(), w.object)
			_ = rig.Client.Delete(context.Background(), w.fresh)
		})
		stack.Eventually(t, func() error { return w.settled(t.Context()) })
		var err error
		if w.before, err = objectsOf(t.Context(), w.object); err != nil {
			t.Fatal(err)
		}
	}
	k.renew = func(ctx context.Context, w *worker, spec map[string]any) error {
		if w.made > 0 {
			if err := deleteFresh(ctx, w); err != nil {
				return err
			}
		}
		w.made++ // another name: the garbage collector still has the objects of the last one
		w.fresh = object(w.name, "", fmt.Sprintf("%s-%d", w.renewed(), w.made), "{}")
		return renewIn(ctx, w, spec)
	}
	k.differ = exportersDiffer
	return k
}

// exportersDiffer compares the objects of two GPUExporters. A spec that the API server
// refuses to apply changes none of the objects that there were.
func exportersDiffer(ctx context.Context, w *worker) (string, error) {
	if err := w.settled(ctx); err != nil {
		return "", err
	}
	pick := func(u *unstructured.Unstructured) (out []string, applied, valid bool) {
		for _, c := range conditions(u) {
			if strings.HasPrefix(c, "ObjectsApplied") || strings.HasPrefix(c, "CollectorsValid") {
				out = append(out, c)
			}
		}
		return out, slices.Contains(out, "ObjectsApplied=True Applied"), slices.Contains(out, "CollectorsValid=True Valid")
	}
	is, applied, valid := pick(w.object)
	want, _, _ := pick(w.fresh)
	if d := cmp.Diff(want, is); d != "" {
		return d, nil
	}
	objects, err := objectsOf(ctx, w.object)
	if err != nil {
		return "", err
	}
	expected := w.before
	if applied {
		if expected, err = objectsOf(ctx, w.fresh); err != nil {
			return "", err
		}
		if !valid { // the last valid list stays in use
			objects, expected = withoutCollectors(objects), withoutCollectors(expected)
		}
	}
	if d := cmp.Diff(expected, objects); d != "" {
		return fmt.Sprintf("applied: %v\n%s", applied, d), nil
	}
	if applied {
		w.before, err = objectsOf(ctx, w.object)
	}
	return "", err
}

// withoutCollectors removes the list of metrics.
func withoutCollectors(objects string) string {
	var out []string
	for line := range strings.Lines(objects) {
		if !strings.Contains(line, `"collectors.csv"`) {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// belongings are the kinds of objects that a GPUExporter owns.
var belongings = []string{
	"v1 ConfigMap", "v1 Service", "apps/v1 DaemonSet", "monitoring.coreos.com/v1 ServiceMonitor", "monitoring.coreos.com/v1 PodMonitor", "monitoring.coreos.com/v1 PrometheusRule",
}

// objectsOf are the objects of a GPUExporter, without its name and what the API server
// fills in, as JSON.
func objectsOf(ctx context.Context, e *unstructured.Unstructured) (string, error) {
	var out strings.Builder
	for _, b := range belongings {
		version, kind, _ := strings.Cut(b, " ")
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(version)
		list.SetKind(kind + "List")
		if err := rig.Client.List(ctx, list, client.InNamespace(stack.Namespace), client.MatchingLabels{"gpupilot.dev/exporter": e.GetName()}); err != nil {
			return "", err
		}
		slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int { return strings.Compare(a.GetName(), b.GetName()) })
		for i := range list.Items {
			u := &list.Items[i]
			if !slices.ContainsFunc(u.GetOwnerReferences(), func(r metav1.OwnerReference) bool { return r.UID == e.GetUID() }) {
				continue // of an earlier one
			}
			kept := map[string]any{"kind": kind, "name": u.GetName(), "labels": u.GetLabels()}
			for k, v := range u.Object {
				if !slices.Contains([]string{"metadata", "status", "apiVersion", "kind"}, k) {
					kept[k] = v
				}
			}
			annotations := maps.Clone(u.GetAnnotations())
			maps.DeleteFunc(annotations, func(k, _ string) bool { return strings.HasPrefix(k, "deprecated.daemonset.") })
			kept["annotations"] = len(annotations)
			text, err := json.MarshalIndent(kept, "", " ")
			if err != nil {
				return "", err
			}
			out.WriteString(strings.ReplaceAll(string(text), e.GetName(), "NAME") + "\n")
		}
	}
	return out.String(), nil
}

// installMonitoring makes the kinds of the Prometheus Operator, which take anything.
func installMonitoring(t *testing.T) {
	t.Helper()
	for plural, kind := range map[string]string{"servicemonitors": "ServiceMonitor", "podmonitors": "PodMonitor", "prometheusrules": "PrometheusRule"} {
		crd := &unstructured.Unstructured{Object: schema.Parse(fmt.Sprintf(`{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": {"name": "%[1]s.monitoring.coreos.com"}, "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced",
			"names": {"plural": %[1]q, "kind": %[2]q}, "versions": [{"name": "v1", "served": true, "storage": true,
			"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`, plural, kind)).(map[string]any)}
		if err := rig.Client.Create(t.Context(), crd); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion("monitoring.coreos.com/v1")
		list.SetKind(kind + "List")
		stack.Eventually(t, func() error { return rig.Client.List(t.Context(), list) })
	}
}
