// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	pb "github.com/gpupilot/gpupilot/internal/serve/kedascaler/externalscaler"
)

// fakeSignals answers from maps.
type fakeSignals struct {
	mu       sync.Mutex
	objects  map[string]*ScaledObject
	live     map[string]*ScaledObject // found only in the API server
	workload func(q *WorkloadQuery) (WorkloadValue, error)
	desired  map[string]float64
	queries  map[string]float64
	followed map[string]int
}

func (f *fakeSignals) ScaledObject(_ context.Context, namespace, name string, live bool) (*ScaledObject, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.live[namespace+"/"+name]; live && o != nil {
		return o, nil
	}
	if o := f.objects[namespace+"/"+name]; o != nil {
		return o, nil
	}
	return nil, fmt.Errorf("%w: ScaledObject %s/%s does not exist", ErrNotFound, namespace, name)
}

func (f *fakeSignals) Workload(_ context.Context, q *WorkloadQuery) (WorkloadValue, error) {
	return f.workload(q)
}

func (f *fakeSignals) Desired(namespace, name string) (Sample, error) {
	return f.lookup(f.desired, "GPUAutoscaler", namespace+"/"+name)
}

func (f *fakeSignals) Query(namespace, name string) (Sample, error) {
	return f.lookup(f.queries, "MetricQuery", namespace+"/"+name)
}

func (f *fakeSignals) Follow(namespace, query string) (stop func()) {
	add := func(n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.followed[namespace+"/"+query] += n
	}
	add(1)
	return func() { add(-1) }
}

func (f *fakeSignals) lookup(in map[string]float64, kind, key string) (Sample, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	v, ok := in[key]
	if !ok {
		return Sample{}, fmt.Errorf("%w: %s %s does not exist", ErrNotFound, kind, key)
	}
	return Sample{v, time.Now()}, nil
}

func (f *fakeSignals) setQuery(key string, v float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queries[key] = v
}

// with adds a ScaledObject of team-a with one trigger.
func (f *fakeSignals) with(name, kind, metricType string, metadata map[string]string) *pb.ScaledObjectRef {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.objects["team-a/"+name] = &ScaledObject{
		Namespace: "team-a", Name: name, MinReplicas: 1, Target: ScaleTarget{"apps/v1", "Deployment", name},
		Triggers: []ObjectTrigger{{Type: kind, MetricType: metricType, Metadata: metadata}},
	}
	return &pb.ScaledObjectRef{Namespace: "team-a", Name: name, ScalerMetadata: maps.Clone(metadata)}
}

func newFake() *fakeSignals {
	return &fakeSignals{
		objects: map[string]*ScaledObject{}, live: map[string]*ScaledObject{},
		desired: map[string]float64{}, queries: map[string]float64{}, followed: map[string]int{},
		workload: func(*WorkloadQuery) (WorkloadValue, error) {
			return WorkloadValue{Value: 90, At: time.Now(), Serving: 2, Pods: 3}, nil
		},
	}
}

// authority signs the certificates of a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	a := &authority{pool: x509.NewCertPool()}
	pair := a.issue(t, &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) issue(t testing.TB, template *x509.Certificate) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Minute), time.Now().Add(time.Hour)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// client issues a client's certificate with a common name and the URIs of namespaces.
func (a *authority) client(t testing.TB, name string, uris ...string) *tls.Certificate {
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
	for _, u := range uris {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		template.URIs = append(template.URIs, parsed)
	}
	return a.issue(t, template)
}

// rig is a server on loopback.
type rig struct {
	*fakeSignals
	ca      *authority
	address string
	server  *Server
}

func newTestRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	r := &rig{fakeSignals: newFake(), ca: newAuthority(t)}
	serving := r.ca.issue(t, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	cfg := Config{
		Certificate: func() (*tls.Certificate, error) { return serving, nil },
		Authorities: func() (*x509.CertPool, error) { return r.ca.pool, nil },
		Clients:     Clients{Names: []string{"keda-operator"}},
	}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg, r.fakeSignals)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.server, r.address = s, l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// as connects with a client certificate; nil: without one.
