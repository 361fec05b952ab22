// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/test/reviewtest"
)

// keyPair is a self-signed certificate for "localhost", in PEM.
func keyPair(t testing.TB) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// changingCert is a certificate that the test exchanges.
type changingCert struct {
	mu        sync.Mutex
	cert, key []byte
	changed   []func()
}

func (c *changingCert) CurrentCertKeyContent() (cert, key []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cert, c.key
}

func (c *changingCert) OnChange(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = append(c.changed, f)
}

func (c *changingCert) set(cert, key []byte) {
	c.mu.Lock()
	c.cert, c.key = cert, key
	changed := c.changed
	c.mu.Unlock()
	for _, f := range changed {
		f()
	}
}

// apiServer answers what a delegating server asks.
func apiServer(t testing.TB) http.Handler {
	frontProxy, _ := keyPair(t)
	return reviewtest.Handler(frontProxy)
}

// lateAPIServer hangs up on everybody until it is up. It holds its port from the
// start: one that was let go and taken again might be another program's.
type lateAPIServer struct {
	http.Handler
	up atomic.Bool
}

func (s *lateAPIServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.up.Load() {
		panic(http.ErrAbortHandler)
	}
	s.Handler.ServeHTTP(w, r)
}

// kubeconfig writes a kubeconfig for an API server at that address.
func kubeconfig(t testing.TB, address string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": [{"name": "x", "cluster": {"server": "http://%s"}}],
		"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}], "users": [{"name": "x", "user": {}}]}`, address)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// firstLine keeps the first line that is logged.
type firstLine chan string

func (f firstLine) Write(line []byte) (int, error) {
	select {
	case f <- string(line):
	default:
	}
	return len(line), nil
}

// caller asks the server over TLS.
type caller struct {
	t       testing.TB
	address string
	trusted []byte
}

func (c *caller) do(path, accept, token string) (int, http.Header, []byte, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.trusted)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "https://"+c.address+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if accept != "" {
		request.Header.Set("Accept", accept)
	}
	response, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, response.Header, body, err
}

// get is the body of an answer that must be OK.
func (c *caller) get(path, accept string) string {
	c.t.Helper()
	code, _, body, err := c.do(path, accept, "good")
	if err != nil || code != http.StatusOK {
		c.t.Fatalf("GET %s: %d %v\n%s", path, code, err, body)
	}
	return string(body)
}

// until asks until the server is healthy.
func (c *caller) until() {
	c.t.Helper()
	deadline := time.Now().Add(2 * time.Minute) // only a failure takes that long
	for {
		code, _, body, err := c.do("/readyz", "", "")
		if code == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("not ready: %d %v\n%s", code, err, body)
		}
		time.Sleep(20 * time.Millisecond) // a real server's start is polled
	}
}

