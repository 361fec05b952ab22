// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/autoscaler/access"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// guarded is an API server that may issue tokens. The controller behind its proxy requires
// one.
type guarded struct {
	t       *testing.T
	mints   bool   // TokenRequests are allowed
	accepts string // the token that the controller requires; empty: none
	shown   []string
	minted  int
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/serviceaccounts/gpupilot-viewer/token"):
		var tr authenticationv1.TokenRequest
		if err := json.NewDecoder(r.Body).Decode(&tr); err != nil {
			g.t.Error(err)
		}
		if len(tr.Spec.Audiences) != 1 || tr.Spec.Audiences[0] != access.Audience || *tr.Spec.ExpirationSeconds != 600 {
			g.t.Errorf("asked for a token of %+v", tr.Spec)
		}
		w.Header().Set("Content-Type", "application/json")
		if !g.mints {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "not you", "code": 403}`)
			return
		}
		g.minted++
		fmt.Fprint(w, `{"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "status": {"token": "minted"}}`)
	case strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/gp/services/c:8080/proxy/"):
		r.Header.Del("Authorization") // as the API server does
		g.controller(w, r)
	default:
		g.controller(w, r)
	}
}

func (g *guarded) controller(w http.ResponseWriter, r *http.Request) {
	token := r.Header.Get(view.TokenHeader) + strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token != "" {
		g.shown = append(g.shown, token)
	}
	if token != g.accepts {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	fmt.Fprint(w, `{"points": [{"replicas": 2}]}`)
}

func (g *guarded) kubeconfig(user string) (file string, server *httptest.Server) {
	g.t.Helper()
	server = httptest.NewServer(g)
	g.t.Cleanup(server.Close)
	api := httptest.NewTLSServer(g) // client-go sends no token over http
	g.t.Cleanup(api.Close)
	return writeFile(g.t, "config", fmt.Sprintf("current-context: a\ncontexts: [{name: a, context: {cluster: c, user: u}}]\nclusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: %s}]\n", api.URL, user)), server
}

func TestTokenSelection(t *testing.T) {
	plugin := filepath.Join(t.TempDir(), "plugin")
	const answer = `{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "own"}}`
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\necho '"+answer+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	tokenFile := writeFile(t, "token", "own")
	const static, none = "{token: own}", "{}"
	f := func(name string, g guarded, user string, named bool, shown, failure string) {
		t.Helper()
		g.t = t
		file, _ := g.kubeconfig(user)
		c := Controller{Cluster: &Cluster{Kubeconfig: file}, Address: "gp/c:8080", Named: named, Viewer: DefaultViewer}
		var h view.History
		err := c.Get(t.Context(), "api/v1/history", url.Values{}, &h)
		if failure == "" && (err != nil || len(h.Points) != 1) || failure != "" && (err == nil || !strings.Contains(err.Error(), failure)) {
			t.Errorf("%s: %v, want %q", name, err, failure)
		}
		if got := strings.Join(g.shown, ","); got != shown {
			t.Errorf("%s: showed %q, want %q", name, got, shown)
		}
	}
	f("it wants none", guarded{mints: true}, static, true, "", "")
	f("a token may be asked for", guarded{mints: true, accepts: "minted"}, static, false, "minted", "")
	f("certificates only", guarded{mints: true, accepts: "minted"}, none, false, "minted", "")
	f("the user's own, to whom the user named", guarded{accepts: "own"}, static, true, "own", "")
	f("of a file", guarded{accepts: "own"}, "{tokenFile: "+tokenFile+"}", true, "own", "")
	f("of a plugin", guarded{accepts: "own"}, "{exec: {apiVersion: client.authentication.k8s.io/v1, command: "+plugin+", interactiveMode: Never}}", true, "own", "")
	f("not to the default address", guarded{accepts: "own"}, static, false, "", "--controller gp/c:8080")
	f("nothing to show", guarded{accepts: "own"}, none, true, "", "serviceaccounts/token")
	f("a password is no token", guarded{accepts: "own"}, "{username: a, password: b}", true, "", "serviceaccounts/token")
	f("a wrong one", guarded{mints: true, accepts: "other"}, static, true, "minted", "401")
}

// A caller that reads again and again gets one token, and a new one when it is refused.
func TestTokenIsKept(t *testing.T) {
	g := &guarded{t: t, mints: true, accepts: "minted"}
	file, _ := g.kubeconfig("{}")
	c := Controller{Cluster: &Cluster{Kubeconfig: file}, Address: "gp/c:8080", Viewer: DefaultViewer}
	get := func() {
		t.Helper()
		if err := c.Get(t.Context(), "api/v1/history", url.Values{}, &view.History{}); err != nil {
			t.Fatal(err)
		}
	}
	get()
	get()
	get()
	if g.minted != 1 {
		t.Errorf("%d tokens for three reads", g.minted)
	}
	c.sent = "revoked"
	get()
	if g.minted != 2 {
		t.Errorf("%d tokens after one was refused", g.minted)
	}
}

// With a URL, the token is sent only over https or to this machine, and never redirected.
func TestTokenOfURL(t *testing.T) {
	g := &guarded{t: t, mints: true, accepts: "minted"}
	file, server := g.kubeconfig("{}")
	ask := func(address string) error {
		c := Controller{Cluster: &Cluster{Kubeconfig: file}, Address: address, Named: true, Viewer: DefaultViewer}
		var h view.History
		return c.Get(t.Context(), "api/v1/history", url.Values{}, &h)
	}
	if err := ask(server.URL); err != nil || len(g.shown) != 1 {
		t.Errorf("loopback: %v, showed %q", err, g.shown)
	}
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.Redirect(w, r, server.URL+"/evil", http.StatusTemporaryRedirect)
	}))
	defer evil.Close()
	g.shown = nil
	if err := ask(evil.URL); err == nil || !strings.Contains(err.Error(), "307") || len(g.shown) != 0 {
		t.Errorf("a redirect: %v, showed %q", err, g.shown)
	}
	for host, want := range map[string]bool{"localhost": true, "127.0.0.1": true, "::1": true, "10.0.0.1": false, "localhost.example": false} {
		if isLoopback(host) != want {
			t.Errorf("%s: loopback %v", host, !want)
		}
	}
	if access.Audience != v1alpha1.GroupVersion.Group {
		t.Error("the command line asks for tokens that the controller does not accept")
	}
}

