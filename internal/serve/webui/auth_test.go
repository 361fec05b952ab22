// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// cluster knows users by their tokens, and which namespaces they may read: "*" is all.
type cluster struct {
	mu    sync.Mutex
	users map[string][]string
	err   error
	known bool // every token
	asked int
}

func (c *cluster) Known(string) bool { return c.known }

func (c *cluster) Authenticate(_ context.Context, token string) (Viewer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	namespaces, ok := c.users[token]
	if c.err != nil || !ok {
		return nil, c.err
	}
	return &user{c, token, namespaces}, nil
}

type user struct {
	c          *cluster
	name       string
	namespaces []string
}

func (u *user) Key() string { return u.name }

// Payer is set for users that are named namespace/service account.
func (u *user) Payer() fair.Payer {
	if namespace, name, ok := strings.Cut(u.name, "/"); ok {
		return fair.Account("system:serviceaccount:" + namespace + ":" + name)
	}
	return fair.Account(u.name)
}

func (u *user) All(context.Context) (bool, error) {
	return slices.Contains(u.namespaces, "*"), u.c.err
}

func (u *user) Metrics(context.Context) (bool, error) {
	return slices.Contains(u.namespaces, "/metrics"), u.c.err
}

func (u *user) Readable(_ context.Context, in []string) (out []string, unasked int, err error) {
	for _, ns := range in {
		if slices.Contains(u.namespaces, ns) {
			out = append(out, ns)
		}
	}
	return out, 0, u.c.err
}

func percent(x float64) *float64 { return &x }

// fleet is two tenants' and a third one's, of which a GPU is shared.
func fleet() view.View {
	return view.View{
		Time: time.Unix(1, 0).UTC(), MaxAge: 5 * time.Second, Version: "v",
		Nodes: []view.Node{
			{Name: "n1", GPUs: []view.GPU{
				{UUID: "GPU-a", Utilization: percent(5), Owners: []view.Owner{{Namespace: "a", Pod: "pa"}}},
				{UUID: "GPU-shared", Owners: []view.Owner{{Namespace: "a", Pod: "pa2"}, {Namespace: "b", Pod: "pb"}}},
				{UUID: "GPU-free"},
			}},
			{Name: "n2", GPUs: []view.GPU{{UUID: "GPU-b", Owners: []view.Owner{{Namespace: "b", Pod: "pb2"}}}}},
		},
		Targets: []view.Target{
			{Name: "agent/sys/x", Kind: "agent", Node: "n1", URL: "http://10.0.0.1:9400/metrics"},
			{Name: "pod/a/pa:8000/metrics", Kind: "pod", Namespace: "a"},
			{Name: "pod/b/pb:8000/metrics", Kind: "pod", Namespace: "b"},
		},
		Workloads: []view.Workload{{Namespace: "a", Name: "wa"}, {Namespace: "b", Name: "wb"}},
		Recent:    []view.Event{{Namespace: "b", Name: "wb"}, {Namespace: "a", Name: "wa"}, {Namespace: "gone", Name: "x"}},
	}
}

// names are what a view shows, in one line.
func names(v *view.View) string {
	var out []string
	for _, n := range v.Nodes {
		for _, g := range n.GPUs {
			s := n.Name + ":" + g.UUID
			for _, o := range g.Owners {
				s += "," + o.Namespace + "/" + o.Pod
			}
			out = append(out, s)
		}
	}
	for _, t := range v.Targets {
		out = append(out, t.Name)
	}
	for _, w := range v.Workloads {
		out = append(out, w.Namespace+"/"+w.Name)
	}
	for _, e := range v.Recent {
		out = append(out, "changed "+e.Namespace+"/"+e.Name)
	}
	return strings.Join(out, " ")
}

