// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"bytes"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver"
)

// theirs is the list as the library encodes it.
func theirs(t *testing.T, list *custom_metrics.MetricValueList, version, mediaType string) []byte {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(apiserver.Codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		t.Fatalf("no serializer for %s", mediaType)
	}
	encoder := apiserver.Codecs.EncoderForVersion(info.Serializer, schema.GroupVersion{Group: custom_metrics.GroupName, Version: version})
	b, err := runtime.Encode(encoder, list)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ours is the same list as our encoders write it.
func ours(q *query, version, mediaType string, values []given) []byte {
	begin := newJSONList
	if mediaType == runtime.ContentTypeProtobuf {
		begin = newProtoList
	}
	list := begin([]byte{}, version, q)
	for _, v := range values {
		list.add(v.pod, v.at, v.v)
	}
	body, _ := list.end()
	return body
}

type given struct {
	pod string
	at  time.Time
	v   float64
}

func sameAsTheirs(t *testing.T, q *query, values []given) {
	t.Helper()
	list := &custom_metrics.MetricValueList{Items: []custom_metrics.MetricValue{}}
	for _, v := range values {
		list.Items = append(list.Items, q.metricValue(v.pod, v.at, v.v))
	}
	for _, version := range []string{"v1beta1", "v1beta2"} {
		for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			want, got := theirs(t, list, version, mediaType), ours(q, version, mediaType, values)
			if !bytes.Equal(want, got) {
				t.Errorf("%s %s of %v:\n%q, want\n%q", version, mediaType, values, got, want)
			}
		}
	}
}

// Lists are written byte for byte as the library's encoders write them.
func TestListsAreEncodedAsTheLibraryDoes(t *testing.T) {
	window := int64(15)
	at := time.Date(2026, 3, 1, 11, 59, 59, 987654321, time.FixedZone("", 3600))
	long := strings.Repeat("x", 253)
	for _, q := range []*query{
		{namespace: "ml", metric: "DCGM_FI_DEV_GPU_UTIL"},
		{namespace: "ml", metric: "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", window: &window},
		{namespace: strings.Repeat("n", 63), metric: `vllm:"<é>&` + "\x01\n"},
	} {
		sameAsTheirs(t, q, nil)
		sameAsTheirs(t, q, []given{{"web-a", at, 65.5}})
		sameAsTheirs(t, q, []given{{"web-a", at, 0}, {"web.b-0", at.Add(time.Millisecond), 1e6}, {long, at.Add(time.Second), -0.25}, {long[:128], at, 1.0 / 3}})
	}
}

// FuzzListEncoding: whatever the names and numbers are, our encoders write what
// the library's do.
func FuzzListEncoding(f *testing.F) {
	f.Add("ml", "web-0", "DCGM_FI_DEV_GPU_UTIL", int64(1772366399), 65.5, int64(0))
	f.Add("n", "é\"", "vllm:x", int64(1), 1e300, int64(15))
	f.Fuzz(func(t *testing.T, namespace, pod, metric string, second int64, v float64, window int64) {
		if namespace == "" || pod == "" || metric == "" {
			t.Skip("no path has empty parts")
		}
		if math.IsNaN(v) || math.IsInf(v, 0) || second <= 0 || second > 253402300799 || window < 0 {
			t.Skip("no value that is served")
		}
		q := &query{namespace: namespace, metric: metric}
		if window > 0 {
			q.window = &window
		}
		at := time.Unix(second, 0)
		sameAsTheirs(t, q, []given{{pod, at, v}, {pod + "-1", at, v / 3}})
	})
}

