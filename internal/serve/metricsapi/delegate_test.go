// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/promql/source"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
)

const customAPI, externalAPI = "custom.metrics.k8s.io", "external.metrics.k8s.io"

// delegateTo returns a delegate of an API at a server with h.
func delegateTo(t *testing.T, group string, h http.HandlerFunc) *Delegate {
	t.Helper()
	server := httptest.NewTLSServer(h)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := NewDelegate(DelegateConfig{Group: group, URL: server.URL, CAFile: ca, Credentials: &rest.Config{BearerToken: "controller"}})
	if err != nil {
		t.Fatal(err)
	}
	d.timeout = time.Minute
	return d
}

// external has one metric in one namespace.
type external struct{}

func (external) Names() []string { return []string{"gpupilot_desired_replicas"} }

func (external) Has(namespace, metric string) bool { return namespace == "team-a" && metric == "queue" }

func (external) Values(context.Context, source.ExternalQuery) ([]source.ExternalValue, error) {
	return []source.ExternalValue{{Value: 1, At: time.Now()}}, nil
}

// through sends a request through the delegates, as the API server's filters pass it on.
// ours is true if the delegates left it to this server.
func through(t *testing.T, list []*Delegate, method, path string) (w *httptest.ResponseRecorder, ours bool) {
	t.Helper()
	p := NewProvider(time.Minute, 0, Deps{Names: func() []string { return []string{"vllm:num_requests_waiting"} }, External: external{}})
	h := withDelegates(p, list, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ours = true }))
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	r.Header.Set("Authorization", "Bearer user")
	r.Header.Set("X-Remote-User", "user")
	r.Header.Set("Impersonate-User", "admin")
	r.Header.Set("Accept", "application/json")
	factory := &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString()}
	info, err := factory.NewRequestInfo(r)
	if err != nil {
		t.Fatal(err)
	}
	w = httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
	return w, ours
}

func TestDelegateGetsUnknownMetrics(t *testing.T) {
	var got *http.Request
	answerJSON := func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"from":"the delegate"}`))
	}
	list := []*Delegate{delegateTo(t, customAPI, answerJSON), delegateTo(t, externalAPI, answerJSON)}
	f := func(delegated bool, method, path string) {
		t.Helper()
		got = nil
		w, ours := through(t, list, method, path)
		if ours == delegated || (got != nil) != delegated {
			t.Errorf("%s %s: ours %t, delegated %t", method, path, ours, got != nil)
			return
		}
		if !delegated {
			return
		}
		if w.Code != http.StatusOK || w.Body.String() != `{"from":"the delegate"}` {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
		if got.URL.RequestURI() != path || got.Header.Get("Authorization") != "Bearer controller" || got.Header.Get("X-Remote-User") != "" || got.Header.Get("Impersonate-User") != "" {
			t.Errorf("%s: the delegate was sent %s %v", path, got.URL.RequestURI(), got.Header)
		}
	}
	for _, version := range []string{"v1beta1", "v1beta2"} {
		base := "/apis/custom.metrics.k8s.io/" + version + "/namespaces/team-a/"
		f(true, "GET", base+"pods/*/http_requests?labelSelector=app%3Dweb")
		f(true, "GET", base+"services/web/http_requests")
		f(true, "GET", base+"metrics/http_requests")
		f(false, "GET", base+"pods/*/DCGM_FI_DEV_GPU_UTIL")
		f(false, "GET", base+"pods/*/DCGM_FI_DEV_GPU_UTIL:avg_5m")
		f(false, "GET", base+"pods/web/Utilization")
		f(false, "GET", base+"pods/*/vllm:num_requests_waiting")
		f(true, "GET", base+"services/web/DCGM_FI_DEV_GPU_UTIL") // a resource without GPU metrics here
		f(false, "POST", base+"pods/*/http_requests")
	}
	base := "/apis/external.metrics.k8s.io/v1beta1/namespaces/"
	f(true, "GET", base+"team-a/s0-cron?labelSelector=scaledobject.keda.sh%2Fname%3Dx")
	f(false, "GET", base+"team-a/queue")
	f(true, "GET", base+"team-b/queue") // only team-a has it
	f(false, "GET", "/apis/custom.metrics.k8s.io/v1beta1")
	f(false, "GET", "/apis/other/v1/namespaces/team-a/pods/x/y")
	f(false, "GET", "/healthz")
}

// What was authorized is what the delegate reads.
func TestDelegateGetsOnlyPlainPaths(t *testing.T) {
	d := delegateTo(t, customAPI, func(http.ResponseWriter, *http.Request) { t.Error("the delegate was asked") })
	base := "/apis/custom.metrics.k8s.io/v1beta1/namespaces/team-a/"
	for _, path := range []string{
		base + "pods/../x", base + "pods/%2e%2e/x", base + "pods/a%2Fb/x", base + "pods/..%2fteam-b/x",
		base + "pods//x", base + "pods/a%3Bb/x", base + "pods/a%5Cb/x", base + "pods/a%3Fb/x",
	} {
		if _, ours := through(t, []*Delegate{d}, "GET", path); !ours {
			t.Errorf("%s was delegated", path)
		}
	}
}

func TestDelegateLies(t *testing.T) {
	const path = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/team-a/pods/*/http_requests"
	f := func(want string, h http.HandlerFunc) {
		t.Helper()
		w, _ := through(t, []*Delegate{delegateTo(t, customAPI, h)}, "GET", path)
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), want) || strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%d %s, want %q", w.Code, w.Body, want)
		}
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a redirect was followed") }))
	defer elsewhere.Close()
	f("redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) })
	f("content type", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<script>secret</script>"))
	})
	f("more than 8388608 bytes", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for range 9 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
	})
	f("status 500", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret", http.StatusInternalServerError) })
	f("refused the controller's account", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret", http.StatusForbidden) })
	f("ended early", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("{"))
	})
}

// A 404 of the delegate is an answer: the metric does not exist there either.
func TestDelegateAnswersNotFound(t *testing.T) {
	d := delegateTo(t, customAPI, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"kind":"Status","code":404}`))
	})
	w, _ := through(t, []*Delegate{d}, "GET", "/apis/custom.metrics.k8s.io/v1beta1/namespaces/a/pods/*/x")
	if w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "404") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A delegate that hangs takes no more than its slots, and then is not asked for a while.
