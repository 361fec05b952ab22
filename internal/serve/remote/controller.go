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

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/serve/webui"
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
// authenticate.
type Controller struct {
	Cluster *Cluster
	Address string // NAMESPACE/SERVICE:PORT, or a URL
	Named   bool   // the user set the address
	Viewer  string // NAMESPACE/NAME of the ServiceAccount for which a token is requested

	transport http.RoundTripper // for a URL; nil: the default
}

// Get reads the JSON at a path. It sends a token only if the controller requires one.
func (c *Controller) Get(ctx context.Context, path string, query url.Values, into any) error {
	client, base, header, err := c.route()
	if err != nil {
		return err
	}
	u := base.JoinPath(path)
	u.RawQuery = query.Encode()
	status, err := getJSON(ctx, client, u.String(), nil, into)
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
	if header == "Authorization" {
		token = "Bearer " + token
	}
	_, err = getJSON(ctx, client, u.String(), http.Header{header: {token}}, into)
	return err
}

func (c *Controller) isURL() bool {
	return strings.HasPrefix(c.Address, "http://") || strings.HasPrefix(c.Address, "https://")
}

// route returns the client, the address, and the header for the token: the API server's
// proxy removes Authorization.
func (c *Controller) route() (client *http.Client, base *url.URL, header string, err error) {
	client, header = &http.Client{Transport: c.transport}, "Authorization"
	if c.isURL() {
		if base, err = url.Parse(c.Address); err != nil {
			return nil, nil, "", fmt.Errorf("--controller: %w", err)
		}
	} else {
		ns, service, ok := strings.Cut(c.Address, "/")
		if !ok || ns == "" || service == "" {
			return nil, nil, "", fmt.Errorf("--controller %q: want NAMESPACE/SERVICE:PORT, or the URL of its page", c.Address)
		}
		cfg, err := c.Cluster.rest()
		if err != nil {
			return nil, nil, "", err
		}
		shared, err := rest.HTTPClientFor(cfg)
		if err != nil {
			return nil, nil, "", err
		}
		client.Transport, client.Timeout = shared.Transport, shared.Timeout
		host, _, err := rest.DefaultServerUrlFor(cfg)
		if err != nil {
			return nil, nil, "", err
		}
		base, header = host.JoinPath("api/v1/namespaces", ns, "services", service, "proxy"), webui.TokenHeader
	}
	// A redirect could send the token to another host.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client, base, header, nil
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
var ErrNotFound = errors.New("404 Not Found")

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
		return resp.StatusCode, fmt.Errorf("%w: %.200q", ErrNotFound, b)
	}
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, fmt.Errorf("%s: %.200q", resp.Status, b)
	}
	return resp.StatusCode, json.Unmarshal(b, into)
}
