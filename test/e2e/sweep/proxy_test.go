// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package sweep

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// call is one request of the controller.
type call struct {
	Verb     string // get, list, watch, create, update, patch, delete
	Resource string // with its group and subresource, as in RBAC: deployments.apps/scale
	Space    string // the namespace; empty: none
	Name     string // empty: several objects, or a new one
	Body     []byte // of a write
}

// kind is what calls are counted by.
func (c *call) kind() string { return c.Verb + " " + c.Resource }

// callOf reads a request of the API server.
func callOf(r *http.Request, body []byte) *call {
	c := &call{Body: body}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group := ""
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = "."+parts[1], parts[3:]
	default: // discovery, and what is not about resources
		c.Verb, c.Resource = strings.ToLower(r.Method), "/"+parts[0]
		return c
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		c.Space, parts = parts[1], parts[2:]
	}
	c.Resource = parts[0] + group
	if len(parts) > 1 {
		c.Name = parts[1]
	}
	if len(parts) > 2 {
		c.Resource += "/" + strings.Join(parts[2:], "/")
	}
	query := r.URL.Query()
	switch r.Method {
	case http.MethodGet:
		c.Verb = "get"
		if c.Name == "" {
			c.Verb = "list"
		}
		if w := query.Get("watch"); w == "1" || w == "true" {
			c.Verb = "watch"
		}
	case http.MethodPost:
		c.Verb = "create"
	case http.MethodPut:
		c.Verb = "update"
	default:
		c.Verb = strings.ToLower(r.Method)
	}
	return c
}

// disturbance is what may happen to a call.
type disturbance string

const (
	conflict   disturbance = "409"       // refused, not applied
	throttled  disturbance = "429"       // refused, with Retry-After
	broken     disturbance = "500"       // refused
	unanswered disturbance = "time-out"  // neither applied nor answered
	lost       disturbance = "lost"      // applied, and not answered
	cutBefore  disturbance = "cut"       // the connection ends before it is applied
	cutAfter   disturbance = "cut after" // the connection ends after it was applied, before the answer
	stale      disturbance = "stale"     // answered from the past; a watch begins anew from an old list, and stays there for a while
	missed     disturbance = "missed"    // a watch ends, and can only be begun again from a new list, later
	crash      disturbance = "crash"     // the controller is killed when the call is done
)

// disturbances are all of them.
var disturbances = []disturbance{conflict, throttled, broken, unanswered, lost, cutBefore, cutAfter, stale, missed, crash}

// fits reports whether a disturbance can happen to a kind of call.
func (d disturbance) fits(kind string) bool {
	verb, _, _ := strings.Cut(kind, " ")
	switch d {
	case stale:
		return verb == "get" || verb == "list" || verb == "watch"
	case missed:
		return verb == "watch"
	default:
		return true
	}
}

// holdFor is how long a call without an answer is held: longer than the controller waits
// for any but a watch.
const holdFor = 12 * time.Second

// outage is how long a watch that misses events cannot be begun again.
const outage = 3 * time.Second

// plan is a disturbance of the next calls of a kind.
type plan struct {
	kind  string
	do    disturbance
	times int
	about string // only calls about this object or namespace; empty: any

	left  int
	fired int
	last  time.Time // when the last disturbed call was over
}

func (p *plan) String() string { return fmt.Sprintf("%s:%s×%d", p.kind, p.do, p.times) }

// matches reports whether a call is one of the plan's.
func (p *plan) matches(c *call) bool {
	return p.left > 0 && p.kind == c.kind() && (p.about == "" || p.about == c.Space || p.about == c.Name || strings.HasPrefix(c.Name, p.about+"-") ||
		strings.HasSuffix(c.Name, "-"+p.about))
}

// proxy forwards the requests of one replica of the controller to the API server, records
// and disturbs them.
type proxy struct {
	listener net.Listener
	server   *http.Server
	onCrash  func() // kills the replica

	mu       sync.Mutex
	upstream http.RoundTripper
	target   *url.URL
	calls    map[string]int // by kind
	plans    []*plan
	past     map[string]answer // of reads, by URL without resource version: the oldest
	stopped  map[string]time.Time
	version  string            // of the past of watches
	travels  map[string]string // by resource: the version of its next list
	held     map[string]time.Time
}

// lease is who has the lease, as the API server accepted it from the proxies.
var lease struct {
	mu     sync.Mutex
	holder *proxy
	wrong  []string // writes by another
}

// released notes that the test has deleted the lease.
func (p *proxy) released() {
	lease.mu.Lock()
	defer lease.mu.Unlock()
	lease.holder = nil
}

