// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"testing"
)

// An aggregated API on a loopback port, reached through a Service of type ExternalName: how a program on this machine
// serves a part of the cluster's API.
func aggregatedAPIServesOnLoopback(t *testing.T, c *Cluster) {
	server := startAggregated(t, c)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(c.CAPath())
	if err != nil {
		t.Fatal(err)
	}
	call(t, c, http.MethodPost, "/api/v1/namespaces", `{"metadata": {"name": "aggregated"}}`, nil)
	call(t, c, http.MethodPost, "/api/v1/namespaces/aggregated/services",
		`{"metadata": {"name": "whoami"}, "spec": {"type": "ExternalName", "externalName": "localhost"}}`, nil)
	call(t, c, http.MethodPost, "/apis/apiregistration.k8s.io/v1/apiservices", fmt.Sprintf(`{
		"metadata": {"name": "v1.test.gpupilot.dev"},
		"spec": {"group": "test.gpupilot.dev", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
			"service": {"namespace": "aggregated", "name": "whoami", "port": %s}, "caBundle": %q}}`,
		address.Port(), base64.StdEncoding.EncodeToString(ca)), nil)
	var answer struct{ User string }
	eventually(t, func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL()+"/apis/test.gpupilot.dev/v1/whoami", nil)
		if err != nil {
			return err
		}
		response, err := c.HTTPClient().Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("aggregated API: %s", response.Status)
		}
		return json.NewDecoder(response.Body).Decode(&answer)
	})
	if answer.User != "kubernetes-admin" {
		t.Errorf("the aggregated API was told of user %q, want kubernetes-admin", answer.User)
	}
}

// startAggregated is an API that says who it is told the user is, to nobody but the front proxy.
func startAggregated(t *testing.T, c *Cluster) *httptest.Server {
	t.Helper()
	frontProxy := x509.NewCertPool()
	ca, err := os.ReadFile(c.FrontProxyCAPath())
	if err != nil || !frontProxy.AppendCertsFromPEM(ca) {
		t.Fatalf("front proxy's authority %q: %v", ca, err)
	}
	template := c.pki.template(nameOf("whoami"), x509.ExtKeyUsageServerAuth)
	template.DNSNames = []string{"whoami.aggregated.svc"}
	der, key, err := c.pki.cluster.issue(template)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"kind": "Test", "user": %q}`, r.Header.Get("X-Remote-User"))
	}))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		ClientCAs:    frontProxy, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12,
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}