func (r *rig) as(t testing.TB, cert *tls.Certificate) *grpc.ClientConn {
	t.Helper()
	c := &tls.Config{RootCAs: r.ca.pool, MinVersion: tls.VersionTLS12}
	if cert != nil {
		c.Certificates = []tls.Certificate{*cert}
	}
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(credentials.NewTLS(c)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *rig) operator(t testing.TB) *grpc.ClientConn {
	return r.as(t, r.ca.client(t, "keda-operator"))
}

func getMetrics(ctx context.Context, conn *grpc.ClientConn, ref *pb.ScaledObjectRef, metric string) (*pb.GetMetricsResponse, error) {
	out := new(pb.GetMetricsResponse)
	return out, conn.Invoke(ctx, "/"+serviceName+"/GetMetrics", &pb.GetMetricsRequest{ScaledObjectRef: ref, MetricName: metric}, out)
}

func isActive(ctx context.Context, conn *grpc.ClientConn, ref *pb.ScaledObjectRef) (bool, error) {
	out := new(pb.IsActiveResponse)
	err := conn.Invoke(ctx, "/"+serviceName+"/IsActive", ref, out)
	return out.GetResult(), err
}

func getSpec(ctx context.Context, conn *grpc.ClientConn, ref *pb.ScaledObjectRef) (*pb.GetMetricSpecResponse, error) {
	out := new(pb.GetMetricSpecResponse)
	return out, conn.Invoke(ctx, "/"+serviceName+"/GetMetricSpec", ref, out)
}

func watchActive(t testing.TB, conn *grpc.ClientConn, ref *pb.ScaledObjectRef) grpc.ClientStream {
	t.Helper()
	stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/"+serviceName+"/StreamIsActive")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(ref), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	return stream
}

func TestMetricOfTheWorkload(t *testing.T) {
	r := newTestRig(t, nil)
	conn := r.operator(t)
	metadata := map[string]string{"metric": "Utilization", "target": "60", "scalerAddress": r.address}
	f := func(metricType, stat string, want float64) {
		t.Helper()
		if metadata["stat"] = stat; stat == "" {
			delete(metadata, "stat")
		}
		ref := r.with("vllm", "external", metricType, metadata)
		spec, err := getSpec(t.Context(), conn, ref)
		if err != nil {
			t.Fatal(err)
		}
		if m := spec.GetMetricSpecs(); len(m) != 1 || m[0].GetMetricName() != "gpupilot-Utilization" || m[0].GetTargetSizeFloat() != 60 || m[0].GetTargetSize() != 60 {
			t.Errorf("spec %v", spec)
		}
		got, err := getMetrics(t.Context(), conn, ref, "gpupilot-Utilization")
		if err != nil {
			t.Fatal(err)
		}
		if v := got.GetMetricValues(); len(v) != 1 || v[0].GetMetricValueFloat() != want || v[0].GetMetricValue() != int64(want) {
			t.Errorf("metric type %q, stat %q: %v, want %v", metricType, stat, got, want)
		}
	}
	f("", "", 180) // 90 for each of the two serving pods
	f("AverageValue", "max", 180)
	f("AverageValue", "sum", 90) // the total
	f("Value", "", 90)
}

// The request's metadata never selects another object, namespace or signal than the
// ScaledObject's own.
func TestOnlyTheObjectsOwnTriggers(t *testing.T) {
	r := newTestRig(t, nil)
	conn := r.operator(t)
	var asked WorkloadQuery
	r.workload = func(q *WorkloadQuery) (WorkloadValue, error) {
		asked = *q
		return WorkloadValue{Value: 1, Serving: 1, Pods: 1}, nil
	}
	r.queries["team-a/secret"] = 1
	ref := r.with("vllm", "external", "", map[string]string{"metric": "Utilization", "target": "60"})
	refuse := func(code codes.Code, text string, ref *pb.ScaledObjectRef) {
		t.Helper()
		if _, err := getMetrics(t.Context(), conn, ref, ""); status.Code(err) != code || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: error %v, want %s %q", ref, err, code, text)
		}
	}
	refuse(codes.FailedPrecondition, "no external or external-push trigger with this metadata",
		&pb.ScaledObjectRef{Namespace: "team-a", Name: "vllm", ScalerMetadata: map[string]string{"query": "secret", "target": "60"}})
	refuse(codes.FailedPrecondition, "no external", &pb.ScaledObjectRef{Namespace: "team-a", Name: "vllm", ScalerMetadata: map[string]string{"metric": "Utilization", "target": "1"}})
	refuse(codes.NotFound, "ScaledObject team-b/vllm does not exist", &pb.ScaledObjectRef{Namespace: "team-b", Name: "vllm", ScalerMetadata: ref.GetScalerMetadata()})
	refuse(codes.InvalidArgument, "both are needed", &pb.ScaledObjectRef{Name: "vllm", ScalerMetadata: ref.GetScalerMetadata()})
	refuse(codes.InvalidArgument, "metadata.target: missing", &pb.ScaledObjectRef{Namespace: "team-a", Name: "vllm", ScalerMetadata: map[string]string{"metric": "Utilization"}})
	refuse(codes.InvalidArgument, "metadata.namespace: unknown key",
		&pb.ScaledObjectRef{Namespace: "team-a", Name: "vllm", ScalerMetadata: map[string]string{"metric": "Utilization", "target": "60", "namespace": "team-b"}})
	if asked.Metric != "" {
		t.Errorf("a refused request read %+v", asked)
	}
	if _, err := getMetrics(t.Context(), conn, ref, "other"); status.Code(err) != codes.NotFound {
		t.Errorf("another metric's name: %v", err)
	}
	if _, err := getMetrics(t.Context(), conn, ref, ""); err != nil || asked.Namespace != "team-a" || asked.Target != (ScaleTarget{"apps/v1", "Deployment", "vllm"}) {
		t.Errorf("asked for %+v, %v", asked, err)
	}
	cron := r.with("cron", "cron", "", map[string]string{"metric": "Utilization", "target": "60"})
	refuse(codes.FailedPrecondition, "no external", cron)
}

