// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	rivals "github.com/gpupilot/gpupilot/internal/autoscaler/target"
	"github.com/gpupilot/gpupilot/test/scalerig"
)

// adoptedLoad wants 4 replicas, of the HorizontalPodAutoscaler and of the GPUAutoscaler.
const (
	adoptedLoad     = 2.2
	adoptedReplicas = 4
)

// killer is the API server behind a proxy, which kills the program that it is for when it sends its n-th request that
// changes something, with the request applied or not.
type killer struct {
	*httptest.Server
	mu      sync.Mutex
	program *exec.Cmd
	n       int // counts down; at 0 it kills
	applied bool
	killed  string // the request
}

func newKiller(t *testing.T) *killer {
	t.Helper()
	transport, err := rest.TransportFor(rig.REST)
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(rig.REST.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = transport
	k := &killer{}
	k.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.mu.Lock()
		defer k.mu.Unlock()
		if r.Method == http.MethodGet || r.URL.Query().Get("dryRun") != "" || r.ContentLength > 0 && r.Method == http.MethodDelete && isDryRun(r) {
			proxy.ServeHTTP(w, r)
			return
		}
		k.n--
		if k.n != 0 {
			proxy.ServeHTTP(w, r)
			return
		}
		k.killed = r.Method + " " + r.URL.Path
		if k.applied {
			proxy.ServeHTTP(httptest.NewRecorder(), r)
		}
		_ = k.program.Process.Kill()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(k.Close)
	return k
}

// isDryRun reads a small body, and puts it back.
func isDryRun(r *http.Request) bool {
	b, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(b))
	return err == nil && bytes.Contains(b, []byte(`"dryRun"`))
}

// gpupilot runs the program. kill is the number of the request that changes something at which it is killed; 0: none.
func (k *killer) gpupilot(t *testing.T, kill int, applied bool, args ...string) (string, error) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf("current-context: a\ncontexts: [{name: a, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: %q}}]\n", k.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "../../../bin/gpupilot", append(args, "--kubeconfig", config)...)
	k.mu.Lock()
	k.program, k.n, k.applied, k.killed = cmd, kill, applied, ""
	k.mu.Unlock()
	out, err := cmd.CombinedOutput()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.killed != "" {
		return string(out), errKilled
	}
	return string(out), err
}

var errKilled = errors.New("killed")

func (k *killer) mustRun(t *testing.T, args ...string) string {
	t.Helper()
	out, err := k.gpupilot(t, 0, false, args...)
	if err != nil {
		t.Fatalf("%q: %v\n%s", args, err, out)
	}
	return out
}

// adoptable creates a workload under a real HorizontalPodAutoscaler, and returns that as the API server has it.
func adoptable(t *testing.T, name string) *autoscalingv2.HorizontalPodAutoscaler {
	t.Helper()
	rig.Offer(name, adoptedLoad)
	rig.Deploy(t, name, adoptedReplicas, time.Second)
	rig.Spread(t, name, adoptedReplicas)
	average, least := resource.MustParse("60"), int32(2)
	hpa := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"example.com/note": "of the team"}},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name},
			MinReplicas:    &least, MaxReplicas: 8,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"},
				Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average},
			}}},
		},
	}
	if err := rig.Client.Create(t.Context(), hpa); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, o := range []client.Object{
			&autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}},
			&v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}},
		} {
			if err := rig.Client.Delete(context.Background(), o); err != nil && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	})
	scalingHPA(t, hpa)
	return hpa
}

// scalingHPA waits until kube-controller-manager scales on a HorizontalPodAutoscaler that is as it was.
func scalingHPA(t *testing.T, was *autoscalingv2.HorizontalPodAutoscaler) {
	t.Helper()
	scalerig.Eventually(t, func() error {
		var h autoscalingv2.HorizontalPodAutoscaler
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(was), &h); err != nil {
			return err
		}
		if !equality.Semantic.DeepEqual(h.Spec, was.Spec) || !equality.Semantic.DeepEqual(h.Labels, was.Labels) || !equality.Semantic.DeepEqual(h.Annotations, was.Annotations) {
			return fmt.Errorf("the HPA is\n%+v %v %v, was\n%+v %v %v", h.Spec, h.Labels, h.Annotations, was.Spec, was.Labels, was.Annotations)
		}
		for _, c := range h.Status.Conditions {
			if c.Type == autoscalingv2.ScalingActive && c.Status == "True" {
				return nil
			}
		}
		return fmt.Errorf("the HPA does not scale: %+v", h.Status.Conditions)
	})
}