// ask asks a handler as a client does; headers are pairs.
func ask(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "from" {
			r.RemoteAddr = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// Everybody sees what is in the namespaces that they may read, and nothing of
// the others, be it a name in a list of owners.
func TestScope(t *testing.T) {
	c := &cluster{users: map[string][]string{"ann": {"a"}, "bob": {"b"}, "root": {"*"}, "none": {}}}
	h := New(fixed{fleet()}, c).Handler()
	f := func(token, want string, namespaces []string) {
		t.Helper()
		w := ask(h, "/api/v1/view", "Authorization", "Bearer "+token)
		var v view.View
		if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || w.Code != 200 {
			t.Fatalf("%s: %d, %v, %s", token, w.Code, err, w.Body)
		}
		if got := names(&v); got != want {
			t.Errorf("%s sees\n%s, want\n%s", token, got, want)
		}
		if d := cmp.Diff(namespaces, v.Namespaces); d != "" {
			t.Errorf("%s: %s", token, d)
		}
	}
	whole := fleet()
	f("root", names(&whole), nil)
	f("ann", "n1:GPU-a,a/pa n1:GPU-shared,a/pa2 pod/a/pa:8000/metrics a/wa changed a/wa", []string{"a"})
	f("bob", "n1:GPU-shared,b/pb n2:GPU-b,b/pb2 pod/b/pb:8000/metrics b/wb changed b/wb", []string{"b"})
	f("none", "", []string{})
	f("root", names(&whole), nil) // what others saw left it whole
}

func TestWhoMayLook(t *testing.T) {
	c := &cluster{users: map[string][]string{"ann": {"llm"}, "root": {"*"}, "prom": {"/metrics"}}}
	p := New(fixed{fleet()}, c)
	page := p.Handler()
	metrics := p.GuardMetrics(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "secret") }))
	from := 0
	f := func(h http.Handler, path string, want int, headers ...string) {
		t.Helper()
		from++ // each from another address, so that no budget ends
		w := ask(h, path, append(headers, "from", fmt.Sprintf("10.0.0.%d:1", from))...)
		if w.Code != want {
			t.Errorf("%s with %.60q: %d, want %d: %s", path, headers, w.Code, want, w.Body)
		}
		if w.Code == 401 && !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: a 401 that does not say how", path)
		}
		if w.Code != 200 && (strings.Contains(w.Body.String(), "GPU-") || strings.Contains(w.Body.String(), "secret")) {
			t.Errorf("%s: a refusal tells: %s", path, w.Body)
		}
	}
	bearer := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	const whole, chat = "/api/v1/view", "/api/v1/history?namespace=llm&name=chat"
	for _, path := range []string{whole, chat} {
		f(page, path, 401)
		f(page, path, 401, bearer("wrong")...)
		f(page, path, 401, "Authorization", "Basic cm9vdDpyb290")
		f(page, path, 401, "Authorization", "Bearer")
		f(page, path, 401, bearer("a b")...)
		f(page, path, 401, bearer(strings.Repeat("x", 16<<10+1))...)
		f(page, path, 401, view.TokenHeader, "wrong")
		f(page, path, 401, view.TokenHeader, "wrong", "Authorization", "Bearer root") // one of two counts, and it is the one that only we read
		f(page, path+map[bool]string{true: "&", false: "?"}[path == chat]+"token=root", 401)
		f(page, path, 200, bearer("root")...)
		f(page, path, 200, view.TokenHeader, "ann")
		f(page, path, 200, "Authorization", "bearer ann")
	}
	f(page, "/api/v1/history?namespace=other&name=chat", 403, bearer("ann")...)
	f(page, "/api/v1/minutes?namespace=llm&name=chat", 200, bearer("ann")...)
	f(page, "/api/v1/minutes?namespace=other&name=chat", 403, bearer("ann")...)
	f(page, "/api/v1/minutes?namespace=llm&name=chat", 401)
	f(page, "/api/v1/history?namespace=llm&name=nope", 404, bearer("ann")...)
	f(page, "/api/v1/history?namespace=other&name=nope", 403, bearer("ann")...) // whether it exists is not told
	f(page, "/api/v1/history?name=nope", 400, bearer("root")...)
	f(page, "/api/v1/history?namespace=llm&name="+strings.Repeat("x", 300), 400, bearer("root")...)
	f(page, "/", 200)
	f(page, "/static/page.js", 200)
	f(metrics, "/metrics", 401)
	f(metrics, "/metrics", 401, bearer("wrong")...)
	f(metrics, "/metrics", 403, bearer("ann")...)
	f(metrics, "/metrics", 200, bearer("prom")...)

	c.err = errors.New("connection refused")
	for _, path := range []string{whole, chat} {
		f(page, path, 503, bearer("root")...)
		f(page, path, 401)
	}
	f(metrics, "/metrics", 503, bearer("prom")...)
	f(page, "/", 200)
}