// KEDA asks about a new or changed object before the watch has delivered it.
func TestANewObjectIsReadFromTheAPIServer(t *testing.T) {
	r := newTestRig(t, nil)
	ref := r.with("vllm", "external", "", map[string]string{"metric": "Utilization", "target": "60"})
	r.live["team-a/vllm"], r.objects = r.objects["team-a/vllm"], map[string]*ScaledObject{}
	if _, err := getMetrics(t.Context(), r.operator(t), ref, ""); err != nil {
		t.Error(err)
	}
}

func TestActivity(t *testing.T) {
	r := newTestRig(t, nil)
	conn := r.operator(t)
	f := func(want bool, metadata map[string]string, v WorkloadValue) {
		t.Helper()
		r.workload = func(*WorkloadQuery) (WorkloadValue, error) { return v, nil }
		if got, err := isActive(t.Context(), conn, r.with("vllm", "external", "", metadata)); err != nil || got != want {
			t.Errorf("%v, %+v: active %t, %v", metadata, v, got, err)
		}
	}
	plain := map[string]string{"metric": "Utilization", "target": "60"}
	limited := map[string]string{"metric": "Utilization", "target": "60", "activationTarget": "5"}
	f(true, plain, WorkloadValue{Value: 0, Serving: 1, Pods: 1}) // idle, but only activationTarget removes the last replica
	f(false, plain, WorkloadValue{})                             // no pods
	f(true, limited, WorkloadValue{Value: 6, Serving: 1, Pods: 1})
	f(false, limited, WorkloadValue{Value: 5, Serving: 1, Pods: 1})
	r.desired["team-a/a"], r.queries["team-a/q"] = 2, 3
	f(true, map[string]string{"autoscaler": "a"}, WorkloadValue{})
	f(false, map[string]string{"autoscaler": "a", "activationTarget": "2"}, WorkloadValue{})
	f(true, map[string]string{"query": "q", "target": "1"}, WorkloadValue{})
	f(false, map[string]string{"query": "q", "target": "1", "activationTarget": "3"}, WorkloadValue{})
}

// A trigger that would remove the last replica, with nothing to bring it back, is an error.
func TestNoWayBackFromZero(t *testing.T) {
	r := newTestRig(t, nil)
	ref := r.with("vllm", "external", "", map[string]string{"metric": "Utilization", "target": "60", "activationTarget": "5"})
	r.objects["team-a/vllm"].MinReplicas = 0
	if _, err := getSpec(t.Context(), r.operator(t), ref); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "minReplicaCount: 1") {
		t.Errorf("error %v", err)
	}
	r.objects["team-a/vllm"].Triggers = append(r.objects["team-a/vllm"].Triggers, ObjectTrigger{Type: "cron"})
	if _, err := getSpec(t.Context(), r.operator(t), ref); err != nil {
		t.Error(err)
	}
}

