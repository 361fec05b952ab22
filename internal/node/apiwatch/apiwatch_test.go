// SPDX-License-Identifier: Apache-2.0

package apiwatch

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// server is an API server with one collection of objects.
type server struct {
	mu      sync.Mutex
	pages   []string // of a list
	refuse  int      // a status that every answer has
	queries []string
	events  chan string // of the watch; a closed one ends it
	auth    string
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.queries = append(s.queries, r.URL.Path+"?"+r.URL.RawQuery)
	s.auth = r.Header.Get("Authorization")
	refuse, pages, events := s.refuse, s.pages, s.events
	s.mu.Unlock()
	if refuse != 0 {
		w.WriteHeader(refuse)
		_, _ = io.WriteString(w, `{"kind":"Status","message":"no, thanks"}`)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		n := 0
		_, _ = fmt.Sscanf(r.URL.Query().Get("continue"), "page-%d", &n)
		_, _ = io.WriteString(w, pages[n])
		return
	}
	w.(http.Flusher).Flush()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			_, _ = io.WriteString(w, e+"\n")
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func start(t *testing.T, s *server) *Client {
	t.Helper()
	s.events = make(chan string)
	return connect(t, s)
}

// connect is a client of an API server that answers with h.
func connect(t *testing.T, h http.Handler) *Client {
	t.Helper()
	ts := httptest.NewTLSServer(h)
	t.Cleanup(ts.Close)
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ts.Certificate().Raw})
	if err := errors.Join(os.WriteFile(ca, cert, 0o600), os.WriteFile(token, []byte("secret\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{URL: ts.URL, Token: token, CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// patience bounds every wait. It is long because the machine may be busy: only a
// failure takes that long.
const patience = time.Minute

func until(t *testing.T, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("it did not happen within %v", patience)
}

func pod(name, uid, labels string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"team","uid":%q,"labels":{%s},"annotations":{"a":"b"}}}`, name, uid, labels)
}

func list(version, next string, items ...string) string {
	return fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"continue":%q},"items":[%s]}`, version, next, strings.Join(items, ","))
}

func TestPods(t *testing.T) {
	s := &server{pages: []string{
		list("5", "page-1", pod("a", "1", `"app.kubernetes.io/name":"llm","app":"x"`)),
		list("5", "", pod("b", "2", `"tier":"free"`)),
	}}
	c := start(t, s)
	p := NewPods(c, nil, PodsConfig{
		Node: GivenNode("n1"), Labels: true, Allow: []*regexp.Regexp{regexp.MustCompile("^app")}, Log: slog.New(slog.DiscardHandler),
	})
	if pods, err := p.Pods(); pods != nil || err == nil {
		t.Errorf("before it runs: %v, %v", pods, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { p.Run(ctx) })
	shows := func(want map[string]gpu.Pod) func() bool {
		return func() bool {
			pods, err := p.Pods()
			got := map[string]gpu.Pod{}
			for n, v := range pods {
				got[n.Namespace+"/"+n.Name] = v
			}
			return err == nil && cmp.Equal(want, got)
		}
	}
	a := gpu.Pod{UID: "1", Labels: []gpu.PodLabel{{Name: "app", Value: "x"}, {Name: "app_kubernetes_io_name", Value: "llm"}}}
	until(t, shows(map[string]gpu.Pod{"team/a": a, "team/b": {UID: "2"}}))
	s.events <- `{"type":"ADDED","object":` + pod("c", "3", `"apple":"y"`) + `}`
	s.events <- `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}`
	s.events <- `{"type":"DELETED","object":` + pod("a", "1", "") + `}`
	after := map[string]gpu.Pod{"team/b": {UID: "2"}, "team/c": {UID: "3", Labels: []gpu.PodLabel{{Name: "apple", Value: "y"}}}}
	until(t, shows(after))

	// A server that goes away takes nothing with it.
	s.set(func() { s.refuse = http.StatusForbidden })
	close(s.events)
	until(t, func() bool { _, err := p.Pods(); return err != nil && strings.Contains(err.Error(), "403: no, thanks") })
	if pods, _ := p.Pods(); len(pods) != 2 {
		t.Errorf("%d pods stand", len(pods))
	}
	// A version that is too old is listed anew.
	s.set(func() {
		s.refuse, s.events, s.pages = http.StatusGone, make(chan string), []string{list("20", "", pod("d", "4", ""))}
	})
	until(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.queries[len(s.queries)-1], "limit=")
	})
	s.set(func() { s.refuse = 0 })
	until(t, shows(map[string]gpu.Pod{"team/d": {UID: "4"}}))
	cancel()
	run.Wait()

	s.mu.Lock() // a request that was given up may still be on its way
	defer s.mu.Unlock()
	first := s.queries[0]
	for _, want := range []string{"/api/v1/pods?", "spec.nodeName%3Dn1", "status.phase%21%3DSucceeded", "limit=25"} {
		if !strings.Contains(first, want) {
			t.Errorf("the list %s lacks %s", first, want)
		}
	}
	if s.auth != "Bearer secret" {
		t.Errorf("Authorization %q", s.auth)
	}
	if q := strings.Join(s.queries, "\n"); !strings.Contains(q, "resourceVersion=5&") || !strings.Contains(q, "watch=true") {
		t.Errorf("no watch from 5:\n%s", q)
	}
}