// ofLeader are resources that only the leader writes.
var ofLeader = []string{
	"deployments.apps/scale", "gpuautoscalers.gpupilot.dev/status", "metricqueries.gpupilot.dev/status", "gpuexporters.gpupilot.dev/status", "pods",
	"daemonsets.apps", "configmaps", "services", "nodes",
}

// judge notes an accepted write.
func (p *proxy) judge(c *call) {
	lease.mu.Lock()
	defer lease.mu.Unlock()
	switch {
	case strings.HasPrefix(c.Resource, "leases."):
		lease.holder = nil
		if holderOf(c.Body) != "" {
			lease.holder = p
		}
	case slices.Contains(ofLeader, c.Resource) && lease.holder != p:
		lease.wrong = append(lease.wrong, fmt.Sprintf("%s %s/%s by a replica without the lease", c.kind(), c.Space, c.Name))
	}
}

// wrongWrites returns the writes by a replica without the lease, and forgets them.
func (p *proxy) wrongWrites() []string {
	lease.mu.Lock()
	defer lease.mu.Unlock()
	out := lease.wrong
	lease.wrong = nil
	return out
}

// kinds are the kinds of the calls that were made.
func (p *proxy) kinds() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.calls))
}

// remember makes the present the past that stale watches show.
func (p *proxy) remember(version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version = version
}

// lastFault is when the last disturbed call that concerns an object was over.
func (p *proxy) lastFault(plans []*plan, about string) (at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range plans {
		if (x.about == "" || x.about == about) && x.last.After(at) {
			at = x.last
		}
	}
	return at
}

// answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func newProxy() *proxy {
	p := &proxy{calls: map[string]int{}, past: map[string]answer{}, stopped: map[string]time.Time{}, travels: map[string]string{}, held: map[string]time.Time{}}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err) // no loopback: nothing runs here
	}
	p.listener = l
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = p.server.Serve(l) }() // ends with close
	return p
}

func (p *proxy) close() { _ = p.server.Close() }

// kubeconfig has the proxy speak with the account of a kubeconfig. It returns one for the
// controller, which reaches the proxy without TLS.
func (p *proxy) kubeconfig(account string) (string, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", account)
	if err != nil {
		return "", err
	}
	target, err := url.Parse(cfg.Host)
	if err != nil {
		return "", err
	}
	cfg.QPS = -1
	transport, err := rest.TransportFor(cfg)
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	p.upstream, p.target = transport, target
	p.mu.Unlock()
	own := filepath.Join(filepath.Dir(account), fmt.Sprintf("proxy-%d", p.listener.Addr().(*net.TCPAddr).Port))
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x, user: x}}],
clusters: [{name: x, cluster: {server: "http://%s"}}], users: [{name: x, user: {}}]}`, p.listener.Addr())
	return own, os.WriteFile(own, []byte(text), 0o600)
}

// arm replaces the plans.
func (p *proxy) arm(plans []*plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plans = plans
	for _, x := range plans {
		x.left = x.times
	}
}

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	c := callOf(r, body)
	p.mu.Lock()
	p.calls[c.kind()]++
	var x *plan
	if i := slices.IndexFunc(p.plans, func(x *plan) bool { return x.matches(c) }); i >= 0 {
		x = p.plans[i]
		x.left--
		x.fired++
		x.last = time.Now()
	}
	until, held := p.stopped[c.Resource], p.held[c.Resource]
	if version := p.travels[c.Resource]; version != "" && c.Verb == "list" {
		delete(p.travels, c.Resource)
		query := r.URL.Query()
		query.Set("resourceVersion", version)
		query.Set("resourceVersionMatch", "Exact")
		r.URL.RawQuery = query.Encode()
		p.held[c.Resource] = time.Now().Add(outage)
	}
	p.mu.Unlock()
	if c.Verb == "watch" {
		select {
		case <-r.Context().Done():
		case <-time.After(time.Until(held)):
		}
	}
	if time.Now().Before(until) && (c.Verb == "watch" || c.Verb == "list") {
		panic(http.ErrAbortHandler) // the outage of a missed watch
	}
	if x == nil {
		p.forward(w, r, c, "")
		return
	}
	defer func() {
		p.mu.Lock()
		x.last = time.Now()
		p.mu.Unlock()
	}()
	p.disturb(w, r, c, x.do)
}

// disturb answers a call in one of the ways that calls fail.
func (p *proxy) disturb(w http.ResponseWriter, r *http.Request, c *call, d disturbance) {
	refuse := func(code int, reason string) {
		w.Header().Set("Content-Type", "application/json")
		if code == http.StatusTooManyRequests {
			w.Header().Set("Retry-After", "1")
		}
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"disturbed","reason":%q,"code":%d}`, reason, code)
	}
	switch d {
	case conflict:
		refuse(http.StatusConflict, "Conflict")
	case throttled:
		refuse(http.StatusTooManyRequests, "TooManyRequests")
	case broken:
		refuse(http.StatusInternalServerError, "InternalError")
	case unanswered, lost:
		if d == lost && c.Verb != "watch" {
			_, _ = p.ask(context.WithoutCancel(r.Context()), r, c, "")
		}
		select {
		case <-r.Context().Done():
		case <-time.After(holdFor):
		}
		panic(http.ErrAbortHandler)
	case cutBefore:
		panic(http.ErrAbortHandler)
	case missed:
		p.mu.Lock()
		p.stopped[c.Resource] = time.Now().Add(outage)
		p.mu.Unlock()
		refuse(http.StatusGone, "Expired")
	case stale:
		if c.Verb != "watch" {
			p.forward(w, r, c, d)
			return
		}
		p.mu.Lock()
		p.travels[c.Resource] = p.version
		p.mu.Unlock()
		if r.URL.Query().Get("sendInitialEvents") == "" {
			refuse(http.StatusGone, "Expired") // a list follows
			return
		}
		refuse(http.StatusUnprocessableEntity, "Invalid") // as an API server that gives no list with a watch
	case cutAfter, crash:
		p.forward(w, r, c, d)
	}
}

