// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/promql/source"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

func BenchmarkGetMetricBySelector(b *testing.B) {
	for _, pods := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			p := NewProvider(maxAge, 0, crowd(b, pods))
			selector := selectorOf(b, "app=web")
			b.ReportAllocs()
			for b.Loop() {
				list, err := p.GetMetricBySelector(b.Context(), "ml", selector, podsMetric("DCGM_FI_DEV_GPU_UTIL"), labels.Everything())
				if err != nil || len(list.Items) != pods {
					b.Fatal(len(list.Items), err)
				}
			}
		})
	}
}

// An answer costs a fixed number of allocations and one growing list: the
// lookup's and ours. There are 13.
func TestSelectorAllocates(t *testing.T) {
	p := NewProvider(maxAge, 0, crowd(t, 1000))
	selector := selectorOf(t, "app=web")
	allocs := testing.AllocsPerRun(10, func() {
		_, _ = p.GetMetricBySelector(t.Context(), "ml", selector, podsMetric("DCGM_FI_DEV_GPU_UTIL"), labels.Everything())
	})
	if allocs > 20 {
		t.Errorf("%v allocations for 1,000 pods, at most 20 are allowed", allocs)
	}
}

// crowd is that many serving pods, eight to a node, of one GPU each.
func crowd(t testing.TB, pods int) Deps {
	deps := fleet(t)
	store := series.New(series.Config{})
	list := &podList{store: store}
	for i := range pods {
		list.pods = append(list.pods, labelledPod{fmt.Sprintf("web-%05d", i), true, labels.Set{"app": "web", "pod-template-hash": "6d4cf56db6"}})
	}
	for first := 0; first < pods; first += 8 {
		n := newNode(t, store, fmt.Sprintf("node-%d", first/8))
		values := map[series.Key]float64{}
		for i := first; i < min(first+8, pods); i++ {
			device := fmt.Sprintf("GPU-%d", i)
			n.give(list.pods[i].name, device)
			values[series.Key{Device: device, Field: gpu.GPUUtil}] = float64(i % 101)
		}
		n.read(now.Add(-time.Second), values)
	}
	deps.Pods = list
	return deps
}

// BenchmarkServer is the same through TLS, authentication, authorization and
// JSON, on one kept-open connection: what the API server waits for.
func BenchmarkServer(b *testing.B) {
	for _, pods := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			get := servedCrowd(b, pods)
			took := make([]time.Duration, 0, b.N)
			for b.Loop() {
				began := time.Now()
				if n := get(); n != pods {
					b.Fatalf("%d pods, want %d", n, pods)
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1e3, "p99-ms")
		})
	}
}

// servedCrowd serves that many pods and gives a function that asks for them
// and counts the answer's values.
func servedCrowd(b *testing.B, pods int) func() int {
	api := httptest.NewServer(apiServer(b))
	b.Cleanup(func() { api.CloseClientConnections(); api.Close() })
	cert := &changingCert{}
	cert.cert, cert.key = keyPair(b)
	server, err := New(Config{BindAddress: "127.0.0.1", Cert: cert, Kubeconfig: kubeconfig(b, api.Listener.Addr().String()), MaxAge: maxAge}, crowd(b, pods))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-ended })
	(&caller{b, server.Addr().String(), cert.cert}).until()

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert.cert)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}, ForceAttemptHTTP2: true}}
	b.Cleanup(client.CloseIdleConnections)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server.Addr().String()+
		"/apis/custom.metrics.k8s.io/v1beta2"+podsPath+"DCGM_FI_DEV_GPU_UTIL?labelSelector=app%3Dweb", nil)
	if err != nil {
		b.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer good")
	return func() int {
		response, err := client.Do(request)
		if err != nil {
			b.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			b.Fatal(err)
		}
		return strings.Count(string(body), `"describedObject"`)
	}
}

// namesSource is a Source with a list of metrics.
type namesSource []source.Metric

func (s namesSource) Metrics() []source.Metric { return s }

func (s namesSource) Values(context.Context, source.Query) ([]source.Value, error) {
	return nil, source.ErrUnknownMetric
}

// manyMetrics serves 300 names for pods and the built-in resources, and 2,000 metrics of
// rules.
func manyMetrics(t testing.TB) *Provider {
	deps := fleet(t)
	var names []string
	for i := range 300 {
		names = append(names, fmt.Sprintf("DCGM_FI_DEV_METRIC_%03d", i))
	}
	deps.Names = func() []string { return names }
	var of namesSource
	for i := range 2000 {
		of = append(of, source.Metric{GroupResource: schema.GroupResource{Resource: "services"}, Namespaced: true, Metric: fmt.Sprintf("team:metric_%04d:avg", i)})
	}
	deps.Sources = []Source{of}
	return NewProvider(maxAge, 0, deps)
}

// BenchmarkDiscovery lists 300 names of 8 resources, and 2,000 rules: for the documents
// of the API's versions, and for the aggregated document.
func BenchmarkDiscovery(b *testing.B) {
	p := manyMetrics(b)
	b.Run("list", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if n := len(p.ListAllMetrics()); n < 2300 {
				b.Fatal(n)
			}
		}
	})
	b.Run("aggregated", func(b *testing.B) {
		d := newDiscovery(aggregated.NewResourceManager("apis"), p.ListAllMetrics, publishCustom)
		r := httptest.NewRequest(http.MethodGet, "/apis", http.NoBody)
		r.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		b.ReportAllocs()
		for b.Loop() {
			w := httptest.NewRecorder()
			if d.ServeHTTP(w, r); w.Code != http.StatusOK {
				b.Fatal(w.Code)
			}
		}
	})
	b.Run("unknown", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, err := p.GetMetricByName(b.Context(), types.NamespacedName{Namespace: "ml", Name: "web-a"}, podsMetric("team_metrics"), labels.Everything())
			if err == nil {
				b.Fatal("it is known")
			}
		}
	})
}