// Wrong tokens use up the budget of their own address; a token that is known,
// and a first login from elsewhere, go on.
func TestWrongTokensAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{users: map[string][]string{"root": {"*"}}}
		p := New(fixed{fleet()}, c)
		h := p.Handler()
		try := func(token, from string) int {
			w := ask(h, "/api/v1/view", "Authorization", "Bearer "+token, "from", from)
			if w.Code == 429 && w.Header().Get("Retry-After") == "" {
				t.Error("a 429 that does not say when")
			}
			return w.Code
		}
		const attacker, other = "10.0.0.1:5", "10.0.0.2:5"
		for i := range 1000 {
			try(fmt.Sprint("wrong", i), attacker)
		}
		if c.asked > int(loginLimits.Burst) {
			t.Errorf("1000 wrong tokens of one address cost %d reviews", c.asked)
		}
		if got := try("root", attacker); got != 429 {
			t.Errorf("the address may try more: %d", got)
		}
		if got := try("root", other); got != 200 {
			t.Errorf("another address: %d", got)
		}
		c.known = true
		if got := try("root", attacker); got != 200 {
			t.Errorf("a token that is known, from the same address: %d", got)
		}
		c.known = false
		time.Sleep(5 * time.Second)
		if got := try("root", attacker); got != 200 {
			t.Errorf("5 s later: %d", got)
		}
		// Many addresses share a total, which a first login from a new one does not need.
		c.asked = 0
		for i := range 4000 {
			try("wrong", fmt.Sprintf("10.1.0.%d:1", i%40))
		}
		if c.asked > 2*int(loginLimits.TotalBurst) {
			t.Errorf("4000 wrong tokens of 40 addresses cost %d reviews", c.asked)
		}
		if got := try("root", "10.2.0.1:1"); got != 200 {
			t.Errorf("a first login meanwhile: %d", got)
		}
		// Good logins, as of a proxy with many users behind it.
		for i := range 15 {
			if got := try("root", "10.3.0.1:1"); got != 200 {
				t.Fatalf("good login %d: %d", i, got)
			}
		}
		if s := p.Stats(); s.LimitedLogins < 4000 {
			t.Errorf("%+v", s)
		}
	})
}

// While the API server is away good tokens are not punished for it.
func TestNoAnswerCostsNoLogin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{users: map[string][]string{"root": {"*"}}, err: errors.New("away")}
		h := New(fixed{fleet()}, c).Handler()
		for range 100 {
			if w := ask(h, "/api/v1/view", "Authorization", "Bearer root"); w.Code != 503 {
				t.Fatalf("%d", w.Code)
			}
		}
		c.err = nil
		if w := ask(h, "/api/v1/view", "Authorization", "Bearer root"); w.Code != 200 {
			t.Errorf("%d", w.Code)
		}
	})
}

func TestRequestsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{users: map[string][]string{"ann": {"llm"}, "root": {"*"}}, known: true}
		p := New(fixed{fleet()}, c)
		h := p.Handler()
		codes := map[int]int{}
		for range 300 {
			codes[ask(h, "/api/v1/view", "Authorization", "Bearer ann").Code]++
		}
		if codes[200] != requestsBurst || codes[429] != 300-requestsBurst {
			t.Errorf("%v", codes)
		}
		if w := ask(h, "/api/v1/view", "Authorization", "Bearer root"); w.Code != 200 {
			t.Errorf("another user: %d", w.Code)
		}
	})
}

// counting counts how often it is asked.
type counting struct {
	fixed
	views atomic.Int64
}

func (c *counting) View() view.View { c.views.Add(1); return c.view }

