// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package sweep changes every field of every CRD, disturbs every call of the controller to
// the API server, and runs pairs of features under faults, on a real control plane. Which fields and which calls
// there are is read from the CRDs' schemas and from the controller's own requests.
//
// make test runs a sample, make sweep everything.
package sweep

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/test/schema"
	"github.com/gpupilot/gpupilot/test/stack"
)

var (
	transitions = flag.Int("transitions", 45, "about how many changes of fields to make; 0: every field with every value")
	rounds      = flag.Int("rounds", 1, "how many rounds of disturbed calls; 0: every kind of call with every disturbance")
	episodes    = flag.Int("episodes", 2, "how many episodes of features and faults")
	within      = flag.Duration("within", 0, "judge how soon after its last disturbed call a workload has the replicas that it needs; the promise is 10s, on a machine that does nothing else")
	seed        = flag.Uint64("seed", 1, "of the choice of fields, values and disturbances")
	only        = flag.String("only", "", "a regular expression of the fields, or of the calls and their disturbances")
)

// rig is the stack that the tests of this package share.
var rig struct {
	*stack.Stack
	proxy   *proxy // of the controller
	standby *proxy // of a second replica
	loads   loads
	match   *regexp.Regexp
}

func TestMain(m *testing.M) {
	flag.Parse()
	rig.match = regexp.MustCompile(*only)
	backend := httptest.NewServer(&rig.loads)
	rig.proxy, rig.standby = newProxy(), newProxy()
	proxies := []*proxy{rig.proxy, rig.standby}
	stack.Main(m, stack.Config{
		Nodes: 3, GPUs: 16, NoAgents: true, HPASyncPeriod: time.Second,
		ControllerArgs: []string{
			"--prometheus-url", backend.URL, "--external-metrics", "--queries-per-namespace", "1000", "--agent-image", stack.AgentImage,
		},
		// The controller first, then its standby.
		ControllerKubeconfig: func(standby bool, kubeconfig string) (string, error) {
			if standby {
				return proxies[1].kubeconfig(kubeconfig)
			}
			return proxies[0].kubeconfig(kubeconfig)
		},
	}, func(s *stack.Stack) error {
		rig.Stack = s
		for _, f := range []func(){backend.Close, rig.proxy.close, rig.standby.close} {
			s.OnClose(f)
		}
		return nil
	})
}

// random is seeded by -seed and the name of what it is for.
func random(name string) *rand.Rand {
	var h uint64
	for _, b := range []byte(name) {
		h = h*131 + uint64(b)
	}
	return rand.New(rand.NewPCG(*seed, h))
}

// loads is a PromQL backend that has the loads of workloads. A query names its workload
// as load{w="NAME"}; its value is absent unless it was set.
type loads struct {
	of   sync.Map
	hung atomic.Bool // it answers nothing
}

func (l *loads) set(name string, x float64) { l.of.Store(name, x) }

var asked = regexp.MustCompile(`\bw="([^"]*)"`)

// ServeHTTP implements http.Handler.
func (l *loads) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for l.hung.Load() {
		select {
		case <-r.Context().Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	result := "[]"
	if m := asked.FindStringSubmatch(r.FormValue("query")); m != nil {
		if x, ok := l.of.Load(m[1]); ok {
			at := r.FormValue("time") // a backend answers for the time that it is asked about
			if at == "" {
				at = strconv.FormatInt(time.Now().Unix(), 10)
			}
			result = fmt.Sprintf(`[{"metric": {}, "value": [%s, "%g"]}]`, at, x)
		}
	}
	fmt.Fprintf(w, `{"status": "success", "data": {"resultType": "vector", "result": %s}}`, result)
}

// autoscalerObject is a GPUAutoscaler of the Deployment of its name. Its load is that of
// key: one replica for each 10.
func autoscalerObject(namespace, name, key string) *unstructured.Unstructured {
	return object("GPUAutoscaler", namespace, name, fmt.Sprintf(`{
		"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": %q}, "minReplicas": 1, "maxReplicas": 4,
		"signals": [{"query": {"promql": "load{w=\"%s\"}"}, "target": {"type": "AverageValue", "value": "10"}}],
		"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}}`, name, key))
}

func object(kind, namespace, name, spec string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "gpupilot.dev/v1alpha1", "kind": kind, "spec": schema.Parse(spec)}}
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// deployment is a Deployment whose pods need no GPU and serve at once.
func deployment(namespace, name string, replicas int32) *appsv1.Deployment {
	d := stack.Deployment(namespace, name, replicas, 0)
	d.Spec.Template.Annotations = nil
	d.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	return d
}

func create(t *testing.T, objects ...client.Object) {
	t.Helper()
	for _, o := range objects {
		if err := rig.Client.Create(t.Context(), o); err != nil {
			t.Fatalf("create %T %s: %v", o, o.GetName(), err)
		}
	}
}

// createNamespace creates a namespace, and deletes it with all that is in it at the end.
func createNamespace(t *testing.T, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := rig.Client.Create(t.Context(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rig.Client.Delete(context.Background(), ns) })
}

// sample reads one sample of the controller's /metrics.
func sample(ctx context.Context, name string) (float64, error) {
	text, err := page(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return math.NaN(), fmt.Errorf("no sample %s", name)
}

func page(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, stack.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, rig.ControllerURL+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	return string(b), err
}