// scalingOurs checks that the GPUAutoscaler scales, and that there is no HorizontalPodAutoscaler.
func scalingOurs(t *testing.T, name string) {
	t.Helper()
	var h autoscalingv2.HorizontalPodAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &h); !apierrors.IsNotFound(err) {
		t.Errorf("the HPA is there: %v", err)
	}
	var a v1alpha1.GPUAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &a); err != nil || a.Spec.Actuation != v1alpha1.ActuationScale {
		t.Errorf("%v: the actuation is %s", err, a.Spec.Actuation)
	}
}

// The commands of docs/migrate.md hand a workload over from a real HorizontalPodAutoscaler, and back. Its replicas do
// not change. Afterwards they follow the load, whoever scales.
func TestDocsHandOver(t *testing.T) {
	const name = "chat"
	page, err := os.ReadFile("../../../docs/migrate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(page), "\n## Hand over, and back\n")
	section, _, _ = strings.Cut(section, "\n## ")
	commands := regexp.MustCompile(`(?m)^    gpupilot (adopt|release) .*$`).FindAllString(section, -1)
	if !ok || len(commands) != 4 {
		t.Fatalf("the page has the commands %q", commands)
	}
	hpa := adoptable(t, name)
	seen := rig.Record(t, name)
	k := newKiller(t)
	run := func(i int) string { return k.mustRun(t, strings.Fields(commands[i])[1:]...) }

	if out := run(0); !strings.Contains(out, "dry run, nothing was changed") || !strings.Contains(out, "metric: DCGM_FI_DEV_GPU_UTIL") {
		t.Errorf("%s", out)
	}
	scalingHPA(t, hpa)
	out := run(1)
	_, printed, _ := strings.Cut(section, "```\n")
	printed, _, _ = strings.Cut(printed, "```\n")
	for line := range strings.Lines(printed) {
		_, step, numbered := strings.Cut(line, ". ")
		if !strings.Contains(out, line) && (!numbered || !strings.HasPrefix(step, "wait ") && !strings.Contains(out, ". "+step)) { // what is there already is not waited for
			t.Errorf("the page has the line\n%s the command prints\n%s", line, out)
		}
	}
	scalingOurs(t, name)
	if v := seen.Values(); len(v) != 1 {
		t.Errorf("replicas went %v while it was handed over", v)
	}
	rig.Offer(name, 2.75) // 55 % of 5 replicas, as before of 4
	rig.WantReplicas(t, name, "5", func(n int32) bool { return n == 5 })
	rig.Spread(t, name, 5)

	if out := run(2); !strings.Contains(out, "dry run, nothing was changed") || !strings.Contains(out, "example.com/note: of the team") {
		t.Errorf("%s", out)
	}
	scalingOurs(t, name)
	run(3)
	scalingHPA(t, hpa)
	if v := seen.Values(); !slices.Equal(v, []int32{adoptedReplicas, 5}) {
		t.Errorf("replicas went %v while it was handed back", v)
	}
	rig.Offer(name, 4)
	rig.WantReplicas(t, name, "7", func(n int32) bool { return n >= 7 })
}

// gpupilot is killed by SIGKILL in every other request of adopt that changes something, and in each of release. The second
// run finishes or goes back. internal/serve/adopt kills in each request, of a control plane that is not real.
func TestAdoptKilled(t *testing.T) {
	const name, object = "adopted", namespace + "/adopted"
	hpa := adoptable(t, name)
	seen, k := rig.Record(t, name), newKiller(t)
	back := func() { k.mustRun(t, "release", object, "--dry-run=false", "--delete"); scalingHPA(t, hpa) }
	for n := 1; ; n += 2 {
		out, err := k.gpupilot(t, n, n%4 == 1, "adopt", "hpa", object, "--dry-run=false")
		if !errors.Is(err, errKilled) {
			if err != nil || n < 4 {
				t.Fatalf("adopt in %d requests: %v\n%s", n, err, out)
			}
			break
		}
		t.Log("killed in", k.killed)
		if exists := !apierrors.IsNotFound(rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &v1alpha1.GPUAutoscaler{})); exists && n == 3 {
			back() // from a stopped HPA
		}
		k.mustRun(t, "adopt", "hpa", object, "--dry-run=false")
		scalingOurs(t, name)
		back()
	}
	scalingOurs(t, name)
	for n := 1; ; n++ {
		out, err := k.gpupilot(t, n, n%2 == 1, "release", object, "--dry-run=false")
		if !errors.Is(err, errKilled) {
			if err != nil || n < 3 {
				t.Fatalf("release in %d requests: %v\n%s", n, err, out)
			}
			break
		}
		t.Log("killed in", k.killed)
		if n == 2 {
			back()
		}
		k.mustRun(t, "adopt", "hpa", object, "--dry-run=false")
		scalingOurs(t, name)
	}
	scalingHPA(t, hpa)
	if v := seen.Values(); len(v) != 1 {
		t.Errorf("replicas went %v, want %d all the time", v, adoptedReplicas)
	}
}

