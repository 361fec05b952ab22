// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// The address and the viewer's ServiceAccount of an installation with the chart's defaults.
const (
	DefaultController = "gpupilot-system/gpupilot-controller:8080"
	DefaultViewer     = "gpupilot-system/gpupilot-viewer"
)

const (
	// tokenSeconds is the lifetime of a requested token: the shortest that the API
	// server supports.
	tokenSeconds = 600
	// responseLimit is the largest answer of the controller, in bytes.
	responseLimit = 64 << 20
)

// Controller is the address of the controller's JSON API, with the means to
// authenticate. It keeps its connection and its token, for callers that read again and again.
type Controller struct {
	Cluster *Cluster
	Address string // NAMESPACE/SERVICE:PORT, or a URL
	Named   bool   // the user set the address
	Viewer  string // NAMESPACE/NAME of the ServiceAccount for which a token is requested

	transport http.RoundTripper // for a URL; nil: the default

	mu      sync.Mutex // one request at a time
	found   *route
	sent    string // the token that was accepted; empty: none is needed yet
	expires time.Time
}

// route is the way to the controller.
type route struct {
	client *http.Client
	base   *url.URL
	header string // for the token: the API server's proxy removes Authorization
}

// Flags adds the flags of the controller's address.
func (c *Controller) Flags(f *pflag.FlagSet) {
	f.StringVar(&c.Address, "controller", DefaultController, "address of the controller: NAMESPACE/SERVICE:PORT through the API server, or the URL of its page. The kubeconfig's own token is sent only if this flag is given")
	f.StringVar(&c.Viewer, "viewer-service-account", DefaultViewer, "ServiceAccount, NAMESPACE/NAME, whose ten-minute token is sent to the controller, if you may create one")
}

// Get reads the JSON at a path. It sends a token only if the controller requires one.
func (c *Controller) Get(ctx context.Context, path string, query url.Values, into any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found == nil {
		r, err := c.route()
		if err != nil {
			return err
		}
		c.found = r
	}
	u := c.found.base.JoinPath(path)
	u.RawQuery = query.Encode()
	if time.Now().After(c.expires) {
		c.sent = ""
	}
	status, err := c.found.get(ctx, u, c.sent, into)
	if status != http.StatusUnauthorized {
		return err
	}
	if c.isURL() && u.Scheme != "https" && !isLoopback(u.Hostname()) {
		return fmt.Errorf("%w; a token is not sent to another machine over http: use an https URL, or kubectl port-forward with http://127.0.0.1:PORT", err)
	}
	token, err := c.token(ctx)
	if err != nil {
		return err
	}
	if _, err = c.found.get(ctx, u, token, into); err == nil {
		// A new token is requested before the old one expires.
		c.sent, c.expires = token, time.Now().Add(tokenSeconds*time.Second/2)
	}
	return err
}

// get requests and decodes JSON, with a token unless it is empty.
func (r *route) get(ctx context.Context, u *url.URL, token string, into any) (status int, err error) {
	var header http.Header
	if token != "" {
		if r.header == "Authorization" {
			token = "Bearer " + token
		}
		header = http.Header{r.header: {token}}
	}
	return getJSON(ctx, r.client, u.String(), header, into)
}

func (c *Controller) isURL() bool {
	return strings.HasPrefix(c.Address, "http://") || strings.HasPrefix(c.Address, "https://")
}

// route finds the way to the controller.
func (c *Controller) route() (*route, error) {
	r := &route{client: &http.Client{Transport: c.transport}, header: "Authorization"}
	// A redirect could send the token to another host.
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	var err error
	if c.isURL() {
		if r.base, err = url.Parse(c.Address); err != nil {
			return nil, fmt.Errorf("--controller: %w", err)
		}
		return r, nil
	}
	ns, service, ok := strings.Cut(c.Address, "/")
	if !ok || ns == "" || service == "" {
		return nil, fmt.Errorf("--controller %q: want NAMESPACE/SERVICE:PORT, or the URL of its page", c.Address)
	}
	cfg, err := c.Cluster.rest()
	if err != nil {
		return nil, err
	}
	shared, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	r.client.Transport, r.client.Timeout = shared.Transport, shared.Timeout
	host, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	r.base, r.header = host.JoinPath("api/v1/namespaces", ns, "services", service, "proxy"), view.TokenHeader
	return r, nil
}

