// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/metrics/pkg/apis/custom_metrics"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"sigs.k8s.io/custom-metrics-apiserver/pkg/apiserver"

	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/promql/source"
)

// DelegateConfig says where requests for unknown metrics of an API go.
type DelegateConfig struct {
	Group    string // custom.metrics.k8s.io or external.metrics.k8s.io
	URL      string // https://HOST[:PORT]
	CAFile   string // of the server's certificate; empty: the system's authorities
	Insecure bool   // do not check the server's certificate

	// Credentials has the controller's own credentials: the delegate sees the
	// controller's account, never the user's.
	Credentials *rest.Config
	Log         *slog.Logger // nil discards
}

// The bounds of what a delegate costs.
const (
	delegateTimeout    = 5 * time.Second
	delegateSlots      = 32      // concurrent requests
	maxDelegateBody    = 8 << 20 // bytes
	maxDelegateNames   = 20_000
	delegateNamesEvery = 30 * time.Second
)

// Delegate is another server of a metrics API, behind this one. It answers requests for
// metrics that this server does not know. The API server's filters have authenticated
// and authorized the request before: with the same group, namespace, resource and name
// as the delegate reads from its path.
//
// A delegate that hangs, fails or lies costs only the requests for its metrics. Its
// redirects are refused.
type Delegate struct {
	cfg     DelegateConfig
	base    *url.URL
	client  *http.Client
	timeout time.Duration // of a request
	slots   chan struct{}
	breaker breaker
	names   nameCache
	total   *prometheus.CounterVec
}

// NewDelegate makes a delegate. It sends no request.
func NewDelegate(cfg DelegateConfig) (*Delegate, error) {
	if cfg.Group != custom_metrics.GroupName && cfg.Group != external_metrics.GroupName {
		return nil, fmt.Errorf("%q is neither custom.metrics.k8s.io nor external.metrics.k8s.io", cfg.Group)
	}
	base, err := url.Parse(cfg.URL)
	if err != nil || base.Scheme != "https" || base.Host == "" || base.User != nil || strings.Trim(base.Path, "/") != "" || base.RawQuery != "" {
		return nil, fmt.Errorf("%q is not https://HOST[:PORT]", cfg.URL)
	}
	rc := rest.CopyConfig(cfg.Credentials)
	rc.Host, rc.TLSClientConfig.CAFile, rc.TLSClientConfig.CAData = cfg.URL, cfg.CAFile, nil
	rc.TLSClientConfig.Insecure, rc.TLSClientConfig.ServerName = cfg.Insecure, ""
	client, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("connect to the delegate %s: %w", cfg.URL, err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Delegate{
		cfg: cfg, base: base, client: client, timeout: delegateTimeout, slots: make(chan struct{}, delegateSlots),
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "gpupilot_delegate_requests_total", Help: "Requests for metrics of a delegate, by the API's group and the result: ok, refused (by the delegate), error, timeout, busy (too many under way) or open (not sent after failures).",
			ConstLabels: prometheus.Labels{"group": cfg.Group},
		}, []string{"result"}),
	}, nil
}

// Describe implements prometheus.Collector.
func (d *Delegate) Describe(ch chan<- *prometheus.Desc) { d.total.Describe(ch) }

// Collect implements prometheus.Collector.
func (d *Delegate) Collect(ch chan<- prometheus.Metric) { d.total.Collect(ch) }

// Metrics lists the delegate's custom metrics for discovery. It implements Source.
func (d *Delegate) Metrics() []source.Metric {
	if d == nil || d.cfg.Group != custom_metrics.GroupName {
		return nil
	}
	return d.names.custom()
}

// Values implements Source. A delegate answers whole requests instead.
func (d *Delegate) Values(context.Context, source.Query) ([]source.Value, error) {
	return nil, source.ErrUnknownMetric
}

// delegates passes on the requests for metrics that this server does not know.
type delegates struct {
	next     http.Handler
	provider *Provider
	byGroup  map[string]*Delegate
}

// withDelegates returns next with the delegates before it.
func withDelegates(p *Provider, list []*Delegate, next http.Handler) http.Handler {
	if len(list) == 0 {
		return next
	}
	h := &delegates{next: next, provider: p, byGroup: map[string]*Delegate{}}
	for _, d := range list {
		h.byGroup[d.cfg.Group] = d
	}
	return h
}

// ServeHTTP implements http.Handler.
func (h *delegates) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest || r.Method != http.MethodGet || info.Verb != "get" && info.Verb != "list" {
		h.next.ServeHTTP(w, r)
		return
	}
	d := h.byGroup[info.APIGroup]
	if d == nil || h.isOurs(info) || !isPlainPath(r.URL) {
		h.next.ServeHTTP(w, r)
		return
	}
	d.serve(w, r, info)
}

// isPlainPath reports whether every server reads the same path: without encoded
// characters, empty segments and dots. Only such a path was authorized for certain.
func isPlainPath(u *url.URL) bool {
	if u.RawPath != "" && u.RawPath != u.Path || strings.ContainsAny(u.Path, "\\;%?#") {
		return false
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(u.Path, "/"), "/") {
		if part == "" || part == "." || part == ".." {
			return false
		}
	}
	return true
}

