// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/gpupilot/gpupilot/internal/terminal/remote"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

var noon = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

type object_ = map[string]any

// world is a cluster: what the API server serves at each path, and the controller's view.
type world struct {
	version string
	lists   map[string][]object_ // by the last part of the path
	single  map[string]object_   // by the whole path
	denied  map[string]bool      // last parts of paths that the user may not read
	mayNot  string               // a resource that the user may not create
	lacks   string               // VERB GROUP/RESOURCE/PART NAMESPACE that the controller may not
	asked   int                  // how many of the controller's rights were asked for
	view    view.View
	viewErr error
	now     time.Time // of the doctor
}

// parse reads an object or a list of objects as YAML.
func parse(t testing.TB, text string) object_ {
	t.Helper()
	var o object_
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return o
}

const (
	exporterPod = `{metadata: {namespace: gpupilot-system, name: %[1]s-%[2]s, labels: {app.kubernetes.io/name: %[1]s}}, spec: {nodeName: %[2]s, containers: [{image: "%[1]s:v1"}]}, status: {phase: Running, conditions: [{type: Ready, status: "True"}]}}`
	gpuNode     = `{metadata: {name: %s, labels: {nvidia.com/gpu.present: "true"}}, status: {capacity: {nvidia.com/gpu: "8"}, allocatable: {nvidia.com/gpu: "8"}, conditions: [{type: GPUHealthy, status: "True"}]}}`
	autoscaler  = `{apiVersion: gpupilot.dev/v1alpha1, kind: GPUAutoscaler, metadata: {namespace: llm, name: chat}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}, minReplicas: 1, maxReplicas: 8, signals: [{gpu: {metric: Utilization}, target: {value: "60"}}]}, status: {currentReplicas: 1, servingReplicas: 1, startingReplicas: 0, startup: {p50Seconds: 60, p95Seconds: 90, samples: 3}, conditions: [{type: AbleToScale, status: "True", reason: Able, message: ""}, {type: SignalsReadable, status: "True", reason: Readable, message: ""}]}}`
	deployment  = `{metadata: {namespace: llm, name: chat}, spec: {template: {metadata: {labels: {app: chat}}, spec: {terminationGracePeriodSeconds: 60, containers: [{name: server, image: vllm, args: [--model, x, --shutdown-timeout=30], readinessProbe: {httpGet: {path: /health, port: 8000}}, lifecycle: {preStop: {sleep: {seconds: 15}}}, resources: {limits: {nvidia.com/gpu: "2"}}}]}}}}`
)

// healthy is a cluster in which nothing is wrong.
func healthy(t testing.TB) *world {
	t.Helper()
	o := func(format string, args ...any) object_ { t.Helper(); return parse(t, fmt.Sprintf(format, args...)) }
	w := &world{version: "v1.37.1", now: noon, lists: map[string][]object_{}, single: map[string]object_{}, denied: map[string]bool{}}
	w.lists["nodes"] = []object_{o(gpuNode, "n1"), o(gpuNode, "n2"), o(`{metadata: {name: cpu}}`)}
	w.lists["pods"] = []object_{
		o(exporterPod, "gpupilot-agent", "n1"), o(exporterPod, "gpupilot-agent", "n2"),
		o(`{metadata: {namespace: gpupilot-system, name: c, labels: {app.kubernetes.io/name: gpupilot, app.kubernetes.io/component: controller}}, spec: {nodeName: cpu, containers: [{image: "c:v1", args: [--namespace=gpupilot-system]}]}, status: {phase: Running, conditions: [{type: Ready, status: "True"}]}}`),
	}
	w.lists["gpuautoscalers"] = []object_{parse(t, autoscaler)}
	w.lists["gpuexporters"] = []object_{o(`{metadata: {name: default}, spec: {env: [{name: A, value: hidden}], args: [--x=hidden]}, status: {nodes: 2, desiredAgents: 2, readyAgents: 2, updatedAgents: 2, conditions: [{type: Ready, status: "True"}, {type: ObjectsApplied, status: "True"}]}}`)}
	w.lists["deployments"] = []object_{parse(t, deployment)}
	w.lists["statefulsets"], w.lists["daemonsets"], w.lists["horizontalpodautoscalers"], w.lists["poddisruptionbudgets"] = nil, nil, nil, nil
	for _, name := range policies {
		w.lists["validatingadmissionpolicies"] = append(w.lists["validatingadmissionpolicies"], o(`{metadata: {name: %s}, spec: {failurePolicy: Fail}}`, name))
		w.lists["validatingadmissionpolicybindings"] = append(w.lists["validatingadmissionpolicybindings"], o(`{metadata: {name: %s}}`, name))
	}
	w.shippedRBAC(t)
	valid := authority(t, noon.Add(365*24*time.Hour))
	for _, name := range apiServices {
		w.single["/apis/apiregistration.k8s.io/v1/apiservices/"+name] = o(`{metadata: {name: %s}, spec: {caBundle: %s, service: {namespace: gpupilot-system, name: gpupilot-controller}}, status: {conditions: [{type: Available, status: "True"}]}}`, name, valid)
	}
	w.single["/apis/coordination.k8s.io/v1/namespaces/gpupilot-system/leases/gpupilot-controller"] = o(`{metadata: {name: gpupilot-controller}, spec: {holderIdentity: c-0, leaseDurationSeconds: 15, renewTime: %q}}`, noon.Add(-3*time.Second).Format("2006-01-02T15:04:05.000000Z"))
	w.view = view.View{Time: noon, Leader: true, Targets: []view.Target{{Name: "a1", Kind: "agent", Node: "n1", Up: true}, {Name: "a2", Kind: "agent", Node: "n2", Up: true}, {Name: "p", Kind: "pod", Starting: noon}}}
	return w
}