func TestErrorsOfTriggersAreReported(t *testing.T) {
	var got []string
	r := newTestRig(t, func(c *Config) {
		c.Report = func(namespace, name, reason string) { got = append(got, namespace+"/"+name+" "+reason) }
	})
	ref := r.with("vllm", "external", "", map[string]string{"metric": "Utilization"})
	_, _ = getSpec(t.Context(), r.operator(t), ref)
	_, _ = getSpec(t.Context(), r.as(t, r.ca.client(t, "stranger")), ref)
	if len(got) != 1 || !strings.HasPrefix(got[0], "team-a/vllm metadata.target: missing") {
		t.Errorf("reported %q", got)
	}
}

func TestMissingIsNotZero(t *testing.T) {
	r := newTestRig(t, nil)
	conn := r.operator(t)
	ref := r.with("vllm", "external", "", map[string]string{"metric": "Utilization", "target": "60"})
	f := func(want codes.Code, v WorkloadValue, err error) {
		t.Helper()
		r.workload = func(*WorkloadQuery) (WorkloadValue, error) { return v, err }
		if _, err := getMetrics(t.Context(), conn, ref, ""); status.Code(err) != want {
			t.Errorf("error %v, want %s", err, want)
		}
		if _, err := isActive(t.Context(), conn, ref); status.Code(err) != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	f(codes.Unavailable, WorkloadValue{Pods: 2}, nil) // all of them start
	f(codes.Unavailable, WorkloadValue{}, fmt.Errorf("%w: stale", ErrNoValue))
	f(codes.InvalidArgument, WorkloadValue{}, fmt.Errorf("%w: metadata.metric: unknown", ErrInvalid))
	f(codes.NotFound, WorkloadValue{}, fmt.Errorf("%w: Deployment vllm", ErrNotFound))
}

func TestWhoMayAsk(t *testing.T) {
	r := newTestRig(t, nil)
	ref := r.with("vllm", "external", "", map[string]string{"metric": "Utilization", "target": "60"})
	f := func(want codes.Code, cert *tls.Certificate) {
		t.Helper()
		if _, err := isActive(t.Context(), r.as(t, cert), ref); status.Code(err) != want {
			t.Errorf("error %v, want %s", err, want)
		}
	}
	f(codes.OK, r.ca.client(t, "keda-operator"))
	f(codes.OK, r.ca.client(t, "team-a", NamespaceURI+"team-a"))
	f(codes.OK, r.ca.client(t, "both", NamespaceURI+"team-b", NamespaceURI+"team-a"))
	f(codes.PermissionDenied, r.ca.client(t, "team-b", NamespaceURI+"team-b"))
	f(codes.PermissionDenied, r.ca.client(t, "prefix", NamespaceURI+"team"))
	f(codes.PermissionDenied, r.ca.client(t, ""))
	f(codes.Unavailable, nil) // no certificate: the handshake fails
	f(codes.Unavailable, newAuthority(t).client(t, "keda-operator"))
}

func TestNamespacesAreNotProbed(t *testing.T) {
	r := newTestRig(t, nil)
	conn := r.as(t, r.ca.client(t, "team-b", NamespaceURI+"team-b"))
	known := r.with("vllm", "external", "", map[string]string{"metric": "Utilization", "target": "60"})
	unknown := &pb.ScaledObjectRef{Namespace: "team-a", Name: "other", ScalerMetadata: known.GetScalerMetadata()}
	_, a := isActive(t.Context(), conn, known)
	_, b := isActive(t.Context(), conn, unknown)
	if a == nil || b == nil || a.Error() != b.Error() {
		t.Errorf("the answers differ: %v, %v", a, b)
	}
}

func TestStream(t *testing.T) {
	r := newTestRig(t, nil)
	r.setQuery("team-a/q", 0)
	ref := r.with("vllm", "external-push", "", map[string]string{"query": "q", "target": "1"})
	stream := watchActive(t, r.operator(t), ref)
	next := func() bool {
		t.Helper()
		m := new(pb.IsActiveResponse)
		if err := stream.RecvMsg(m); err != nil {
			t.Fatal(err)
		}
		return m.GetResult()
	}
	if next() {
		t.Error("active at 0")
	}
	r.setQuery("team-a/q", 5)
	if !next() {
		t.Error("not active at 5")
	}
	r.mu.Lock()
	if n := r.followed["team-a/q"]; n != 1 {
		t.Errorf("%d streams follow the MetricQuery", n)
	}
	delete(r.queries, "team-a/q")
	r.mu.Unlock()
	if err := stream.RecvMsg(new(pb.IsActiveResponse)); status.Code(err) != codes.NotFound {
		t.Errorf("after the MetricQuery was deleted: %v", err)
	}
}

func TestStreamsAreLimitedPerNamespace(t *testing.T) {
	r := newTestRig(t, func(c *Config) { c.StreamsPerNamespace = 1 })
	r.setQuery("team-a/q", 0)
	ref := r.with("vllm", "external-push", "", map[string]string{"query": "q", "target": "1"})
	conn := r.operator(t)
	first := watchActive(t, conn, ref)
	if err := first.RecvMsg(new(pb.IsActiveResponse)); err != nil {
		t.Fatal(err)
	}
	if err := watchActive(t, conn, ref).RecvMsg(new(pb.IsActiveResponse)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a second stream: %v", err)
	}
	r.mu.Lock()
	r.objects["team-b/vllm"], r.queries["team-b/q"] = &ScaledObject{Namespace: "team-b", Name: "vllm", Triggers: r.objects["team-a/vllm"].Triggers}, 0
	r.mu.Unlock()
	other := &pb.ScaledObjectRef{Namespace: "team-b", Name: "vllm", ScalerMetadata: ref.GetScalerMetadata()}
	if err := watchActive(t, conn, other).RecvMsg(new(pb.IsActiveResponse)); err != nil {
		t.Errorf("another namespace's stream: %v", err)
	}
}

func TestBounds(t *testing.T) {
	block := make(chan struct{})
	r := newTestRig(t, func(c *Config) { c.Calls = 1 })
	entered := make(chan struct{})
	r.workload = func(*WorkloadQuery) (WorkloadValue, error) {
		close(entered)
		<-block
		return WorkloadValue{Value: 1, Serving: 1, Pods: 1}, nil
	}
	conn := r.operator(t)
	ref := r.with("vllm", "external", "", map[string]string{"metric": "Utilization", "target": "60"})
	first := make(chan error)
	go func() {
		_, err := isActive(context.WithoutCancel(t.Context()), conn, ref)
		first <- err
	}()
	<-entered
	if _, err := isActive(t.Context(), conn, ref); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a second call: %v", err)
	}
	close(block)
	if err := <-first; err != nil {
		t.Error(err)
	}
	big := &pb.ScaledObjectRef{Namespace: "team-a", Name: "vllm", ScalerMetadata: map[string]string{"metric": strings.Repeat("x", maxBytes)}}
	if _, err := isActive(t.Context(), conn, big); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of more than %d bytes: %v", maxBytes, err)
	}
}

func TestWithoutCertificatesOnlyIfAsked(t *testing.T) {
	cert := func() (*tls.Certificate, error) { return nil, nil }
	if _, err := New(Config{Certificate: cert}, newFake()); err == nil {
		t.Error("a server without client authorities was made")
	}
	r := newTestRig(t, func(c *Config) { c.Clients, c.Authorities = Clients{Anyone: true}, nil })
	ref := r.with("vllm", "external", "", map[string]string{"metric": "Utilization", "target": "60"})
	if _, err := isActive(t.Context(), r.as(t, nil), ref); err != nil {
		t.Error(err)
	}
}

// BenchmarkGetMetrics measures one request over a TLS connection on loopback, as KEDA
// sends it.
func BenchmarkGetMetrics(b *testing.B) {
	r := newTestRig(b, nil)
	conn := r.operator(b)
	ref := r.with("vllm", "external", "", map[string]string{"metric": "Utilization", "target": "60", "scalerAddress": r.address})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := getMetrics(b.Context(), conn, ref, "gpupilot-Utilization"); err != nil {
			b.Fatal(err)
		}
	}
}