// isOurs reports whether this server knows the metric of a request.
func (h *delegates) isOurs(info *request.RequestInfo) bool {
	if info.APIGroup == external_metrics.GroupName {
		if h.provider.deps.External == nil {
			return false
		}
		found := h.provider.deps.External.Has(info.Namespace, info.Resource)
		return found
	}
	resource, metric, ok := customMetricOf(info)
	return !ok || h.provider.servesCustom(resource, metric)
}

// customMetricOf returns the resource and metric of a request to custom.metrics.k8s.io.
// A metric of a namespace itself is namespaces/NAMESPACE/metrics/METRIC.
func customMetricOf(info *request.RequestInfo) (resource schema.GroupResource, metric string, ok bool) {
	switch {
	case len(info.Parts) == 3:
		return schema.ParseGroupResource(info.Parts[0]), info.Parts[2], true
	case len(info.Parts) == 2 && info.Parts[0] == "metrics" && info.Namespace != "":
		return namespacesResource, info.Parts[1], true
	}
	return resource, "", false
}

// servesCustom reports whether this server, without a delegate, has the metric.
func (p *Provider) servesCustom(r schema.GroupResource, metric string) bool {
	for _, s := range p.deps.Sources {
		if _, isDelegate := s.(*Delegate); isDelegate {
			continue
		}
		if slices.ContainsFunc(s.Metrics(), func(m source.Metric) bool { return m.GroupResource == r && m.Metric == metric }) {
			return true
		}
	}
	if r != podsResource && !isBuiltin(r) {
		return false
	}
	base := metric
	if i := strings.LastIndexByte(metric, ':'); i > 0 { // a statistic, such as :avg_5m
		base = metric[:i]
	}
	_, isField := names.Resolve(base)
	return isField || slices.Contains(p.deps.Names(), base) || slices.Contains(p.deps.Names(), metric)
}

// serve passes a request on, and the bytes of the response back.
func (d *Delegate) serve(w http.ResponseWriter, r *http.Request, info *request.RequestInfo) {
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
	default:
		d.fail(w, r, info, "busy", fmt.Sprintf("%d requests to it are under way", delegateSlots))
		return
	}
	if !d.breaker.allow(time.Now()) {
		d.fail(w, r, info, "open", "it failed several times; the next attempt is within "+breakerPause.String())
		return
	}
	a, err := d.ask(r.Context(), r.URL.Path, r.URL.RawQuery, r.Header.Get("Accept"))
	if r.Context().Err() == nil { // a client that gives up says nothing about the delegate
		d.breaker.record(err == nil, time.Now())
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		d.fail(w, r, info, "timeout", "it did not answer within "+d.timeout.String())
	case err != nil:
		d.cfg.Log.Debug("delegate failed", "group", d.cfg.Group, "err", err)
		d.fail(w, r, info, "error", err.Error())
	case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		d.fail(w, r, info, "refused", "it refused the controller's account; give that account the right to get and list "+d.cfg.Group)
	default:
		d.total.WithLabelValues("ok").Inc()
		w.Header().Set("Content-Type", a.mediaType)
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body) // the client may have gone
	}
}

func (d *Delegate) fail(w http.ResponseWriter, r *http.Request, info *request.RequestInfo, result, why string) {
	d.total.WithLabelValues(result).Inc()
	err := apierrors.NewServiceUnavailable(fmt.Sprintf("%s is not a metric of GPUPilot, and the delegate of %s has no answer: %s", strings.Join(info.Parts, "/"), d.cfg.Group, why))
	responsewriters.ErrorNegotiated(err, apiserver.Codecs, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}, w, r)
}

// answer is a delegate's response.
type answer struct {
	status    int
	mediaType string
	body      []byte
}

// mediaTypes are those of the API server's clients.
var mediaTypes = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}

// ask sends one request. Nothing of the client's request is sent but the path, the
// query and the accepted media types. Its errors show nothing of the delegate's body.
func (d *Delegate) ask(ctx context.Context, path, query, accept string) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	to := *d.base
	to.Path, to.RawPath, to.RawQuery = path, path, query // RawPath: * is sent as it is
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return nil, errors.New("the request is not valid")
	}
	if accept != "" && len(accept) <= 1024 {
		req.Header.Set("Accept", accept)
	}
	resp, err := d.client.Do(req)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("connect to it: %w", withoutURL(err))
	}
	defer func() { _ = resp.Body.Close() }()
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	switch {
	case resp.StatusCode >= 300 && resp.StatusCode < 400:
		return nil, errors.New("it answered with a redirect, which is not followed")
	case resp.StatusCode == http.StatusUnauthorized, resp.StatusCode == http.StatusForbidden:
		return &answer{status: resp.StatusCode}, nil
	case resp.StatusCode >= 500:
		return nil, fmt.Errorf("it answered with the status %d", resp.StatusCode)
	case !slices.Contains(mediaTypes, mediaType):
		return nil, errors.New("its answer has a content type that is not of the Kubernetes API")
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDelegateBody+1))
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, errors.New("its answer ended early")
	case len(body) > maxDelegateBody:
		return nil, fmt.Errorf("its answer has more than %d bytes", maxDelegateBody)
	}
	return &answer{resp.StatusCode, resp.Header.Get("Content-Type"), body}, nil
}

// withoutURL drops the URL from an error of package http: the client knows the path, and
// need not know the delegate's address.
func withoutURL(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