// shippedRBAC adds the roles of deploy/rbac.
func (w *world) shippedRBAC(t testing.TB) {
	t.Helper()
	files, err := filepath.Glob("../../../deploy/rbac/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files of deploy/rbac, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range strings.Split(string(b), "\n---\n") {
			o := parse(t, doc)
			switch o["kind"] {
			case "ClusterRole":
				w.lists["clusterroles"] = append(w.lists["clusterroles"], o)
			case "ClusterRoleBinding":
				w.lists["clusterrolebindings"] = append(w.lists["clusterrolebindings"], o)
			}
		}
	}
}

// add adds an object to a list.
func (w *world) add(t testing.TB, list, text string, args ...any) {
	t.Helper()
	w.lists[list] = append(w.lists[list], parse(t, fmt.Sprintf(text, args...)))
}

// set sets a field of the first object of a list; a path of names and indexes.
func (w *world) set(list string, value any, path ...any) {
	var at any = w.lists[list][0]
	for i, p := range path {
		last := i == len(path)-1
		switch p := p.(type) {
		case string:
			o, _ := at.(object_)
			if last {
				o[p] = value
				return
			}
			if o[p] == nil {
				o[p] = object_{}
			}
			at = o[p]
		case int:
			at = at.([]any)[p]
		}
	}
}

