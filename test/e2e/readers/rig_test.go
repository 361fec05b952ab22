// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

package readers

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpupilot/gpupilot/internal/serve/kedascaler"
	pb "github.com/gpupilot/gpupilot/internal/serve/kedascaler/externalscaler"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/test/cluster"
	"github.com/gpupilot/gpupilot/test/readers"
	"github.com/gpupilot/gpupilot/test/stack"
)

const (
	workload     = "w"  // the honest workload, and the first of the evil ones
	scaledObject = "so" // of both, for a Deployment that no GPUAutoscaler scales
	objects      = 60   // GPUAutoscalers of the evil namespace
	hours        = 24   // of the minutes of one
)

// rig is a controller that listens on a link.
type rig struct {
	*stack.Stack
	link       *readers.Link
	set        *kubernetes.Clientset
	tokens     []string // of the evil accounts
	quiet      string   // of an account of the honest namespace
	scrapes    string   // of one that may read /metrics
	keda       string   // address
	goroutines float64
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{link: readers.NewLink(t)}
	r.Stack = stack.New(t, stack.Config{Nodes: 1, HPASyncPeriod: time.Second, NoController: true})
	stack.Must(t, r.AwaitNamespace(t.Context(), honest))
	stack.Must(t, r.AwaitNamespace(t.Context(), evil))
	stack.Must(t, r.InstallKind(t.Context(), schema.GroupVersionKind{Group: "keda.sh", Version: "v1alpha1", Kind: "ScaledObject"}))
	set, err := kubernetes.NewForConfig(r.REST)
	stack.Must(t, err)
	r.set = set
	for i := range accounts {
		r.tokens = append(r.tokens, r.account(t, evil, fmt.Sprint("a", i)))
	}
	r.quiet, r.scrapes = r.account(t, honest, "quiet"), r.account(t, stack.Namespace, "scrapes")
	r.bind(t, evil)
	r.bind(t, honest)
	stack.Must(t, r.Client.Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "scrapes"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "gpupilot:metrics-reader"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: stack.Namespace, Name: "scrapes"}},
	}))
	port, err := cluster.FreePort(r.link.Host)
	stack.Must(t, err)
	r.keda = net.JoinHostPort(r.link.Host, fmt.Sprint(port))
	_, err = r.ServicePort()
	stack.Must(t, err)
	r.ControllerURL = fmt.Sprintf("http://%s:%d", r.link.Host, stack.PortOf(r.ControllerURL))
	for i := range objects {
		name := workload
		if i > 0 {
			name = fmt.Sprintf("%s-%d", workload, i)
		}
		a := stack.Autoscaler(name)
		a.Namespace = evil
		stack.Must(t, r.Client.Create(t.Context(), stack.Deployment(evil, name, 0, 0)))
		stack.Must(t, r.Client.Create(t.Context(), a))
	}
	for _, ns := range []string{honest, evil} {
		stack.Must(t, r.Apply(t.Context(), fmt.Appendf(nil, `{apiVersion: keda.sh/v1alpha1, kind: ScaledObject, metadata: {namespace: %s, name: %s}, spec: {scaleTargetRef: {name: %[2]s}, minReplicaCount: 1,
			triggers: [{type: external, metadata: {metric: Utilization, target: "60"}}]}}`, ns, scaledObject)))
	}
	stack.Must(t, r.StartController(t.Context(), "--page-auth", "token", "--history-dir", minutes(t), "--external-metrics", "--window", "1m",
		"--keda-address", r.keda, "--keda-client-ca-file", r.Cluster.CAPath(), "--keda-clients", "keda-operator,keda-of-evil"))
	r.Offer(workload, 0.3)
	r.Deploy(t, workload, 1, 0)
	r.Autoscale(t, workload, nil)
	r.Measured(t, workload, 1)
	r.goroutines = r.meters(t)["go_goroutines"]
	return r
}

// account makes a ServiceAccount and returns its token.
func (r *rig) account(t *testing.T, namespace, name string) string {
	t.Helper()
	a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	stack.Must(t, r.Client.Create(t.Context(), a))
	token, err := r.set.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	stack.Must(t, err)
	return token.Status.Token
}

// bind lets the accounts of a namespace view it.
func (r *rig) bind(t *testing.T, namespace string) {
	t.Helper()
	stack.Must(t, r.Client.Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "view"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts:" + namespace}},
	}))
}

// minutes writes the minutes of an evil workload, so that their answer has some MB.
func minutes(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	v, err := history.OpenVolume(history.VolumeConfig{Dir: dir})
	stack.Must(t, err)
	for at := time.Now().Add(-hours * time.Hour).Truncate(time.Minute); time.Since(at) > time.Minute; at = at.Add(time.Minute) {
		var values []history.Value
		for i := range 40 {
			values = append(values, history.Reading(history.NewMetric("gpupilot_autoscaler_signal_value", "signal", fmt.Sprint("s", i)), float64(at.Unix()%977)/float64(i+3)))
		}
		stack.Must(t, v.Write(at, func(add func(history.Workload, []history.Value)) {
			add(history.Workload{Namespace: evil, Kind: history.KindAutoscaler, Name: workload}, values)
		}))
	}
	stack.Must(t, v.Close())
	return dir
}