// A view is taken once a second and encoded once for all with the same rights.
func TestViewsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &counting{fixed: fixed{fleet()}}
		p := New(src, nil)
		h := p.Handler()
		for range 20 {
			for range 10 {
				if w := ask(h, "/api/v1/view"); w.Code != 200 {
					t.Fatal(w.Code)
				}
			}
			time.Sleep(500 * time.Millisecond)
		}
		if n := src.views.Load(); n != 10 {
			t.Errorf("%d views in 10 s", n)
		}
		ask(h, "/api/v1/view")
		g := p.renderer.current()
		if n := len(g.scopes); n != 1 || len(g.scopes["*"].bodies) != 1 {
			t.Errorf("%d scopes with encoded views", n)
		}
		a, err1 := p.renderer.take(g, &scope{all: true}, false)
		b, err2 := p.renderer.take(g, &scope{namespaces: []string{"a"}}, false)
		if a == b || err1 != nil || err2 != nil {
			t.Error("viewers with other rights share a view")
		}
		for range 100 { // a slow client holds an old one
			time.Sleep(2 * time.Second)
			ask(h, "/api/v1/view")
		}
		kept := func() (alive, newest int) { // a timer forgets them
			p.renderer.mu.Lock()
			defer p.renderer.mu.Unlock()
			if g := p.renderer.newest; g != nil {
				newest = g.scopes["*"].size + len(a.bytes)
			}
			return p.renderer.alive, newest
		}
		if alive, newest := kept(); alive != newest+len(a.bytes)+len(b.bytes) {
			t.Errorf("%d bytes are kept, want %d besides those in use", alive, newest)
		}
		p.renderer.give(a)
		p.renderer.give(b)
		if alive, newest := kept(); alive != newest {
			t.Errorf("%d bytes are kept, want %d", alive, newest)
		}
		time.Sleep(keepUnused + time.Second)
		if alive, newest := kept(); alive != 0 || newest != 0 {
			t.Errorf("%d bytes are kept that nobody looks at", alive)
		}
		if w := ask(h, "/api/v1/view"); w.Code != 200 {
			t.Errorf("later: %d", w.Code)
		}
	})
}

// Answers that are still being read are bounded in bytes.
func TestAnswersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := fleet()
		for i := range 40 {
			long := strings.Repeat("x", 1000)
			v.Workloads = append(v.Workloads, view.Workload{Namespace: "a", Name: fmt.Sprint(i), Problem: long})
			v.Recent = append(v.Recent, view.Event{Namespace: "a", Decision: view.Decision{Sentence: long}})
			v.Targets = append(v.Targets, view.Target{Name: fmt.Sprint(i), Error: long})
		}
		p := New(fixed{v}, nil)
		busy := 0
		for range 1500 {
			if _, err := p.renderer.take(p.renderer.current(), &scope{all: true}, false); err != nil {
				busy++
			}
			time.Sleep(2 * time.Second)
		}
		if busy == 0 || p.renderer.alive > maxAlive+2<<20 {
			t.Errorf("%d MiB are alive, %d times busy", p.renderer.alive>>20, busy)
		}
		if w := ask(p.Handler(), "/api/v1/view"); w.Code != 503 || p.Stats().LimitedAnswers != 1 {
			t.Errorf("%d, %+v", w.Code, p.Stats())
		}
	})
}

func TestGzip(t *testing.T) {
	w := ask(New(fixed{fleet()}, nil).Handler(), "/api/v1/view", "Accept-Encoding", "br, gzip;q=0.8")
	z, err := gzip.NewReader(w.Body)
	if err != nil || w.Header().Get("Content-Encoding") != "gzip" {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	var v view.View
	if err != nil || json.Unmarshal(b, &v) != nil || len(v.Nodes) != 2 {
		t.Errorf("%v, %s", err, b)
	}
	if w := ask(New(fixed{fleet()}, nil).Handler(), "/api/v1/view", "Accept-Encoding", "gzip;q=0"); w.Header().Get("Content-Encoding") != "" {
		t.Error("gzip for whom refuses it")
	}
}