// forward answers a call from the API server. With stale it answers from the past, and
// with cutAfter and crash the answer does not arrive.
func (p *proxy) forward(w http.ResponseWriter, r *http.Request, c *call, d disturbance) {
	if c.Verb == "watch" {
		p.stream(w, r, d)
		return
	}
	a, err := p.ask(r.Context(), r, c, d)
	switch {
	case d == crash && p.onCrash != nil:
		p.onCrash()
		panic(http.ErrAbortHandler)
	case d == cutAfter, err != nil:
		panic(http.ErrAbortHandler)
	}
	for k, v := range a.header {
		w.Header()[k] = v
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body) // the controller may have gone
}

// ask sends a call to the API server.
func (p *proxy) ask(ctx context.Context, r *http.Request, c *call, d disturbance) (answer, error) {
	query := r.URL.Query()
	for _, k := range []string{"resourceVersion", "resourceVersionMatch", "timeout"} {
		query.Del(k)
	}
	key := r.URL.Path + "?" + query.Encode() + " " + r.Header.Get("Accept")
	read := c.Verb == "get" || c.Verb == "list"
	p.mu.Lock()
	old, ok := p.past[key]
	p.mu.Unlock()
	if d == stale && read && ok {
		return old, nil
	}
	resp, err := p.send(ctx, r, c)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{resp.StatusCode, resp.Header, body}
	p.note(c, &a, key, read)
	return a, nil
}

// note remembers what the API server answered.
func (p *proxy) note(c *call, a *answer, key string, read bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.status >= 300 {
		return
	}
	if _, ok := p.past[key]; read && !ok {
		p.past[key] = *a
	}
	if !read {
		p.judge(c)
	}
}

// decode reads the body of a write, JSON or protobuf; nil: it is of another kind.
func decode(body []byte) runtime.Object {
	o, _, err := clientgoscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil
	}
	return o
}

func holderOf(lease []byte) string {
	if l, ok := decode(lease).(*coordinationv1.Lease); ok && l.Spec.HolderIdentity != nil {
		return *l.Spec.HolderIdentity
	}
	return ""
}

func (p *proxy) send(ctx context.Context, r *http.Request, c *call) (*http.Response, error) {
	p.mu.Lock()
	upstream, target := p.upstream, p.target
	p.mu.Unlock()
	out := r.Clone(ctx)
	out.RequestURI, out.Host = "", target.Host
	out.URL.Scheme, out.URL.Host = target.Scheme, target.Host
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(c.Body)), int64(len(c.Body))
	return upstream.RoundTrip(out)
}

// stream forwards a watch. With cutAfter it ends with its first event, and with crash the
// controller is killed then.
func (p *proxy) stream(w http.ResponseWriter, r *http.Request, d disturbance) {
	resp, err := p.send(r.Context(), r, &call{})
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer resp.Body.Close()
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	flush := http.NewResponseController(w)
	_ = flush.Flush()
	buf := make([]byte, 64<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if d == crash && p.onCrash != nil {
				p.onCrash()
			}
			if d == cutAfter || d == crash {
				panic(http.ErrAbortHandler)
			}
			if _, err := w.Write(buf[:n]); err != nil {
				return
			}
			_ = flush.Flush()
		}
		if err != nil {
			return
		}
	}
}