// token returns the token for the controller: one of the viewer's ServiceAccount, which
// is valid for ten minutes and only for the controller. If the user may not request one,
// it is the kubeconfig's own token. As that has all permissions of the user, it is sent
// only to an address that the user set: another program may answer at the default one.
func (c *Controller) token(ctx context.Context) (string, error) {
	cfg, err := c.Cluster.rest()
	if err != nil {
		return "", err
	}
	token, requestErr := c.viewerToken(ctx, cfg)
	if requestErr == nil {
		return token, nil
	}
	own, err := bearerOf(ctx, cfg)
	switch {
	case err != nil:
		return "", errors.Join(requestErr, fmt.Errorf("read the kubeconfig's own token: %w", err))
	case own == "":
		return "", fmt.Errorf("%w, and the kubeconfig has no token of its own: ask for the permission to create serviceaccounts/token of %s, or set another --viewer-service-account", requestErr, c.Viewer)
	case !c.Named:
		return "", fmt.Errorf("%w; to send the kubeconfig's own token to %s instead, set --controller %[2]s", requestErr, c.Address)
	}
	return own, nil
}

// viewerToken requests a token that only the controller accepts.
func (c *Controller) viewerToken(ctx context.Context, cfg *rest.Config) (string, error) {
	namespace, name, ok := strings.Cut(c.Viewer, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("--viewer-service-account %q: want NAMESPACE/NAME", c.Viewer)
	}
	client, err := NewAPI(cfg)
	if err != nil {
		return "", err
	}
	seconds := int64(tokenSeconds)
	r := &authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenRequest"},
		Spec:     authenticationv1.TokenRequestSpec{Audiences: []string{v1alpha1.GroupVersion.Group}, ExpirationSeconds: &seconds},
	}
	err = client.Do(ctx, http.MethodPost, r, r, "api", "v1", "namespaces", namespace, "serviceaccounts", name, "token")
	if err != nil {
		return "", fmt.Errorf("the controller requires a token, and requesting one of the ServiceAccount %s failed: %w", c.Viewer, err)
	}
	return r.Status.Token, nil
}

// bearerOf returns the token of a kubeconfig: its own, from a file or from a plugin. It
// is empty if the kubeconfig authenticates in another way.
func bearerOf(ctx context.Context, cfg *rest.Config) (string, error) {
	var seen authorization
	rt, err := rest.HTTPWrappersForConfig(cfg, &seen)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://nowhere.invalid", http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return "", err
	}
	_ = resp.Body.Close()
	scheme, token, _ := strings.Cut(string(seen), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", nil
	}
	return token, nil
}

// authorization is a transport that records the Authorization header of a request and
// sends nothing.
type authorization string

// RoundTrip implements http.RoundTripper.
func (a *authorization) RoundTrip(req *http.Request) (*http.Response, error) {
	*a = authorization(req.Header.Get("Authorization"))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// ErrNotFound is an answer with the status 404.
var ErrNotFound = errors.New("404 Not Found, so this is no page of a controller, or one of another version")

// getJSON requests and decodes JSON. status is 0 without a response.
func getJSON(ctx context.Context, client *http.Client, address string, header http.Header, into any) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return 0, err
	}
	if header != nil {
		req.Header = header
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, responseLimit))
	if err != nil {
		return resp.StatusCode, err
	}
	if resp.StatusCode == http.StatusNotFound {
		return resp.StatusCode, fmt.Errorf("%w: %s", ErrNotFound, refusal(b))
	}
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, fmt.Errorf("%s: %s", resp.Status, refusal(b))
	}
	return resp.StatusCode, json.Unmarshal(b, into)
}
