// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// secured starts a server with TLS that returns ten minutes of 5 requests/s, if the request
// is allowed.
func secured(t *testing.T, allowed func(*http.Request) bool) (url, caFile string) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !allowed(r) {
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		start, _ := strconv.Atoi(r.FormValue("start"))
		var values []string
		for i := range 10 {
			values = append(values, fmt.Sprintf(`[%d,"5"]`, start+60*i))
		}
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[%s]}]}}`, strings.Join(values, ","))
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // one request is meant to reject the certificate
	s.StartTLS()
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return s.URL, writeFile(t, "ca.pem", string(ca))
}

// Requests have the credentials, the tenant and the CA of --prometheus-http-config.
func TestBacktestPrometheusCredentials(t *testing.T) {
	token, password := writeFile(t, "token", "s3cret\n"), writeFile(t, "password", "pass")
	url, ca := secured(t, func(r *http.Request) bool {
		user, pass, _ := r.BasicAuth()
		return r.Header.Get("X-Scope-OrgID") == "team-a" && (r.Header.Get("Authorization") == "Bearer s3cret" || user == "me" && pass == "pass")
	})
	ask := func(httpConfig string) error {
		t.Helper()
		path := filepath.Join(t.TempDir(), "http.yaml")
		if err := os.WriteFile(path, []byte(httpConfig), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := backtestOut(t, "--prometheus", url, "--prometheus-http-config", path, "--query", "sum(rate(a[1m]))", "--history", "10m",
			"--peers", "none", "--seeds", "1", "-o", "table")
		if err == nil && !strings.Contains(out, "prometheus, ") {
			t.Errorf("no table: %s", out)
		}
		return err
	}
	tls := fmt.Sprintf("tls_config: {ca_file: %q}\n", ca)
	tenant := "http_headers: {X-Scope-OrgID: {values: [team-a]}}\n"
	for _, good := range []string{
		tls + tenant + fmt.Sprintf("authorization: {credentials_file: %q}\n", token),
		tls + tenant + fmt.Sprintf("basic_auth: {username: me, password_file: %q}\n", password),
	} {
		if err := ask(good); err != nil {
			t.Errorf("%s%v", good, err)
		}
	}
	for want, bad := range map[string]string{
		"401":                 tls + fmt.Sprintf("authorization: {credentials_file: %q}\n", token), // without the tenant
		"certificate":         tenant + fmt.Sprintf("authorization: {credentials_file: %q}\n", token),
		"field baerer_token":  "baerer_token: a\n",
		"HTTP configuration ": "tls_config: [1]\n",
	} {
		if err := ask(bad); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s%v, want %q", bad, err, want)
		}
	}
	if _, err := backtestOut(t, "--trace", traceFile(t), "--prometheus-http-config", token); err == nil || !strings.Contains(err.Error(), "--prometheus-http-config without --prometheus") {
		t.Errorf("without --prometheus: %v", err)
	}
}
