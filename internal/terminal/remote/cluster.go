// SPDX-License-Identifier: Apache-2.0

// Package remote is how the command line reaches a cluster and the controller in it, with the
// rights of the kubeconfig.
package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/terminal/termtext"
)

// apiLimit bounds an answer of the API server, in bytes.
const apiLimit = 256 << 20

// Cluster selects a cluster by the same flags as kubectl.
type Cluster struct {
	Kubeconfig string // path; empty: $KUBECONFIG, ~/.kube/config, or in-cluster
	Context    string // of the kubeconfig; empty: its current one
	Namespace  string // empty: the context's
}

// Flags adds the flags.
func (c *Cluster) Flags(f *pflag.FlagSet) {
	c.ConnectionFlags(f)
	f.StringVarP(&c.Namespace, "namespace", "n", "", "namespace (default: the context's)")
}

// ConnectionFlags adds the flags that select the cluster, without the namespace.
func (c *Cluster) ConnectionFlags(f *pflag.FlagSet) {
	f.StringVar(&c.Kubeconfig, "kubeconfig", "", "path of a kubeconfig (default: $KUBECONFIG, ~/.kube/config, or in-cluster)")
	f.StringVar(&c.Context, "context", "", "context of the kubeconfig (default: its current one)")
}

func (c *Cluster) config() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = c.Kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.Context})
}

// Object parses an optional argument [NAMESPACE/]NAME.
func (c *Cluster) Object(args []string) (namespace, name string, err error) {
	if len(args) > 0 {
		name = args[0]
		if before, after, ok := strings.Cut(name, "/"); ok {
			if before == "" || after == "" || strings.Contains(after, "/") || c.Namespace != "" && c.Namespace != before {
				return "", "", fmt.Errorf("%q is not [NAMESPACE/]NAME of a GPUAutoscaler", args[0])
			}
			return before, after, nil
		}
	}
	if c.Namespace != "" {
		return c.Namespace, name, nil
	}
	if namespace, _, err = c.config().Namespace(); err != nil {
		return "", "", fmt.Errorf("find the namespace: %w", err)
	}
	return namespace, name, nil
}

// Host returns the address of the API server, for people.
func (c *Cluster) Host() string {
	cfg, err := c.rest()
	if err != nil {
		return ""
	}
	return strings.TrimPrefix(strings.TrimPrefix(cfg.Host, "https://"), "http://")
}

func (c *Cluster) rest() (*rest.Config, error) {
	cfg, err := c.config().ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster is configured: set --kubeconfig FILE or KUBECONFIG; gpupilot demo and gpupilot backtest need no cluster")
	}
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	return cfg, nil
}

// API is a small client of the API server. It needs only a few paths, and the generated
// clients of all API groups would double the size of the program.
type API struct {
	http *http.Client
	base *url.URL
}

// API returns a client of the cluster's API server.
func (c *Cluster) API() (*API, error) {
	cfg, err := c.rest()
	if err != nil {
		return nil, err
	}
	return NewAPI(cfg)
}

// NewAPI returns a client of the API server of a configuration.
func NewAPI(cfg *rest.Config) (*API, error) {
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, err
	}
	return &API{client, base}, nil
}

// Do sends body as JSON, unless it is nil, and decodes the response. An error with a
// Status object is an [apierrors.APIStatus].
func (a *API) Do(ctx context.Context, method string, body, into any, path ...string) error {
	return a.Send(ctx, method, nil, body, into, path...)
}

// MergePatch changes an object and decodes the result. With dryRun the API server checks
// the change, and stores nothing.
func (a *API) MergePatch(ctx context.Context, patch any, dryRun bool, into any, path ...string) error {
	var query url.Values
	if dryRun {
		query = url.Values{"dryRun": {metav1.DryRunAll}}
	}
	return a.Send(ctx, http.MethodPatch, query, patch, into, path...)
}

// Get decodes what is at a path, with parameters such as labelSelector.
func (a *API) Get(ctx context.Context, query url.Values, into any, path ...string) error {
	return a.Send(ctx, http.MethodGet, query, nil, into, path...)
}

// Send is Do with parameters, such as dryRun. A PATCH is a merge patch.
func (a *API) Send(ctx context.Context, method string, query url.Values, body, into any, path ...string) error {
	u := a.base.JoinPath(path...)
	u.RawQuery = query.Encode()
	contentType := "application/json"
	if method == http.MethodPatch {
		contentType = "application/merge-patch+json"
	}
	var content io.Reader = http.NoBody
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), content)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := a.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, apiLimit))
	if err != nil {
		return err
	}
	if resp.StatusCode >= http.StatusOK && resp.StatusCode < http.StatusMultipleChoices {
		return json.Unmarshal(b, into)
	}
	var status metav1.Status
	if json.Unmarshal(b, &status) == nil && status.Kind == "Status" {
		return apierrors.FromObject(&status)
	}
	if resp.StatusCode == http.StatusNotFound { // an API group that the cluster does not have
		return apierrors.NewNotFound(schema.GroupResource{}, u.Path)
	}
	return fmt.Errorf("%s: %s", resp.Status, refusal(b))
}

// maxRefusal bounds the message of a Status object in an error, in bytes.
const maxRefusal = 400

// refusal is what an answer says that is no success: the message of a Status object, or else its beginning.
func refusal(body []byte) string {
	var s metav1.Status
	if json.Unmarshal(body, &s) == nil && s.Kind == "Status" && s.Message != "" {
		return termtext.Clean(excerpt.Of(s.Message, maxRefusal))
	}
	return fmt.Sprintf("%.200q", body)
}
