// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

//go:embed static
var assets embed.FS

// policy lets the page load its own files and nothing else; uPlot sets styles
// of elements through the DOM, which needs no exception.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// atOnce is how many answers are made at a time; sending them does not count.
const atOnce = 32

// Page serves the page and its JSON.
type Page struct {
	source   Source
	access   Access
	renderer *renderer
	logins   *logins
	users    *buckets // requests, by user
	slots    chan struct{}
	limited  struct{ requests, logins, answers atomic.Uint64 }

	everybody *buckets // requests, where users are not told apart
}

// New makes a page. Without access everybody sees everything.
func New(source Source, access Access) *Page {
	return &Page{
		source: source, access: access, renderer: newRenderer(source), logins: newLogins(),
		users: newBuckets(requestsBurst, requestsPerSecond, requestsUsers), slots: make(chan struct{}, atOnce),
		everybody: newBuckets(allRequestsBurst, allRequestsPerSec, 1),
	}
}

// Stats are counts since the start.
type Stats struct {
	LimitedRequests uint64 // refused: too many of one user, or in all
	LimitedLogins   uint64 // refused: too many wrong tokens
	LimitedAnswers  uint64 // refused: too many, or too large ones, under way
}

// Stats meters the page's bounds.
func (p *Page) Stats() Stats {
	return Stats{p.limited.requests.Load(), p.limited.logins.Load(), p.limited.answers.Load()}
}

// Handler serves the page at /, its files below /static/, both without a token,
// and read-only JSON: GET /api/v1/view is a View, /api/v1/nodes a NodePage,
// /api/v1/node?name=N a NodeDetail, /api/v1/workloads a WorkloadPage, GET
// /api/v1/history?namespace=N&name=M is that workload's History (404 for one
// that is not known, 403 for a namespace that the viewer may not see).
func (p *Page) Handler() http.Handler {
	static, err := fs.Sub(assets, "static")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	mux := http.NewServeMux()
	mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(static)))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFileFS(w, r, static, "index.html")
	})
	mux.HandleFunc("GET /api/v1/view", p.guard(p.serveView))
	mux.HandleFunc("GET /api/v1/nodes", p.guard(p.serveNodes))
	mux.HandleFunc("GET /api/v1/node", p.guard(p.serveNode))
	mux.HandleFunc("GET /api/v1/workloads", p.guard(p.serveWorkloads))
	mux.HandleFunc("GET /api/v1/history", p.guard(p.serveHistory))
	return secure(mux)
}

// guard has next called for a viewer, while not too many others are served.
func (p *Page) guard(next func(w http.ResponseWriter, r *http.Request, v Viewer)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		v, ok := p.viewer(w, r)
		if ok {
			next(w, r, v)
		}
	}
}

// slot waits for one of the places of atOnce; give ends it.
func (p *Page) slot(ctx context.Context) (give func(), ok bool) {
	select {
	case p.slots <- struct{}{}:
		return func() { <-p.slots }, true
	case <-ctx.Done():
	case <-time.After(slotPatience):
	}
	return nil, false
}

// slotPatience is how long a request waits for others.
const slotPatience = 2 * time.Second

func (p *Page) serveView(w http.ResponseWriter, r *http.Request, v Viewer) {
	b, err := p.viewFor(r, v)
	if err != nil {
		p.refuseAnswer(w, err)
		return
	}
	defer p.renderer.give(b)
	p.send(w, r, b.bytes, b.at)
}

// refuseAnswer says why there is no answer.
func (p *Page) refuseAnswer(w http.ResponseWriter, err error) {
	if errors.Is(err, errBusy) {
		p.limited.answers.Add(1)
		refuse(w, http.StatusServiceUnavailable, time.Second, errBusy.Error()+"; try again")
		return
	}
	unavailable(w)
}

// viewFor makes the view that v may see, or shares it.
func (p *Page) viewFor(r *http.Request, v Viewer) (*body, error) {
	give, ok := p.slot(r.Context())
	if !ok {
		return nil, errBusy
	}
	defer give()
	g := p.renderer.current()
	s, err := scopeOf(r.Context(), v, g)
	if err != nil {
		return nil, err
	}
	return p.renderer.take(g, &s, zips(r))
}

// scopeOf finds out what v may see of a generation.
func scopeOf(ctx context.Context, v Viewer, g *generation) (s scope, err error) {
	if s.all, err = v.All(ctx); err != nil || s.all {
		return s, err
	}
	s.namespaces, s.unasked, err = v.Readable(ctx, g.namespaces)
	return s, err
}

// zips reports whether the client takes gzip.
func zips(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(name, "gzip") {
			return strings.ReplaceAll(params, " ", "") != "q=0"
		}
	}
	return false
}

func (p *Page) serveHistory(w http.ResponseWriter, r *http.Request, v Viewer) {
	namespace, name := r.FormValue("namespace"), r.FormValue("name")
	if namespace == "" || name == "" || len(namespace) > maxName || len(name) > maxName {
		writeError(w, http.StatusBadRequest, "give namespace and name of a GPUAutoscaler")
		return
	}
	give, ok := p.slot(r.Context())
	if !ok {
		p.limited.answers.Add(1)
		refuse(w, http.StatusServiceUnavailable, time.Second, errBusy.Error()+"; try again")
		return
	}
	may, err := mayRead(r.Context(), v, namespace)
	var h History
	known := false
	if may && err == nil {
		h, known = p.source.History(namespace, name)
	}
	give()
	switch {
	case err != nil:
		unavailable(w)
	case !may:
		writeError(w, http.StatusForbidden, "the token's owner may not get gpuautoscalers.gpupilot.dev in the namespace "+namespace)
	case !known:
		writeError(w, http.StatusNotFound, "no GPUAutoscaler "+namespace+"/"+name+" is known")
	default:
		writeJSON(w, http.StatusOK, h)
	}
}

// maxName is the longest name of an object in Kubernetes.
const maxName = 253

func mayRead(ctx context.Context, v Viewer, namespace string) (bool, error) {
	if ok, err := v.All(ctx); ok || err != nil {
		return ok, err
	}
	readable, _, err := v.Readable(ctx, []string{namespace})
	return len(readable) == 1, err
}

func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache")
		next.ServeHTTP(w, r)
	})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "encode the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the reader may have gone
}