// A request for a metric of all pods is answered without the library; every
// other one, and one that fails, is the library's.
func TestWhichRequestsAreLists(t *testing.T) {
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString()}
	library := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	h := newLists(NewProvider(maxAge, 0, fleet(t)), library)
	f := func(method, path, accept string, direct bool) {
		t.Helper()
		r := httptest.NewRequest(method, "/apis/custom.metrics.k8s.io"+path, http.NoBody)
		r.Header.Set("Accept", accept)
		info, err := resolver.NewRequestInfo(r)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), info)))
		if got := w.Code == http.StatusOK; got != direct {
			t.Errorf("%s %s, Accept %q: direct %v, want %v", method, path, accept, got, direct)
		}
	}
	const util, json = "/namespaces/ml/pods/*/DCGM_FI_DEV_GPU_UTIL", "application/json"
	f("GET", "/v1beta2"+util, json, true)
	f("GET", "/v1beta1"+util, json, true)
	f("GET", "/v1beta2"+util, "", true)
	f("GET", "/v1beta2"+util, "*/*", true)
	f("GET", "/v1beta2"+util, "application/vnd.kubernetes.protobuf, */*", true)
	f("GET", "/v1beta2"+util+"?labelSelector=app%3Dweb&metricLabelSelector=", json, true)
	f("GET", "/v1beta2"+strings.Replace(util, "GPU_UTIL", "FB_USED", 1)+"?labelSelector=app%3Dother", json, true) // empty

	f("GET", "/v1beta2"+util+"?pretty=true", json, false)
	f("GET", "/v1beta2"+util+"?limit=1", json, false)
	f("GET", "/v1beta2"+util+"?labelSelector=a&labelSelector=b", json, false)
	f("GET", "/v1beta2"+util+"?labelSelector=%21%21", json, false)
	f("GET", "/v1beta2"+util+"?metricLabelSelector=gpu%3D0", json, false)
	f("GET", "/v1beta2"+util, "application/yaml", false)
	f("GET", "/v1beta2"+util, "application/json;as=Table;g=meta.k8s.io;v=v1", false)
	f("GET", "/v1beta2"+util, "text/html", false)
	f("POST", "/v1beta2"+util, json, false)
	f("GET", "/v1beta3"+util, json, false)
	f("GET", "/v1beta2"+strings.Replace(util, "*", "web-a", 1), json, false)
	f("GET", "/v1beta2/namespaces/ml/pods/*/no_such_metric", json, false)
	f("GET", "/v1beta2/namespaces/ml/pods/*/DCGM_FI_DRIVER_VERSION", json, false)
	f("GET", "/v1beta2/namespaces/ml/pods/*", json, false)
	f("GET", "/v1beta2/namespaces/ml/pods/*/a/b", json, false)
	f("GET", "/v1beta2/namespaces/ml/nodes/*/DCGM_FI_DEV_GPU_UTIL", json, false)
	f("GET", "/v1beta2/nodes/*/DCGM_FI_DEV_GPU_UTIL", json, false)
	f("GET", "/v1beta2", json, false)
	curl := httptest.NewRequest(http.MethodGet, "/apis/custom.metrics.k8s.io/v1beta2"+util, http.NoBody)
	curl.Header.Set("User-Agent", "curl/8")
	if formatOf(curl) != nil {
		t.Error("curl gets pretty JSON from the library")
	}
}

// brokenWriter is a connection that breaks.
type brokenWriter struct{ httptest.ResponseRecorder }

func (*brokenWriter) Write([]byte) (int, error) { return 0, http.ErrHandlerTimeout }

// Buffers are reused, but for one that a broken connection may still read.
func TestListBuffers(t *testing.T) {
	l := newLists(NewProvider(maxAge, 0, fleet(t)), nil)
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	info := &request.RequestInfo{
		IsResourceRequest: true, APIGroup: custom_metrics.GroupName, APIVersion: "v1beta2", Namespace: "ml", Resource: "pods",
		Name: "*", Subresource: "DCGM_FI_DEV_GPU_UTIL", Parts: []string{"pods", "*", "DCGM_FI_DEV_GPU_UTIL"},
	}
	r = r.WithContext(request.WithRequestInfo(r.Context(), info))
	made := 0
	l.bodies.New = func() any { made++; return new([]byte) }
	l.ServeHTTP(&brokenWriter{}, r)
	l.ServeHTTP(&brokenWriter{}, r)
	if made != 2 {
		t.Errorf("%d buffers for two connections that broke", made)
	}
	want := httptest.NewRecorder()
	l.ServeHTTP(want, r)
	for range 10 {
		got := httptest.NewRecorder()
		l.ServeHTTP(got, r)
		if got.Body.String() != want.Body.String() {
			t.Fatalf("%s, want %s", got.Body, want.Body)
		}
	}
}

// The list of 1,000 pods costs no object per pod.
func TestListAllocates(t *testing.T) {
	p := NewProvider(maxAge, 0, crowd(t, 1000))
	selector := selectorOf(t, "app=web")
	for _, begin := range []newEncoder{newJSONList, newProtoList} {
		buf := make([]byte, 0, 1<<20)
		allocs := testing.AllocsPerRun(10, func() {
			s, err := p.parse("DCGM_FI_DEV_GPU_UTIL", nil)
			if err != nil {
				t.Fatal(err)
			}
			q := p.query("ml", &s)
			list := begin(buf, "v1beta2", q)
			if err := q.each(selector, list.add); err != nil {
				t.Fatal(err)
			}
			list.end()
		})
		if allocs > 60 {
			t.Errorf("%v allocations for 1,000 pods, at most 60 are allowed", allocs)
		}
	}
}