// meters reads the controller's /metrics.
func (r *rig) meters(t *testing.T) map[string]float64 {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.ControllerURL+"/metrics", nil)
	stack.Must(t, err)
	req.Header.Set("Authorization", "Bearer "+r.scrapes)
	res, err := http.DefaultClient.Do(req)
	stack.Must(t, err)
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	stack.Must(t, err)
	out := map[string]float64{}
	for line := range strings.Lines(string(body)) {
		var name string
		var v float64
		if n, _ := fmt.Sscan(line, &name, &v); n == 2 {
			out[name] = v
		}
	}
	return out
}

// listeners are those of the controller, each with its routes. internal/arch_test.go compares their names with the files
// that may listen.
func (r *rig) listeners(t *testing.T) []*listener {
	t.Helper()
	client := func(i int) *http.Client {
		return &http.Client{Timeout: patience, Transport: &http.Transport{DialContext: r.link.From(i), DisableKeepAlives: i%2 == 1, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	}
	page := &listener{
		name: "page", address: strings.TrimPrefix(r.ControllerURL, "http://"), routes: pageRoutes(t),
		attacks: func(route string) []readers.Attack { return r.attacks(route, false) },
		honest: map[string]func() error{
			"view": answers(client(2), r.ControllerURL+"/api/v1/view", r.quiet), "minutes": answers(client(3), r.ControllerURL+"/api/v1/minutes?namespace="+honest+"&name="+workload, r.quiet),
			"/metrics": answers(client(4), r.ControllerURL+"/metrics", r.scrapes), "probe": answers(client(5), r.ControllerURL+"/readyz", ""),
		},
	}
	port, err := r.ServicePort()
	stack.Must(t, err)
	direct := fmt.Sprintf("%s:%d", r.link.Host, port)
	const utilization = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/" + honest + "/pods/*/DCGM_FI_DEV_GPU_UTIL"
	kubeconfig, err := r.Cluster.KubeconfigFor("system:serviceaccount:kube-system:horizontal-pod-autoscaler", "system:authenticated")
	stack.Must(t, err)
	account, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	stack.Must(t, err)
	autoscaler, err := rest.HTTPClientFor(account)
	stack.Must(t, err)
	hpa := answers(autoscaler, r.Cluster.URL()+utilization, "")
	stack.Eventually(t, hpa)
	api := &listener{
		name: "metrics API", address: direct, routes: r.apiRoutes(t),
		attacks: func(route string) []readers.Attack {
			out := r.attacks(route, true)
			method, path, _ := strings.Cut(route, " ")
			streams := r.streams(&tls.Config{InsecureSkipVerify: true}, 200, map[string]string{":method": method, ":path": path, "authorization": "Bearer " + r.tokens[0]}, nil)
			return append(out, readers.Attack{Name: "streams without a window", Sources: 1, Connections: 32, Does: streams})
		},
		honest: map[string]func() error{"HPA": hpa, "probe": answers(client(6), "https://"+direct+"/readyz", "")},
	}
	conn, err := grpc.NewClient(r.keda, grpc.WithTransportCredentials(credentials.NewTLS(r.certificate(t, "keda-operator"))))
	stack.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	keda := &listener{
		name: "KEDA scaler", address: r.keda,
		attacks: func(route string) []readers.Attack {
			ref := &pb.ScaledObjectRef{Namespace: evil, Name: scaledObject, ScalerMetadata: map[string]string{"metric": "Utilization", "target": "60"}}
			var in proto.Message = ref
			if strings.HasSuffix(route, "/GetMetrics") {
				in = &pb.GetMetricsRequest{ScaledObjectRef: ref, MetricName: "gpupilot-Utilization"}
			}
			body, _ := proto.Marshal(in) // of our own making
			head := map[string]string{":method": http.MethodPost, ":path": route, "content-type": "application/grpc", "te": "trailers"}
			message := append([]byte{0, 0, 0, 0, byte(len(body))}, body...)
			return []readers.Attack{
				{Name: "streams without a window", Sources: 1, Connections: 8, Does: r.streams(r.certificate(t, "keda-of-evil"), 4000, head, message)},
				{Name: "streams of no certificate", Sources: 1, Connections: 300, Does: r.streams(&tls.Config{InsecureSkipVerify: true}, 4000, head, message)},
			}
		},
		honest: map[string]func() error{"KEDA": func() error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return conn.Invoke(ctx, "/externalscaler.ExternalScaler/GetMetricSpec",
				&pb.ScaledObjectRef{Namespace: honest, Name: scaledObject, ScalerMetadata: map[string]string{"metric": "Utilization", "target": "60"}}, new(pb.GetMetricSpecResponse))
		}},
	}
	service := kedascaler.Description()
	for i := range service.Methods {
		keda.routes = append(keda.routes, "/"+service.ServiceName+"/"+service.Methods[i].MethodName)
	}
	for i := range service.Streams {
		keda.routes = append(keda.routes, "/"+service.ServiceName+"/"+service.Streams[i].StreamName)
	}
	stack.Eventually(t, keda.honest["KEDA"])
	return []*listener{page, api, keda}
}

// certificate is the configuration of a client with a certificate of the cluster's authority.
func (r *rig) certificate(t *testing.T, name string) *tls.Config {
	t.Helper()
	kubeconfig, err := r.Cluster.KubeconfigFor(name)
	stack.Must(t, err)
	user, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	stack.Must(t, err)
	c, err := rest.TLSConfigFor(user)
	stack.Must(t, err)
	c.InsecureSkipVerify = true
	return c
}

// pageRoutes are the patterns of routes in the packages that the controller links.
func pageRoutes(t *testing.T) (out []string) {
	t.Helper()
	files, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{$d := .Dir}}{{if not .Standard}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}`, "../../../cmd/gpupilot-controller").Output()
	stack.Must(t, err)
	root, err := filepath.Abs("../../..")
	stack.Must(t, err)
	for file := range strings.Lines(string(files)) {
		if file = strings.TrimSpace(file); !strings.HasPrefix(file, root) {
			continue
		}
		b, err := os.ReadFile(file)
		stack.Must(t, err)
		for _, m := range regexp.MustCompile(`"((?:GET|POST) /[^"]*)"`).FindAllSubmatch(b, -1) {
			if out = append(out, string(m[1])); strings.Contains(wildcards.Replace(string(m[1])), "{") {
				t.Errorf("%s has a wildcard that wildcards lacks", m[1])
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// apiRoutes are the paths that the metrics API says it has, as the API server reads them, and its metrics.
func (r *rig) apiRoutes(t *testing.T) (out []string) {
	t.Helper()
	port, err := r.ServicePort()
	stack.Must(t, err)
	c := rest.CopyConfig(r.REST)
	c.Host, c.TLSClientConfig.CAData, c.TLSClientConfig.CAFile, c.TLSClientConfig.Insecure = fmt.Sprintf("https://%s:%d", r.link.Host, port), nil, "", true
	admin, err := rest.HTTPClientFor(c)
	stack.Must(t, err)
	read := func(path string, v any) {
		res, err := admin.Get(c.Host + path)
		stack.Must(t, err)
		defer func() { _ = res.Body.Close() }()
		stack.Must(t, json.NewDecoder(res.Body).Decode(v))
	}
	var root struct{ Paths []string }
	read("/", &root)
	for _, path := range root.Paths {
		out = append(out, "GET "+path)
		var list metav1.APIResourceList
		if strings.Count(path, "/") == 3 && strings.HasPrefix(path, "/apis/") {
			read(path, &list)
		}
		for i := range list.APIResources[:min(1, len(list.APIResources))] {
			out = append(out, "GET "+path+"/namespaces/"+evil+"/"+strings.Replace(list.APIResources[i].Name, "/", "/*/", 1))
		}
	}
	return out
}