// A ScaledObject is paused and stays. What KEDA's operator does about it is done here: KEDA 2.21 sets the condition
// Paused, then deletes its HorizontalPodAutoscaler, and makes it again.
func TestAdoptScaledObject(t *testing.T) {
	const name, object = "scaledobject", namespace + "/scaledobject"
	if err := rig.InstallKind(t.Context(), rivals.ScaledObject().GroupVersionKind()); err != nil {
		t.Fatal(err)
	}
	rig.Offer(name, adoptedLoad)
	rig.Deploy(t, name, adoptedReplicas, time.Second)
	rig.Spread(t, name, adoptedReplicas) // the HPA counts the requests that waited
	scalerig.SetBacklog(5 * adoptedReplicas)
	so := rivals.ScaledObject()
	so.SetNamespace(namespace)
	so.SetName(name)
	so.SetAnnotations(map[string]string{"example.com/note": "of the team"})
	so.Object["spec"] = map[string]any{
		"scaleTargetRef": map[string]any{"name": name}, "minReplicaCount": int64(1), "maxReplicaCount": int64(8),
		"triggers": []any{map[string]any{"type": "prometheus", "metadata": map[string]any{"query": "sum(backlog)", "threshold": "5"}}},
	}
	scalerig.Eventually(t, func() error { return rig.Client.Create(t.Context(), so) })
	was := so.DeepCopy()
	seen := rig.Record(t, name)
	t.Cleanup(actAsKEDA(t, name))
	t.Cleanup(func() {
		_ = rig.Client.Delete(context.Background(), &v1alpha1.GPUAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
		_ = rig.Client.Delete(context.Background(), so)
	})
	k := newKiller(t)
	k.mustRun(t, "adopt", "scaledobject", object, "--dry-run=false", "--timeout", "2m")
	var h autoscalingv2.HorizontalPodAutoscaler
	if err := rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "keda-hpa-" + name}, &h); !apierrors.IsNotFound(err) {
		t.Errorf("KEDA's HPA is there: %v", err)
	}
	scalingOurs(t, name)
	scalerig.SetBacklog(5 * (adoptedReplicas + 1))
	rig.WantReplicas(t, name, "5", func(n int32) bool { return n == adoptedReplicas+1 })

	// Whoever removes the annotation by hand stops the GPUAutoscaler.
	k.mustRun(t, "release", object, "--dry-run=false")
	scalerig.Eventually(t, func() error {
		if err := rig.Client.Get(t.Context(), client.ObjectKeyFromObject(so), so); err != nil {
			return err
		}
		if !equality.Semantic.DeepEqual(so.Object["spec"], was.Object["spec"]) || !equality.Semantic.DeepEqual(so.GetAnnotations(), was.GetAnnotations()) {
			return fmt.Errorf("it is %v %v", so.Object["spec"], so.GetAnnotations())
		}
		return rig.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "keda-hpa-" + name}, &h)
	})
	if v := seen.Values(); !slices.Equal(v, []int32{adoptedReplicas, adoptedReplicas + 1}) {
		t.Errorf("replicas went %v", v)
	}
}

// actAsKEDA does for a ScaledObject what KEDA's operator does about pauses, until the result is called.
func actAsKEDA(t *testing.T, name string) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	hpa := func(so *unstructured.Unstructured) *autoscalingv2.HorizontalPodAutoscaler {
		average := resource.MustParse("60")
		return &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "keda-hpa-" + name, OwnerReferences: []metav1.OwnerReference{{
				APIVersion: so.GetAPIVersion(), Kind: so.GetKind(), Name: name, UID: so.GetUID(), Controller: new(true),
			}}},
			Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: name}, MaxReplicas: 8,
				Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.PodsMetricSourceType, Pods: &autoscalingv2.PodsMetricSource{
					Metric: autoscalingv2.MetricIdentifier{Name: "DCGM_FI_DEV_GPU_UTIL"},
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: &average},
				}}},
			},
		}
	}
	reconcile := func() {
		so := rivals.ScaledObject()
		if rig.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, so) != nil {
			return
		}
		paused := so.GetAnnotations()["autoscaling.keda.sh/paused"] == "true"
		status := map[bool]string{true: "True", false: "False"}[paused]
		so.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Paused", "status": status}}}
		if rig.Client.Update(ctx, so) != nil {
			return // a conflict: later
		}
		if paused {
			_ = rig.Client.Delete(ctx, hpa(so))
		} else {
			_ = rig.Client.Create(ctx, hpa(so))
		}
	}
	var done sync.WaitGroup
	done.Go(func() {
		t := time.NewTicker(500 * time.Millisecond)
		defer t.Stop()
		for ctx.Err() == nil {
			reconcile()
			select {
			case <-ctx.Done():
			case <-t.C:
			}
		}
	})
	return func() { cancel(); done.Wait() }
}
