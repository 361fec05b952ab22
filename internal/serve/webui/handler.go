// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/bearer"
	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/base/meter"
	"github.com/gpupilot/gpupilot/internal/gpu/price"
	"github.com/gpupilot/gpupilot/internal/serve/webui/static"
	"github.com/gpupilot/gpupilot/internal/window/history"
	"github.com/gpupilot/gpupilot/internal/window/view"
)

// maxConcurrent is the limit of responses that are built concurrently. Sending them
// does not count.
const maxConcurrent = 32

// Page serves the page and its JSON.
type Page struct {
	// Prices are what GPUs cost. They are set before the page is served.
	Prices price.Table

	source   Source
	access   Access
	renderer *renderer
	logins   *bearer.Logins
	users    *bearer.Buckets // requests, by user
	slots    *fair.Slots
	streams  streams
	sending  sending
	ledger   ledger
	limited  struct{ requests, logins, answers atomic.Uint64 }

	everybody *bearer.Buckets // requests without authentication
}

// New returns a page. If access is nil, everybody sees everything.
func New(source Source, access Access) *Page {
	share := maxConcurrent / 2 // of one payer
	if access == nil {
		share = maxConcurrent // all are one
	}
	return &Page{
		source: source, access: access, renderer: newRenderer(source), logins: bearer.NewLogins(loginLimits),
		users: bearer.NewBuckets(requestsBurst, requestsPerSecond, requestsUsers), slots: fair.NewSlots(fair.Config{Slots: maxConcurrent, Share: share}),
		everybody: bearer.NewBuckets(allRequestsBurst, allRequestsPerSec, 1),
	}
}

// Stats are counts since the start.
type Stats struct {
	LimitedRequests uint64 // refused: too many from one user, or without authentication in total
	LimitedLogins   uint64 // refused: too many invalid tokens
	LimitedAnswers  uint64 // refused: too many concurrent responses, or too many bytes of them
}

// Stats counts the refused requests, by reason.
func (p *Page) Stats() Stats {
	return Stats{p.limited.requests.Load(), p.limited.logins.Load(), p.limited.answers.Load()}
}

// Meter collects the metrics of refused requests.
func (p *Page) Meter(to meter.Sink) {
	s := p.Stats()
	for i := range p.Prices.Entries {
		e := &p.Prices.Entries[i]
		to.Gauge("gpupilot_gpu_hour_price_usd", "USD of a GPU-hour, as --gpu-price says: of a model, of a node pool or, without both, of all others.", e.USD, "model", e.Model, "pool", e.Pool)
	}
	for reason, n := range map[string]uint64{"requests": s.LimitedRequests, "logins": s.LimitedLogins, "answers": s.LimitedAnswers} {
		to.Counter("gpupilot_page_limited_total", "Requests refused because of a bound, by the bound: requests of one user, wrong logins, or answers under way.", float64(n), "bound", reason)
	}
}

// Handler serves the page at / and its files below /static/, both without a token,
// and read-only JSON for GET:
//
//	/api/v1/view                          a View
//	/api/v1/stream                        events with the differences of the view
//	/api/v1/nodes                         a NodePage
//	/api/v1/node?name=N                   a NodeDetail
//	/api/v1/gpus                          a GPUPage
//	/api/v1/workloads                     a WorkloadPage
//	/api/v1/workload?namespace=N&name=M   a WorkloadDetail
//	/api/v1/gpu?node=N&uuid=U             a Device
//	/api/v1/decisions                     a DecisionPage
//	/api/v1/allocation                    Allocations, or CSV
//	/api/v1/holders                       a HolderPage
//	/api/v1/history?namespace=N&name=M    the workload's History; 404 if it is unknown,
//	                                      403 if the viewer may not see the namespace
//	/api/v1/minutes?namespace=N&name=M    the workload's Minutes: of the last day, or of
//	                                      since=336h; with step=5m and
//	                                      metric=gpupilot_autoscaler_replicas for fewer
//	                                      values; with kind=Deployment for others
//	                                      than GPUAutoscalers
func (p *Page) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", static.Index())
	mux.HandleFunc("GET /api/v1/view", p.guard(p.serveView))
	mux.HandleFunc("GET /api/v1/stream", p.guard(p.serveStream))
	mux.HandleFunc("GET /api/v1/nodes", p.guard(p.serveNodes))
	mux.HandleFunc("GET /api/v1/node", p.guard(p.serveNode))
	mux.HandleFunc("GET /api/v1/gpus", p.guard(p.serveGPUs))
	mux.HandleFunc("GET /api/v1/workloads", p.guard(p.serveWorkloads))
	mux.HandleFunc("GET /api/v1/workload", p.guard(p.serveDetail))
	mux.HandleFunc("GET /api/v1/gpu", p.guard(p.serveDevice))
	mux.HandleFunc("GET /api/v1/allocation", p.guard(p.serveAllocation))
	mux.HandleFunc("GET /api/v1/holders", p.guard(p.serveHolders))
	mux.HandleFunc("GET /api/v1/decisions", p.guard(p.serveDecisions))
	mux.HandleFunc("GET /api/v1/history", p.guard(p.serveHistory))
	mux.HandleFunc("GET /api/v1/minutes", p.guard(p.serveMinutes))
	return static.WithFiles(mux)
}