// ServeHTTP is the API server.
func (w *world) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	last := parts[len(parts)-1]
	answer := func(v any) { _ = json.NewEncoder(out).Encode(v) }
	switch {
	case w.denied[last]:
		out.WriteHeader(http.StatusForbidden)
		fmt.Fprintf(out, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "%s is forbidden", "code": 403}`, last)
	case last == "version":
		answer(object_{"gitVersion": w.version})
	case last == "selfsubjectaccessreviews", last == "subjectaccessreviews":
		var review struct {
			Spec struct {
				ResourceAttributes struct{ Verb, Group, Resource, Subresource, Namespace string } `json:"resourceAttributes"`
				User               string
			} `json:"spec"`
		}
		_ = json.NewDecoder(r.Body).Decode(&review)
		a := review.Spec.ResourceAttributes
		may := a.Resource != w.mayNot
		if review.Spec.User != "" {
			w.asked++
			may = fmt.Sprintf("%s %s/%s/%s %s", a.Verb, a.Group, a.Resource, a.Subresource, a.Namespace) != w.lacks && strings.HasPrefix(review.Spec.User, "system:serviceaccount:gpupilot-system:")
		}
		answer(object_{"status": object_{"allowed": may}})
	case w.single[r.URL.Path] != nil:
		answer(w.single[r.URL.Path])
	default:
		items, ok := w.lists[last]
		if !ok {
			http.Error(out, "404 page not found", http.StatusNotFound)
			return
		}
		if last == "pods" {
			items = podsOf(items, parts[len(parts)-2], r.URL.Query().Get("labelSelector"))
		}
		answer(object_{"items": append([]object_{}, items...)})
	}
}

// podsOf are the pods of a namespace that a selector selects.
func podsOf(all []object_, namespace, selector string) (out []object_) {
	s, err := labels.Parse(selector)
	if err != nil {
		panic(err)
	}
	for _, o := range all {
		m := o["metadata"].(object_)
		set := labels.Set{}
		for k, v := range m["labels"].(object_) {
			set[k] = v.(string)
		}
		if m["namespace"] == namespace && s.Matches(set) {
			out = append(out, o)
		}
	}
	return out
}

// examine runs the checks of a selection on a cluster.
func (w *world) examine(t testing.TB, s Selection) ([]Result, *Facts) {
	t.Helper()
	return w.examineOn(t, w, s)
}

// examineOn has another API server.
func (w *world) examineOn(t testing.TB, h http.Handler, s Selection) ([]Result, *Facts) {
	t.Helper()
	server := httptest.NewServer(h)
	defer server.Close()
	api, err := remote.NewAPI(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	where := Where{API: api, Namespace: "gpupilot-system", Now: func() time.Time { return w.now }, Controller: func(_ context.Context, v *view.View) error {
		*v = w.view
		return w.viewErr
	}}
	checks, err := s.Select()
	if err != nil {
		t.Fatal(err)
	}
	f := where.Gather(t.Context(), s.Pre)
	return Run(checks, f), f
}

// failed are the codes of the checks that did not pass; with a question mark those that could
// not run.
func failed(results []Result) (out []string) {
	for i := range results {
		switch results[i].Status {
		case Failed:
			out = append(out, results[i].Code)
		case Unknown:
			out = append(out, results[i].Code+"?")
		}
	}
	return out
}

func TestHealthy(t *testing.T) {
	for _, s := range []Selection{{}, {Pre: true}, {Only: []string{"pre"}}} {
		w := healthy(t)
		results, _ := w.examine(t, s)
		if s.Only != nil && len(results) == 0 {
			t.Error("no check is selected")
		}
		for i := range results {
			if r := &results[i]; r.Status != Passed {
				t.Errorf("%s %s: %s %v", r.Code, r.Status, r.Reason, r.Findings)
			}
		}
		if code := ExitCode(results, true); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

// breaks are the ways to break each check, and nothing else. The key is the code.
func breaks(t *testing.T) map[string][]func(*world) {
	condition := func(kind, reason string) []any {
		return []any{object_{"type": kind, "status": "False", "reason": reason, "message": "broken"}}
	}
	target := func(change func(*view.Target)) func(*world) {
		return func(w *world) { change(&w.view.Targets[0]) }
	}
	problem := func(reason string) func(*world) {
		return func(w *world) {
			w.set("gpuexporters", []any{object_{"node": "n1", "reason": reason, "message": "m"}}, "status", "problems")
		}
	}
	stale := func(w *world) {
		w.view.Problems = []view.NodeSummary{{Name: "n1", Counts: view.Counts{GPUs: 8, Stale: 1}}}
	}
	pods := []any{"spec", "template", "spec"}
	container := func(field string, value any) func(*world) {
		return func(w *world) { w.set("deployments", value, append(slices.Clone(pods), "containers", 0, field)...) }
	}
	one := func(f ...func(*world)) []func(*world) { return f }
	service := "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.custom.metrics.k8s.io"
	lease := "/apis/coordination.k8s.io/v1/namespaces/gpupilot-system/leases/gpupilot-controller"
	const rival = `{metadata: {namespace: llm, name: other}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}}}`
	const dcgm = `{metadata: {namespace: %s, name: dcgm-exporter}, spec: {template: {spec: {containers: [{image: "nvcr.io/nvidia/k8s/dcgm-exporter:4.5"}]}}}, status: {desiredNumberScheduled: 2}}`
	out := map[string][]func(*world){
		"GP101": one(func(w *world) { w.version = "v1.29.4-gke.100" }),
		"GP102": one(func(w *world) { w.mayNot = "clusterroles" }),
		"GP103": one(func(w *world) {
			w.single[service]["spec"] = object_{"service": object_{"namespace": "monitoring", "name": "prometheus-adapter"}}
		}),
		"GP104": one(func(w *world) { w.add(t, "daemonsets", dcgm, "gpu-operator") }),
		"GP105": one(func(w *world) { w.add(t, "daemonsets", dcgm, managedNamespace) }),
		"GP106": one(func(w *world) { w.lists["nodes"] = w.lists["nodes"][2:] }),
		"GP107": one(func(w *world) { w.set("nodes", object_{}, "status", "allocatable") }),
		"GP201": one(
			func(w *world) { w.lists["pods"] = w.lists["pods"][1:] },
			func(w *world) {
				w.set("pods", []any{object_{"type": "Ready", "status": "False"}}, "status", "conditions")
				w.view.Targets[0].Up = false
			},
		),
		"GP202": one(problem(secondAgent)),
		"GP203": one(problem("DriverNotReady"), func(w *world) { // its agent is not ready, and does not answer
			problem("DriverNotReady")(w)
			w.set("pods", []any{object_{"type": "Ready", "status": "False"}}, "status", "conditions")
			w.view.Targets[0].Up = false
		}, func(w *world) {
			problem("DeviceDown")(w)
			stale(w)
		}),
		"GP204": one(func(w *world) { w.set("nodes", condition("GPUHealthy", "GPULost"), "status", "conditions") }, func(w *world) { // the agent says so, and the GPU has no values
			w.set("nodes", condition("GPUHealthy", "GPULost"), "status", "conditions")
			problem("DeviceDown")(w)
			stale(w)
		}),
		"GP205": one(func(w *world) { w.set("pods", []any{object_{"image": "gpupilot-agent:v0"}}, "spec", "containers") }),
		"GP206": one(func(w *world) {
			w.set("gpuexporters", condition("CollectorsValid", "InvalidCollectors"), "status", "conditions")
		}),
		"GP301": one(target(func(x *view.Target) { x.Up, x.Error = false, "connection refused" }), func(w *world) { // its GPUExporter says so, too
			problem("AgentNotAnswering")(w)
			w.view.Targets[0].Up = false
		}, func(w *world) { // a pod of chat-large, which has no GPUAutoscaler with unreadable signals
			large := strings.NewReplacer("name: chat}, spec", "name: large}, spec", "name: chat}, min", "name: chat-large}, min").Replace(autoscaler)
			w.lists["gpuautoscalers"] = append(w.lists["gpuautoscalers"], parse(t, large))
			w.set("gpuautoscalers", condition("SignalsReadable", "NothingServes"), "status", "conditions")
			w.view.Targets = append(w.view.Targets, view.Target{Kind: "pod", Namespace: "llm", Name: "pod/llm/chat-large-0:8000/metrics"})
		}),
		"GP302": one(target(func(x *view.Target) { x.Contradiction = "it says that GPU-1 is held by llm/a" })),
		"GP303": one(target(func(x *view.Target) { x.Limited = "10,000 series" })),
		"GP304": one(func(w *world) {
			stale(w)
			w.view.Targets[0].Up, w.view.Targets[0].Frozen = false, 2
		}),
		"GP305": one(func(w *world) {
			stale(w)
			w.view.Targets[0].OutOfRange = 1
		}),
		"GP306": one(func(w *world) { w.add(t, "pods", exporterPod, "dcgm-exporter", "n1") }),
		"GP307": one(stale),
		"GP308": one(func(w *world) { w.set("gpuexporters", condition("FieldsGiven", "NeedDCGM"), "status", "conditions") }),
		"GP401": one(func(w *world) { w.add(t, "horizontalpodautoscalers", rival) }, func(w *world) { // the controller says so, too
			w.add(t, "horizontalpodautoscalers", rival)
			w.set("gpuautoscalers", condition("AbleToScale", "OwnedByAnother"), "status", "conditions")
		}),
		"GP402": one(func(w *world) {
			w.add(t, "scaledobjects", `{metadata: {namespace: llm, name: other}, spec: {scaleTargetRef: {name: chat}}}`)
			w.add(t, "horizontalpodautoscalers", `{metadata: {namespace: llm, name: keda-hpa-other, labels: {scaledobject.keda.sh/name: other}}, spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}}}`)
		}),
		"GP403": one(func(w *world) {
			w.add(t, "verticalpodautoscalers", `{metadata: {namespace: llm, name: v}, spec: {targetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}}}`)
		}),
		"GP404": one(func(w *world) {
			w.lists["gpuautoscalers"] = append(w.lists["gpuautoscalers"], parse(t, strings.Replace(autoscaler, "name: chat}, spec", "name: second}, spec", 1)))
		}),
		"GP405": one(func(w *world) {
			w.set("gpuautoscalers", condition("AbleToScale", "TargetNotFound"), "status", "conditions")
		}),
		"GP406": one(func(w *world) {
			w.set("gpuautoscalers", condition("SignalsReadable", "NoFreshData"), "status", "conditions")
		}, func(w *world) { // its pod does not answer
			w.set("gpuautoscalers", condition("SignalsReadable", "NoFreshData"), "status", "conditions")
			w.view.Targets = append(w.view.Targets, view.Target{Kind: "pod", Namespace: "llm", Name: "pod/llm/chat-0:8000/metrics"})
		}),
		"GP407": one(func(w *world) {
			w.set("gpuautoscalers", []any{object_{"reason": "Unschedulable", "replicas": 2, "message": "0/3 nodes"}}, "status", "pending")
		}),
		"GP408": one(func(w *world) { w.set("gpuautoscalers", 9, "spec", "maxReplicas") }),
		"GP409": one(func(w *world) {
			w.set("gpuautoscalers", []any{object_{"gpu": object_{"metric": "Utilization"}, "target": object_{"value": "100"}}}, "spec", "signals")
		}),
		"GP410": one(func(w *world) {
			w.set("gpuautoscalers", object_{"scaleDown": object_{"stabilizationWindowSeconds": 60}}, "spec", "behavior")
		}),
		"GP411": one(container("readinessProbe", nil)),
		"GP412": one(
			func(w *world) {
				w.set("deployments", 45, append(slices.Clone(pods), "terminationGracePeriodSeconds")...)
			},
			container("lifecycle", object_{"preStop": object_{"exec": object_{"command": []any{"/bin/sh", "-c", "sleep 35; nginx -s quit"}}}}),
			container("args", []any{"--shutdown-timeout", "60"}),
		),
		"GP413": one(
			func(w *world) {
				w.add(t, "poddisruptionbudgets", `{metadata: {namespace: llm, name: b}, spec: {maxUnavailable: 0, selector: {matchLabels: {app: chat}}}}`)
			},
			func(w *world) {
				w.add(t, "poddisruptionbudgets", `{metadata: {namespace: llm, name: b}, spec: {minAvailable: "100%%", selector: {matchLabels: {app: chat}}}}`)
			},
		),
		"GP501": one(func(w *world) {
			w.lists["pods"][2]["spec"].(object_)["containers"] = []any{object_{"image": "c:v1", "args": []any{"--page-auth=none"}}}
		}, func(w *world) {
			w.lists["pods"][2]["spec"].(object_)["containers"] = []any{object_{"image": "c:v1", "command": []any{"/gpupilot-controller", "--page-auth", "token"}, "args": []any{"--page-auth", "none"}}}
		}, func(w *world) {
			w.lists["pods"][2]["spec"].(object_)["containers"] = []any{object_{"image": "c:v1", "env": []any{object_{"name": "GPUPILOT_PAGE_AUTH", "value": "none"}}}}
		}),
		"GP502": one(func(w *world) {
			w.single[service]["status"] = object_{"conditions": []any{object_{"type": "Available", "status": "False", "reason": "FailedDiscoveryCheck"}}}
		}),
		"GP503": one(
			func(w *world) { w.set("validatingadmissionpolicies", "Ignore", "spec", "failurePolicy") },
			func(w *world) { w.lists["validatingadmissionpolicies"] = w.lists["validatingadmissionpolicies"][1:] },
			func(w *world) {
				w.lists["validatingadmissionpolicybindings"] = w.lists["validatingadmissionpolicybindings"][1:]
			},
		),
		"GP504": {
			bound(t, `{kind: ServiceAccount, namespace: gpupilot-system, name: gpupilot-controller}`),
			bound(t, `{kind: User, name: "system:serviceaccount:gpupilot-system:gpupilot-controller"}`),
			bound(t, `{kind: Group, name: "system:serviceaccounts"}`),
			bound(t, `{kind: Group, name: "system:serviceaccounts:gpupilot-system"}`),
			func(w *world) { // serviceAccount.name of the chart
				w.lists["pods"][2]["spec"].(object_)["serviceAccountName"] = "robot"
				bound(t, `{kind: ServiceAccount, namespace: gpupilot-system, name: robot}`)(w)
			},
		},
		"GP505": one(func(w *world) {
			w.single[service]["spec"].(object_)["caBundle"] = authority(t, noon.Add(6*24*time.Hour))
		}),
		"GP506": one(
			func(w *world) { w.lacks = "update apps/deployments/scale llm" }, func(w *world) { w.lacks = "watch autoscaling/horizontalpodautoscalers/ " },
			func(w *world) { w.lacks = "patch /pods/status " }, func(w *world) { w.lacks = "update coordination.k8s.io/leases/ gpupilot-system" },
		),
		"GP601": one(func(w *world) {
			w.set("pods", w.lists["pods"][0]["status"], "status") // unchanged
			w.lists["pods"][2]["status"] = object_{"phase": "Pending"}
			delete(w.single, lease)
			w.viewErr = errors.New("no endpoints")
		}),
		"GP602": one(func(w *world) {
			w.set("pods", []any{object_{"name": "agent", "restartCount": 3, "lastState": object_{"terminated": object_{"reason": "OOMKilled"}}}}, "status", "containerStatuses")
		}),
		"GP603": one(func(w *world) { delete(w.single, lease) }, func(w *world) {
			w.single[lease]["spec"].(object_)["renewTime"] = "2026-11-24T11:00:00.000000Z"
		}, func(w *world) { w.single[lease]["spec"].(object_)["holderIdentity"] = "" }),
	}
	maps.Copy(out, boundsBreaks(t))
	return out
}

// bound gives somebody all rights.
func bound(t *testing.T, subject string) func(*world) {
	t.Helper()
	return func(w *world) {
		w.add(t, "clusterroles", `{metadata: {name: cluster-admin}, rules: [{verbs: ["*"], apiGroups: ["*"], resources: ["*"]}]}`)
		w.add(t, "clusterrolebindings", `{metadata: {name: oops}, roleRef: {kind: ClusterRole, name: cluster-admin}, subjects: [%s]}`, subject)
	}
}

// Each check fails for what breaks it, and no other check does.
func TestEachCheckIsBroken(t *testing.T) {
	all := breaks(t)
	for _, c := range Checks() {
		if len(all[c.Code]) == 0 {
			t.Errorf("%s is never broken", c.Code)
		}
		for i, change := range all[c.Code] {
			w := healthy(t)
			change(w)
			s := Selection{Pre: c.Group == Pre}
			results, facts := w.examine(t, s)
			neverPassesUnseen(t, &c, facts)
			got := failed(results)
			want := []string{c.Code}
			if c.Code == "GP601" { // the controller cannot be asked
				want = append(slices.Clone(ended), "GP502?", "GP601", "GP603?")
			}
			if slices.Equal(got, want) {
				code := map[Level]int{Error: 2, Warning: 1}[c.Level]
				if ExitCode(results, true) != code || c.Level == Warning && ExitCode(results, false) != 0 {
					t.Errorf("%s: exit codes %d and %d", c.Code, ExitCode(results, true), ExitCode(results, false))
				}
				continue
			}
			t.Errorf("%s, way %d: %v failed", c.Code, i+1, got)
		}
	}
}

// neverPassesUnseen takes from the facts of a check that fails one list after another, as a right to read it that is missing
// does: the check may still fail, and it may say that it could not look, but it does not pass.
func neverPassesUnseen(t *testing.T, c *Check, facts *Facts) {
	t.Helper()
	for field := range reflect.TypeFor[Facts]().NumField() {
		without := *facts
		without.schedules, without.schedulesErr = nil, nil
		list := reflect.ValueOf(&without).Elem().Field(field)
		if list.Kind() != reflect.Struct || !list.FieldByName("Err").IsValid() {
			continue
		}
		list.FieldByName("Items").SetZero()
		list.FieldByName("Err").Set(reflect.ValueOf(errors.New("forbidden")))
		if r := Run([]Check{*c}, &without)[0]; r.Status == Passed {
			t.Errorf("%s is broken, and passes if %s cannot be read (%s)", c.Code, reflect.TypeFor[Facts]().Field(field).Name, r.Looked)
		}
	}
}

// GP102 asks for each kind of object of the chart with its default values.
func TestRightsAreTheCharts(t *testing.T) {
	asked := map[string]bool{}
	for _, r := range append(createdInNamespace, createdInCluster...) {
		asked[r.resource] = true
	}
	files, err := filepath.Glob("../../../deploy/kustomize/base/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatal(files, err)
	}
	kinds := regexp.MustCompile(`(?m)^kind: (\w+)$`)
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range kinds.FindAllStringSubmatch(string(b), -1) {
			resource := strings.Replace(strings.ToLower(m[1])+"s", "policys", "policies", 1)
			if m[1] != "Kustomization" && !asked[resource] {
				t.Errorf("%s has a %s, and GP102 does not ask for the right to create %s", file, m[1], resource)
			}
		}
	}
}

// While gpupilot adopt hands over, and after it, nothing is wrong.
func TestAdoptedIsHealthy(t *testing.T) {
	f := func(what string, change func(w *world)) {
		t.Helper()
		w := healthy(t)
		change(w)
		results, _ := w.examine(t, Selection{})
		if got := failed(results); len(got) > 0 {
			t.Errorf("%s: %v failed", what, got)
		}
	}
	const target = `scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: chat}`
	f("advice beside an HPA", func(w *world) {
		w.set("gpuautoscalers", "Advise", "spec", "actuation")
		w.add(t, "horizontalpodautoscalers", `{metadata: {namespace: llm, name: chat}, spec: {`+target+`}}`)
	})
	f("a paused ScaledObject", func(w *world) {
		w.add(t, "scaledobjects", `{metadata: {namespace: llm, name: chat, annotations: {gpupilot.dev/adopted-by: chat}}, spec: {`+target+`}, status: {conditions: [{type: Paused, status: "True", reason: ScaledObjectPaused, message: x}]}}`)
	})
}

// The rights that are asked for are those of the shipped roles, and the finding names what is missing and the role.
func TestNeeds(t *testing.T) {
	w := healthy(t)
	w.lacks = "update apps/deployments/scale llm"
	results, _ := w.examine(t, Selection{Only: []string{"GP506"}})
	want := Finding{"ClusterRole gpupilot-controller:scale", "system:serviceaccount:gpupilot-system:gpupilot-controller may not update deployments/scale.apps in namespace llm: its binding is missing, or the role has changed"}
	if len(results) != 1 || len(results[0].Findings) != 1 || results[0].Findings[0] != want {
		t.Errorf("%+v, want %+v", results, want)
	}
	if w.asked < 40 {
		t.Errorf("%d rights were asked for", w.asked)
	}
}

// ended are the checks that cannot pass without a controller, beside those of a group.
var ended = []string{
	"GP202?", "GP203?", "GP206?", "GP301?", "GP302?", "GP303?", "GP304?", "GP305?", "GP307?", "GP308?",
	"GP405?", "GP406?", "GP407?", "GP410?", "GP414?", "GP415?", "GP419?",
}

// A check that cannot run says so.
func TestCouldNotCheck(t *testing.T) {
	for list, want := range map[string]string{
		"nodes": "GP201? GP204? GP408?", "subjectaccessreviews": "GP506?", "pods": "GP201? GP205? GP306? GP501? GP504? GP506? GP602?", "horizontalpodautoscalers": "GP401? GP419?", "gpuexporters": "GP202? GP203? GP206? GP308?",
		"clusterroles": "GP504?", "validatingadmissionpolicybindings": "GP503?", "poddisruptionbudgets": "GP413?", "gpupilot-controller": "GP603?",
	} {
		w := healthy(t)
		w.denied[list] = true
		results, _ := w.examine(t, Selection{})
		if got := strings.Join(failed(results), " "); got != want {
			t.Errorf("without the right to read %s: %s, want %s", list, got, want)
		}
		if code := ExitCode(results, false); code != 3 {
			t.Errorf("without the right to read %s: exit code %d", list, code)
		}
	}
	w := healthy(t)
	w.viewErr = errors.New("503")
	results, _ := w.examine(t, Selection{Only: []string{"metrics", "GP601"}})
	if got := strings.Join(failed(results), " "); got != "GP301? GP302? GP303? GP304? GP305? GP307? GP601?" {
		t.Errorf("without the controller: %s", got)
	}
	w = healthy(t)
	w.lists["pods"] = w.lists["pods"][:2] // of agents
	results, _ = w.examine(t, Selection{Only: []string{"trust", "capacity"}})
	if got := strings.Join(failed(results), " "); got != "GP501? GP506?" {
		t.Errorf("a controller that is no pod: %s", got)
	}
	w.lists["pods"] = nil
	results, _ = w.examine(t, Selection{Only: []string{"trust", "capacity"}})
	if got := strings.Join(failed(results), " "); got != "GP501? GP506? GP602?" {
		t.Errorf("no pods: %s", got)
	}
}

func TestSelect(t *testing.T) {
	f := func(s Selection, want int, codes ...string) {
		t.Helper()
		got, err := s.Select()
		if err != nil || want >= 0 && len(got) != want {
			t.Errorf("%+v: %d checks, %v", s, len(got), err)
		}
		for _, c := range got {
			if len(codes) > 0 && !slices.Contains(codes, c.Code) {
				t.Errorf("%+v has %s", s, c.Code)
			}
		}
	}
	all := len(Checks())
	f(Selection{}, all-len(preChecks))
	f(Selection{Pre: true}, len(preChecks))
	f(Selection{Only: []string{"gp301", "GP101"}}, 2, "GP301", "GP101")
	f(Selection{Only: []string{"Metrics"}, Skip: []string{"GP306"}}, len(metricsChecks)-1)
	f(Selection{Skip: []string{"scaling"}}, all-len(preChecks)-len(scalingChecks)-len(podChecks)-len(boundsChecks))
	if _, err := (&Selection{Only: []string{"GP999"}}).Select(); err == nil {
		t.Error("an unknown code is accepted")
	}
}

func TestReport(t *testing.T) {
	w := healthy(t)
	w.view.Targets[0].Up, w.view.Targets[0].Error = false, "\x1b[31mrefused"
	w.denied["clusterroles"] = true
	results, _ := w.examine(t, Selection{})
	r := NewReport("v1", "c", results)
	var text, doc bytes.Buffer
	if err := errors.Join(r.Text(&text), r.JSON(&doc)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"  ERROR    GP301", "agent a1: no answer: \uFFFD[31mrefused", "docs/doctor.md#gp301", "  ?        GP504", "could not check: cannot read", "1 errors, 0 warnings, 1 could not be checked"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, text.String())
		}
	}
	var back Report
	if err := json.Unmarshal(doc.Bytes(), &back); err != nil || back.Errors != 1 || back.Unknown != 1 {
		t.Errorf("%v: %s", err, doc.String())
	}
}

func TestBundle(t *testing.T) {
	w := healthy(t)
	w.set("gpuautoscalers", object_{"kubectl.kubernetes.io/last-applied-configuration": "hidden"}, "metadata", "annotations")
	w.view.Targets[0].Error = "GET http://ann:hidden@10.0.0.1: Bearer hidden-0123456789, token=hidden, eyJhbGciOi.hidden.hidden"
	results, f := w.examine(t, Selection{})
	var b bytes.Buffer
	if err := Bundle(&b, NewReport("v1", "c", results), f); err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	names := 0
	for r := tar.NewReader(z); ; names++ {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil || !json.Valid(body) {
			t.Errorf("%s is no JSON: %v %s", h.Name, err, body)
		}
		if bytes.Contains(body, []byte("hidden")) {
			t.Errorf("%s has a secret: %s", h.Name, body)
		}
	}
	if names != 5 {
		t.Errorf("%d files", names)
	}
}

// What looks like a token or a password never stays, and JSON stays JSON.
func FuzzRedact(f *testing.F) {
	f.Add("eyJhbGciOiJSUzI1NiJ9.e30.x", "a")
	f.Add("x", `"password": "b"`)
	f.Fuzz(func(t *testing.T, secret, around string) {
		b, err := json.Marshal(map[string]string{"text": around + " eyJhbGciOi" + strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' {
				return r
			}
			return -1
		}, secret) + "Q " + around})
		if err != nil {
			t.Fatal(err)
		}
		got := redact(b)
		if !json.Valid(got) {
			t.Errorf("%s became %s", b, got)
		}
		if bytes.Contains(got, []byte("eyJhbGciOi")) {
			t.Errorf("%s keeps a token", got)
		}
	})
}
