// SPDX-License-Identifier: Apache-2.0

// Package apiwatch watches a few objects of the Kubernetes API server: this
// node's pods, ResourceSlices and a ConfigMap. It creates reviews. It uses HTTP with a service
// account's token. client-go's clientset and informers would double the agent's
// memory.
package apiwatch

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// ErrNoAccount is the error of a pod without a service-account token.
var ErrNoAccount = errors.New("no service-account token")

// AccountDir is where a pod's service account is mounted.
const AccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Config is the address of the API server and the credentials.
type Config struct {
	URL   string // such as https://10.0.0.1:443
	Token string // path of the token; read for each request, because the kubelet renews it
	CA    string // path of the server's CA certificates
}

// InCluster returns the Config of a pod, from its environment and the directory
// of its service account.
func InCluster(getenv func(string) string, account string) (Config, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	c := Config{Token: filepath.Join(account, "token"), CA: filepath.Join(account, "ca.crt")}
	if host == "" || port == "" {
		return c, fmt.Errorf("%w: this is not a pod (KUBERNETES_SERVICE_HOST and _PORT are not set)", ErrNoAccount)
	}
	if _, err := os.Stat(c.Token); err != nil {
		return c, fmt.Errorf("%w: %w; set automountServiceAccountToken: true and let the account list and watch pods", ErrNoAccount, err)
	}
	c.URL = "https://" + net.JoinHostPort(host, port)
	return c, nil
}

// Client sends requests to one API server.
type Client struct {
	cfg  Config
	http *http.Client
}

// New returns a client. It does not connect.
func New(cfg Config) (*Client, error) {
	roots := x509.NewCertPool()
	if cfg.CA != "" {
		pem, err := os.ReadFile(cfg.CA)
		if err != nil {
			return nil, fmt.Errorf("API server's CA: %w", err)
		}
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("API server's CA: %s holds no certificate", cfg.CA)
		}
	}
	dialer := net.Dialer{
		Timeout: 10 * time.Second,
		// A watch can be silent for minutes. Keep-alives detect a dead server
		// within half a minute.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	return &Client{cfg: cfg, http: &http.Client{Transport: &http.Transport{
		DialContext:           dialer.DialContext,
		TLSClientConfig:       &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		MaxIdleConns:          1,
		IdleConnTimeout:       time.Minute,
		ReadBufferSize:        4 << 10,
		WriteBufferSize:       1 << 10,
		// HTTP/1.1 only: HTTP/2's buffers cost memory, and one connection gains
		// nothing from it.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}}}, nil
}

// object is the fields that are read of any object.
type object struct {
	Metadata struct {
		Name            string            `json:"name"`
		Namespace       string            `json:"namespace"`
		UID             string            `json:"uid"`
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels"`
	} `json:"metadata"`
	Data map[string]string `json:"data"` // of a ConfigMap
	Spec *sliceSpec        `json:"spec"` // of a ResourceSlice
	// Of a Status, which an ERROR event holds.
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// statusError is the error of a response other than 200 and 201.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("API server answers %d: %s", e.code, e.message)
}

// gone reports whether the resource version is too old to continue from.
func gone(err error) bool {
	e, ok := errors.AsType[*statusError](err)
	return ok && e.code == http.StatusGone
}

// metadataOnly asks for objects without their spec and status.
const metadataOnly = "application/json;as=PartialObjectMetadata%s;g=meta.k8s.io;v=v1,application/json"

// get sends one request. The caller closes the body.
func (c *Client) get(ctx context.Context, path string, query url.Values, accept string) (io.ReadCloser, error) {
	return c.send(ctx, http.MethodGet, path+"?"+query.Encode(), accept, nil)
}

// maxAnswer is the length limit of the object that Create reads, in bytes.
const maxAnswer = 1 << 20

// Create sends an object to the collection at path, and decodes the response into answer.
func (c *Client) Create(ctx context.Context, path string, object, answer any) error {
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	body, err := c.send(ctx, http.MethodPost, path, "application/json", text)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	return json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(answer)
}

// send sends one request. The caller closes the body.
func (c *Client) send(ctx context.Context, method, path, accept string, body []byte) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(c.cfg.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if c.cfg.Token != "" {
		token, err := os.ReadFile(c.cfg.Token)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNoAccount, err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	req.Header.Set("Accept", accept)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "gpupilot-agent")
	res, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusCreated {
		defer func() { _ = res.Body.Close() }()
		var o object
		_ = json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&o) // a message, if it has one
		return nil, &statusError{res.StatusCode, o.Message}
	}
	return res.Body, nil
}