// Guard serves next to viewers whose token is valid, within the viewer's budget of
// requests. It is for handlers beside the page's own.
func (p *Page) Guard(next func(w http.ResponseWriter, r *http.Request, v Viewer)) http.HandlerFunc {
	return p.guard(next)
}

// guard calls next with the request's viewer, if the viewer's budget allows it.
func (p *Page) guard(next func(w http.ResponseWriter, r *http.Request, v Viewer)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		v, ok := p.viewer(w, r)
		if ok {
			next(w, r, v)
		}
	}
}

// slot waits for one of the maxConcurrent slots, of which payers have a fair share. give releases it.
func (p *Page) slot(ctx context.Context, v Viewer) (give func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, slotPatience)
	defer cancel()
	give, err := p.slots.Acquire(ctx, fair.Request{Payer: v.Payer()})
	return give, err == nil
}

// slotPatience is how long a request waits for a slot.
const slotPatience = 2 * time.Second

func (p *Page) serveView(w http.ResponseWriter, r *http.Request, v Viewer) {
	b, id, err := p.viewFor(r, v)
	if err != nil {
		p.refuseAnswer(w, err)
		return
	}
	defer p.renderer.give(b)
	if id != "" {
		w.Header().Set(eventHeader, id)
	}
	describe(w, r)
	setAge(w, b.at)
	w.Header().Set("Content-Length", strconv.Itoa(len(b.bytes)))
	_, _ = w.Write(b.bytes) // an error means that the client has disconnected
}

// refuseAnswer sends the error of a response that could not be built.
func (p *Page) refuseAnswer(w http.ResponseWriter, err error) {
	if errors.Is(err, errBusy) {
		p.limited.answers.Add(1)
		refuse(w, http.StatusServiceUnavailable, time.Second, errBusy.Error()+"; try again")
		return
	}
	unavailable(w)
}

// viewFor returns the view that v may see. Viewers with the same rights share it. With the
// parameter stream=true it returns the id with which a stream continues the view.
func (p *Page) viewFor(r *http.Request, v Viewer) (b *body, id string, err error) {
	give, ok := p.slot(r.Context(), v)
	if !ok {
		return nil, "", errBusy
	}
	defer give()
	g := p.renderer.current()
	s, err := scopeOf(r.Context(), v, g)
	if err != nil {
		return nil, "", err
	}
	if b, err = p.renderer.take(g, &s, static.AcceptsGzip(r)); err == nil && r.FormValue("stream") == "true" {
		id = p.renderer.idOf(g, &s)
	}
	return b, id, err
}

// scopeOf returns the part of a generation that v may see.
func scopeOf(ctx context.Context, v Viewer, g *generation) (s scope, err error) {
	if s.all, err = v.All(ctx); err != nil || s.all {
		return s, err
	}
	s.namespaces, s.unasked, err = v.Readable(ctx, g.namespaces)
	return s, err
}

func (p *Page) serveHistory(w http.ResponseWriter, r *http.Request, v Viewer) {
	p.serveWorkload(w, r, v, func(namespace, name string) (any, bool, error) {
		h, known := p.source.History(namespace, name)
		return h, known, nil
	})
}

// serveWorkload sends what read returns of the workload that the parameters name, if the
// viewer may see its namespace. An error of read is a bad request.
func (p *Page) serveWorkload(w http.ResponseWriter, r *http.Request, v Viewer, read func(namespace, name string) (body any, known bool, err error)) {
	namespace, name := r.FormValue("namespace"), r.FormValue("name")
	if namespace == "" || name == "" || len(namespace) > view.MaxName || len(name) > view.MaxName {
		writeError(w, http.StatusBadRequest, "the parameters namespace and name of a GPUAutoscaler are required")
		return
	}
	give, ok := p.slot(r.Context(), v)
	if !ok {
		p.limited.answers.Add(1)
		refuse(w, http.StatusServiceUnavailable, time.Second, errBusy.Error()+"; try again")
		return
	}
	may, err := mayRead(r.Context(), v, namespace)
	var body []byte
	var bad error
	known := false
	if may && err == nil {
		var found any
		if found, known, bad = read(namespace, name); known && bad == nil {
			body, err = encode(found, static.AcceptsGzip(r))
		}
	}
	give()
	switch {
	case err != nil:
		unavailable(w)
	case !may:
		writeError(w, http.StatusForbidden, "the token's owner may not get gpuautoscalers.gpupilot.dev in the namespace "+namespace)
	case bad != nil:
		writeError(w, http.StatusBadRequest, bad.Error())
	case !known:
		writeError(w, http.StatusNotFound, "there is no "+cmp.Or(r.FormValue("kind"), history.KindAutoscaler)+" "+namespace+"/"+name)
	default:
		describe(w, r)
		p.deliver(w, v, body)
	}
}

func mayRead(ctx context.Context, v Viewer, namespace string) (bool, error) {
	if ok, err := v.All(ctx); ok || err != nil {
		return ok, err
	}
	readable, _, err := v.Readable(ctx, []string{namespace})
	return len(readable) == 1, err
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "encode the answer: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // an error means that the client has disconnected
}
