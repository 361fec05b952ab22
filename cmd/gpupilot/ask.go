// SPDX-License-Identifier: Apache-2.0

package main

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
	"github.com/gpupilot/gpupilot/internal/webui"
)

const (
	defaultController = "gpupilot-system/gpupilot-controller:8080"
	defaultViewer     = "gpupilot-system/gpupilot-viewer"
	// tokenSeconds is how long a token lives that we ask for: the shortest that
	// the API server gives.
	tokenSeconds = 600
)

// controller is where the controller's JSON is, and how to log in there.
type controller struct {
	where   *cluster
	address string // NAMESPACE/SERVICE:PORT, or a URL
	named   bool   // the user gave the address
	viewer  string // NAMESPACE/NAME of the ServiceAccount whose token may be asked for

	transport http.RoundTripper // of a URL; nil: Go's
}

// get reads the JSON at a path. A token is sent only if the controller asks for one.
func (c *controller) get(ctx context.Context, path string, query url.Values, into any) error {
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
		return fmt.Errorf("%w; a token is not sent over http to another machine: give an https URL, or kubectl port-forward and http://127.0.0.1:PORT", err)
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

func (c *controller) isURL() bool {
	return strings.HasPrefix(c.address, "http://") || strings.HasPrefix(c.address, "https://")
}

// route finds the client and the address, and the header that reaches the
// controller: the API server's proxy removes Authorization.
func (c *controller) route() (client *http.Client, base *url.URL, header string, err error) {
	client, header = &http.Client{Transport: c.transport}, "Authorization"
	if c.isURL() {
		if base, err = url.Parse(c.address); err != nil {
			return nil, nil, "", fmt.Errorf("--controller: %w", err)
		}
	} else {
		ns, service, ok := strings.Cut(c.address, "/")
		if !ok || ns == "" || service == "" {
			return nil, nil, "", fmt.Errorf("--controller %q: want NAMESPACE/SERVICE:PORT, or the URL of its page", c.address)
		}
		cfg, err := c.where.rest()
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
	// Whoever answers must not send our token elsewhere.
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client, base, header, nil
}

// token is what the controller is shown: a token of the viewer's ServiceAccount,
// which is good for ten minutes and for nothing else. Where the user may not ask for
// one it is the kubeconfig's own, which is good for all that the user may do:
// that goes only to an address that the user gave, for somebody else may answer
// at the default one.
func (c *controller) token(ctx context.Context) (string, error) {
	cfg, err := c.where.rest()
	if err != nil {
		return "", err
	}
	token, asked := c.viewerToken(ctx, cfg)
	if asked == nil {
		return token, nil
	}
	own, err := bearerOf(ctx, cfg)
	switch {
	case err != nil:
		return "", errors.Join(asked, fmt.Errorf("find the kubeconfig's own token: %w", err))
	case own == "":
		return "", fmt.Errorf("%w, and the kubeconfig has no token of its own: ask for the right to create serviceaccounts/token of %s, or give another --viewer-service-account", asked, c.viewer)
	case !c.named:
		return "", fmt.Errorf("%w; to show the kubeconfig's own token to %s instead, say so: --controller %[2]s", asked, c.address)
	}
	return own, nil
}

// viewerToken asks the API server for a token that only the controller accepts.
func (c *controller) viewerToken(ctx context.Context, cfg *rest.Config) (string, error) {
	namespace, name, ok := strings.Cut(c.viewer, "/")
	if !ok || namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", fmt.Errorf("--viewer-service-account %q: want NAMESPACE/NAME", c.viewer)
	}
	client, err := newAPI(cfg)
	if err != nil {
		return "", err
	}
	seconds := int64(tokenSeconds)
	r := &authenticationv1.TokenRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: authenticationv1.SchemeGroupVersion.String(), Kind: "TokenRequest"},
		Spec:     authenticationv1.TokenRequestSpec{Audiences: []string{v1alpha1.GroupVersion.Group}, ExpirationSeconds: &seconds},
	}
	err = client.do(ctx, http.MethodPost, r, r, "api", "v1", "namespaces", namespace, "serviceaccounts", name, "token")
	if err != nil {
		return "", fmt.Errorf("the controller wants a token, and none of the ServiceAccount %s can be had: %w", c.viewer, err)
	}
	return r.Status.Token, nil
}

// bearerOf is the token that a kubeconfig has, names the file of, or gets from
// a plugin; empty if it logs in otherwise.
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

// authorization keeps that header of a request, which it sends nowhere.
type authorization string

// RoundTrip is http.RoundTripper's.
func (a *authorization) RoundTrip(req *http.Request) (*http.Response, error) {
	*a = authorization(req.Header.Get("Authorization"))
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// getJSON decodes an answer; status is 0 without one.
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
	b, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit))
	if err != nil {
		return resp.StatusCode, err
	}
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, fmt.Errorf("%s: %.200q", resp.Status, b)
	}
	return resp.StatusCode, json.Unmarshal(b, into)
}