// The whole server, in the order of the facts: it comes up before the API
// server does, and then serves both versions, documents itself, refuses
// strangers and follows its certificate.
func TestServer(t *testing.T) {
	api := &lateAPIServer{Handler: apiServer(t)}
	listening := httptest.NewServer(api)
	defer listening.Close()
	defer listening.CloseClientConnections() // or a watch keeps Close waiting

	cert, waits := &changingCert{}, make(firstLine, 1)
	server, err := New(Config{
		BindAddress: "127.0.0.1", Cert: cert, Kubeconfig: kubeconfig(t, listening.Listener.Addr().String()), MaxAge: maxAge,
		RateWindow: 15 * time.Second, Version: "0.1.0", Log: slog.New(slog.NewTextHandler(waits, nil)),
	}, fleet(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()

	if line := <-waits; !strings.Contains(line, "metrics API cannot start yet") || !strings.Contains(line, "delegate authentication") {
		t.Errorf("without an API server: %s", line)
	}
	api.up.Store(true)

	first, firstKey := keyPair(t)
	cert.set(first, firstKey)
	c := &caller{t, server.Addr().String(), first}
	c.until()

	t.Run("values", c.values)
	t.Run("errors", c.errors)
	t.Run("discovery", c.discovery)
	t.Run("openapi", c.openapi)
	t.Run("freshness", c.freshness)
	t.Run("strangers", c.strangers)
	t.Run("certificate", func(t *testing.T) {
		second, secondKey := keyPair(t)
		cert.set(second, secondKey)
		c.trusted = second
		c.until()
	})
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("Run: %v", err)
	}
}

const podsPath = "/namespaces/ml/pods/*/"

func (c *caller) values(t *testing.T) {
	var list struct {
		Kind, APIVersion string
		Items            []map[string]any
	}
	read := func(path string) {
		t.Helper()
		list.Items = nil
		if err := json.Unmarshal([]byte(c.get(path, "")), &list); err != nil {
			t.Fatal(err)
		}
	}
	object := map[string]any{"kind": "Pod", "namespace": "ml", "name": "web-a", "apiVersion": "v1"}
	// JSON has whole seconds: 12:00:00.25 less half a second.
	const stamp = "2026-03-01T11:59:59Z"

	read("/apis/custom.metrics.k8s.io/v1beta2" + podsPath + "DCGM_FI_DEV_GPU_UTIL?labelSelector=app%3Dweb")
	if list.Kind != "MetricValueList" || list.APIVersion != "custom.metrics.k8s.io/v1beta2" || len(list.Items) != 3 {
		t.Fatalf("v1beta2: %+v", list)
	}
	want := map[string]any{
		"describedObject": object, "metric": map[string]any{"name": "DCGM_FI_DEV_GPU_UTIL", "selector": nil},
		"timestamp": stamp, "value": "65500m",
	}
	if diff := cmp.Diff(want, list.Items[0]); diff != "" {
		t.Errorf("v1beta2 (-want +got):\n%s", diff)
	}
	read("/apis/custom.metrics.k8s.io/v1beta1" + strings.Replace(podsPath, "*", "web-a", 1) + "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION")
	want = map[string]any{
		"describedObject": object, "metricName": "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
		"timestamp": stamp, "value": "600k", "window": 15.0, "selector": nil,
	}
	if len(list.Items) != 1 {
		t.Fatalf("v1beta1: %+v", list)
	}
	if diff := cmp.Diff(want, list.Items[0]); diff != "" {
		t.Errorf("v1beta1 (-want +got):\n%s", diff)
	}
	read("/apis/custom.metrics.k8s.io/v1beta2" + podsPath + "vllm:num_requests_waiting")
	if len(list.Items) != 1 || list.Items[0]["value"] != "12500m" {
		t.Errorf("a pod's own metric: %+v", list.Items)
	}
}

func (c *caller) errors(t *testing.T) {
	f := func(path string, code int, want string) {
		t.Helper()
		got, _, body, err := c.do("/apis/custom.metrics.k8s.io/v1beta2"+path, "", "good")
		if err != nil || got != code || !bytes.Contains(body, []byte(want)) {
			t.Errorf("%s: %d %v %s, want %d %q", path, got, err, body, code, want)
		}
	}
	f(podsPath+"no_such_metric", http.StatusNotFound, "metric no_such_metric is not known")
	f(podsPath+"DCGM_FI_DEV_GPU_UTIL?metricLabelSelector=modelName%3DH100", http.StatusBadRequest, "use window=DURATION")
	f("/nodes/node-1/DCGM_FI_DEV_GPU_UTIL", http.StatusNotFound, "nodes have no metrics here; pods have")
	f("/namespaces/ml/pods/web-loading/DCGM_FI_DEV_GPU_UTIL", http.StatusNotFound, "is starting or terminating")
}

func (c *caller) discovery(t *testing.T) {
	for _, version := range []string{"v1beta1", "v1beta2"} {
		var list metav1.APIResourceList
		if err := json.Unmarshal([]byte(c.get("/apis/custom.metrics.k8s.io/"+version, "")), &list); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, r := range list.APIResources {
			names = append(names, r.Name)
		}
		if diff := cmp.Diff([]string{"pods/DCGM_FI_DEV_GPU_UTIL", "pods/queue_depth", "pods/vllm:num_requests_waiting"}, names); diff != "" {
			t.Errorf("%s (-want +got):\n%s", version, diff)
		}
	}
	aggregated := c.get("/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	for _, want := range []string{"custom.metrics.k8s.io", `"v1beta1"`, `"v1beta2"`, `"vllm:num_requests_waiting"`} {
		if !strings.Contains(aggregated, want) {
			t.Errorf("aggregated discovery lacks %s:\n%s", want, aggregated)
		}
	}
	if i, j := strings.Index(aggregated, `"v1beta2"`), strings.Index(aggregated, `"v1beta1"`); i > j {
		t.Error("v1beta1 is preferred")
	}
}

func (c *caller) openapi(t *testing.T) {
	v2 := c.get("/openapi/v2", "application/json")
	v3 := c.get("/openapi/v3/apis/custom.metrics.k8s.io/v1beta2", "application/json")
	for _, want := range []string{"custom_metrics.v1beta1.MetricValueList", "custom_metrics.v1beta2.MetricValueList", `"title":"gpupilot"`, `"version":"0.1.0"`} {
		if !strings.Contains(v2, want) {
			t.Errorf("OpenAPI v2 lacks %s", want)
		}
	}
	if !strings.Contains(v3, "custom_metrics.v1beta2.MetricValueList") || !strings.Contains(v3, `"openapi":"3.0`) {
		t.Errorf("OpenAPI v3: %.300s", v3)
	}
}

// freshness: the library's own metric sees the values' real age.
func (c *caller) freshness(t *testing.T) {
	if page := c.get("/metrics", ""); !strings.Contains(page, `metrics_apiserver_metric_freshness_seconds_count{group="custom.metrics.k8s.io"}`) {
		t.Error("/metrics lacks the freshness of what was served")
	}
}

func (c *caller) strangers(t *testing.T) {
	f := func(path, token string, want int) {
		t.Helper()
		if code, _, body, err := c.do(path, "", token); err != nil || code != want {
			t.Errorf("%s as %q: %d %v, want %d\n%s", path, token, code, err, want, body)
		}
	}
	metric := "/apis/custom.metrics.k8s.io/v1beta2" + podsPath + "DCGM_FI_DEV_GPU_UTIL"
	f(metric, "", http.StatusForbidden)
	f(metric, "stolen", http.StatusUnauthorized)
	f("/metrics", "", http.StatusForbidden)
	f("/metrics", "good", http.StatusOK)
	f("/debug/pprof/", "good", http.StatusNotFound)
	f("/healthz", "", http.StatusOK)
}

// Files take precedence, and are read again when they change.
func TestServerFromFiles(t *testing.T) {
	api := httptest.NewServer(apiServer(t))
	defer api.Close()
	defer api.CloseClientConnections()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	write := func() []byte {
		cert, key := keyPair(t)
		if err := errors.Join(os.WriteFile(certFile, cert, 0o600), os.WriteFile(keyFile, key, 0o600)); err != nil {
			t.Fatal(err)
		}
		return cert
	}
	trusted := write()
	server, err := New(Config{
		BindAddress: "127.0.0.1", CertFile: certFile, KeyFile: keyFile, Cert: &changingCert{},
		Kubeconfig: kubeconfig(t, api.Listener.Addr().String()), MaxAge: maxAge,
	}, fleet(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- server.Run(ctx) }()
	c := &caller{t, server.Addr().String(), trusted}
	c.until()
	c.trusted = write()
	c.until()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestNewRefuses(t *testing.T) {
	good := kubeconfig(t, "127.0.0.1:1")
	f := func(cfg Config, want string) {
		t.Helper()
		_, err := New(cfg, Deps{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	f(Config{Kubeconfig: good}, "no serving certificate")
	f(Config{Kubeconfig: good, CertFile: "tls.crt"}, `certificate file "tls.crt", key file "": give both or neither`)
	f(Config{Kubeconfig: "/nowhere", Cert: &changingCert{}}, "kubeconfig /nowhere")
	f(Config{Kubeconfig: good, Cert: &changingCert{}, BindAddress: "localhost"}, `bind address "localhost" is not an IP address`)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	f(Config{Kubeconfig: good, Cert: &changingCert{}, BindAddress: "127.0.0.1", Port: taken.Addr().(*net.TCPAddr).Port}, "listen for the metrics API")
}