func TestDelegateThatFailsIsLeftAlone(t *testing.T) {
	n := 0
	d := delegateTo(t, customAPI, func(w http.ResponseWriter, _ *http.Request) { n++; w.WriteHeader(http.StatusBadGateway) })
	for range 50 {
		through(t, []*Delegate{d}, "GET", "/apis/custom.metrics.k8s.io/v1beta1/namespaces/a/pods/*/x")
	}
	if n != breakerFailures {
		t.Errorf("%d requests were sent, want %d", n, breakerFailures)
	}
	for range delegateSlots {
		d.slots <- struct{}{}
	}
	if w, _ := through(t, []*Delegate{d}, "GET", "/apis/custom.metrics.k8s.io/v1beta1/namespaces/a/pods/*/x"); !strings.Contains(w.Body.String(), "32 requests to it are under way") {
		t.Errorf("%s", w.Body)
	}
	if _, ours := through(t, []*Delegate{d}, "GET", "/apis/custom.metrics.k8s.io/v1beta1/namespaces/a/pods/*/DCGM_FI_DEV_GPU_UTIL"); !ours {
		t.Error("a known metric waits for the delegate")
	}
}

func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b breaker
		for range breakerFailures {
			if !b.allow(time.Now()) {
				t.Error("closed too early")
			}
			b.record(false, time.Now())
		}
		if b.allow(time.Now()) {
			t.Error("open after failures")
		}
		time.Sleep(breakerPause)
		if !b.allow(time.Now()) || b.allow(time.Now()) {
			t.Error("after the pause, not exactly one attempt is allowed")
		}
		b.record(true, time.Now())
		if !b.allow(time.Now()) {
			t.Error("closed after a success")
		}
	})
}

func TestDelegatesNames(t *testing.T) {
	d := delegateTo(t, customAPI, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "v1beta2") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte(`{"kind":"APIResourceList","resources":[{"name":"pods/http_requests","namespaced":true},{"name":"deployments.apps/queue","namespaced":true},{"name":"odd"}]}`))
	})
	list, err := d.list(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d.names.set(list)
	want := []source.Metric{
		{GroupResource: schema.GroupResource{Resource: "pods"}, Namespaced: true, Metric: "http_requests"},
		{GroupResource: schema.GroupResource{Group: "apps", Resource: "deployments"}, Namespaced: true, Metric: "queue"},
	}
	got := d.Metrics()
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("%v", got)
	}
	p := NewProvider(time.Minute, 0, Deps{Names: func() []string { return nil }, Sources: []Source{d}})
	if all := p.ListAllMetrics(); len(all) != 3 {
		t.Errorf("discovery lists %v", all)
	}
}