// refusing answers 401 to all requests.
type refusing struct{ authorizations []string }

func (r *refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	r.authorizations = append(r.authorizations, req.Header.Get("Authorization"))
	return &http.Response{StatusCode: http.StatusUnauthorized, Status: "401", Body: http.NoBody, Request: req}, nil
}

// Another machine gets the token over https, and never over http.
func TestNoTokenOverHTTP(t *testing.T) {
	g := &guarded{t: t, mints: true}
	file, _ := g.kubeconfig("{token: own}")
	for address, want := range map[string]string{"http://controller.example:8080": "[]", "https://controller.example": "[ Bearer minted]"} {
		var r refusing
		c := Controller{Cluster: &Cluster{Kubeconfig: file}, Address: address, Named: true, Viewer: DefaultViewer, transport: &r}
		err := c.Get(t.Context(), "api/v1/history", url.Values{}, &view.History{})
		if got := fmt.Sprint(r.authorizations); err == nil || got != want {
			t.Errorf("%s: %v, showed %s, want %s", address, err, got, want)
		}
	}
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// An error has the message of a Status object, cleaned and bounded, and never its JSON.
func TestStatusIsUnwrapped(t *testing.T) {
	f := func(code int, body, want string) {
		t.Helper()
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); fmt.Fprint(w, body) }))
		defer s.Close()
		err := (&Controller{Cluster: &Cluster{}, Address: s.URL}).Get(t.Context(), "api/v1/view", nil, &view.View{})
		if err == nil || !strings.HasSuffix(err.Error(), want) || len(err.Error()) > 600 {
			t.Errorf("%v, want %q", err, want)
		}
	}
	status := func(message string) string {
		b, err := json.Marshal(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status"}, Message: message})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	f(503, status("no service port 8080 found"), "503 Service Unavailable: no service port 8080 found")
	f(404, status("services \"x\" not found"), "or one of another version: services \"x\" not found")
	f(503, status("\x1b[2J"+strings.Repeat("x", 2000)), "…")
	f(503, status(""), `Unavailable: `+strconv.Quote(status("")))
	f(502, "<html>", `502 Bad Gateway: "<html>"`)
}