// streams opens so many streams of HTTP/2 at a time, whose answers it never takes, and answers pings.
func (r *rig) streams(c *tls.Config, n int, headers map[string]string, body []byte) readers.Client {
	c.NextProtos = []string{"h2"}
	return func(ctx context.Context, raw net.Conn) {
		conn := tls.Client(raw, c)
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			return
		}
		var mu sync.Mutex // of writes
		f := http2.NewFramer(conn, conn)
		write := func(do func() error) bool {
			mu.Lock()
			defer mu.Unlock()
			return do() == nil
		}
		write(func() error { return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}) })
		go func() {
			var buf strings.Builder
			enc := hpack.NewEncoder(&buf)
			for i := range n {
				if i%256 == 255 {
					time.Sleep(100 * time.Millisecond) // or what one may have waiting is exceeded
				}
				buf.Reset()
				for _, name := range []string{":method", ":path"} {
					_ = enc.WriteField(hpack.HeaderField{Name: name, Value: headers[name]})
				}
				_ = enc.WriteField(hpack.HeaderField{Name: ":scheme", Value: "https"})
				_ = enc.WriteField(hpack.HeaderField{Name: ":authority", Value: "a"})
				for name, value := range headers {
					if name[0] != ':' {
						_ = enc.WriteField(hpack.HeaderField{Name: name, Value: value})
					}
				}
				if !write(func() error {
					id := uint32(2*i + 1)
					if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte(buf.String()), EndHeaders: true, EndStream: body == nil}); err != nil || body == nil {
						return err
					}
					return f.WriteData(id, true, body)
				}) {
					return
				}
			}
		}()
		for ctx.Err() == nil {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch x := frame.(type) {
			case *http2.PingFrame:
				if !x.IsAck() {
					write(func() error { return f.WritePing(true, x.Data) })
				}
			case *http2.SettingsFrame:
				if !x.IsAck() {
					write(f.WriteSettingsAck)
				}
			}
		}
	}
}