func TestConfigMap(t *testing.T) {
	cm := func(text string) string {
		return fmt.Sprintf(`{"metadata":{"name":"metrics","namespace":"gpu"},"data":{"metrics":%q}}`, text)
	}
	s := &server{pages: []string{cm("one")}}
	c := start(t, s)
	m := &ConfigMap{Client: c, Namespace: "gpu", Name: "metrics", Key: "metrics"}
	if text, err := m.Get(t.Context()); err != nil || text != "one" {
		t.Fatalf("%q, %v", text, err)
	}
	if _, err := (&ConfigMap{Client: c, Namespace: "gpu", Name: "metrics", Key: "other"}).Get(t.Context()); err == nil {
		t.Error("a key that is not there is no error")
	}
	s.set(func() { s.pages = []string{list("7", "", cm("one"))} })
	told := make(chan string, 8)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		m.Follow(ctx, func(text string, err error) {
			if err != nil {
				text = "error"
			}
			told <- text
		})
	})
	next := func(want string) {
		t.Helper()
		select {
		case got := <-told:
			if got != want {
				t.Errorf("told %q, want %q", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("%q was not told", want)
		}
	}
	s.events <- `{"type":"MODIFIED","object":` + cm("one") + `}` // nothing new
	s.events <- `{"type":"MODIFIED","object":` + cm("two") + `}`
	next("two")
	s.events <- `{"type":"DELETED","object":` + cm("two") + `}`
	next("error")
	s.events <- `{"type":"ADDED","object":` + cm("two") + `}`
	next("two")
	cancel()
	run.Wait()
}

func TestNoAccount(t *testing.T) {
	if _, err := InCluster(func(string) string { return "" }, AccountDir); !errors.Is(err, ErrNoAccount) {
		t.Error(err)
	}
	p := NewPods(nil, ErrNoAccount, PodsConfig{})
	p.Run(t.Context())
	if pods, err := p.Pods(); pods != nil || !errors.Is(err, ErrNoAccount) {
		t.Errorf("%v, %v", pods, err)
	}
}

// Whatever a key is, its name is one that Prometheus takes, and a name that is
// one already stays.
func FuzzLabelName(f *testing.F) {
	f.Add("app.kubernetes.io/name")
	f.Add("9lives")
	f.Add("ü")
	valid := regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	f.Fuzz(func(t *testing.T, key string) {
		n := LabelName(key)
		if key != "" && !valid.MatchString(n) {
			t.Errorf("%q became %q", key, n)
		}
		if valid.MatchString(key) && n != key {
			t.Errorf("%q became %q", key, n)
		}
	})
}

// Create sends an object with the account's token, and reads what comes back. A refusal
// is an error.
func TestCreate(t *testing.T) {
	s := &server{pages: []string{`{"status":{"authenticated":true}}`}}
	c := start(t, s)
	var got struct {
		Status struct {
			Authenticated bool `json:"authenticated"`
		} `json:"status"`
	}
	if err := c.Create(t.Context(), "/apis/x", map[string]string{"kind": "X"}, &got); err != nil || !got.Status.Authenticated {
		t.Errorf("%+v, %v", got, err)
	}
	s.set(func() {
		if s.queries[0] != "/apis/x?" || !strings.HasPrefix(s.auth, "Bearer ") {
			t.Errorf("asked %q with %q", s.queries, s.auth)
		}
		s.refuse = 403
	})
	if err := c.Create(t.Context(), "/apis/x", nil, &got); err == nil || !strings.Contains(err.Error(), "403: no, thanks") {
		t.Errorf("refused: %v", err)
	}
}
