// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/promql/api"
)

// Queries guards the HTTP API for PromQL on the page's address: a viewer reads the series
// of the namespaces that the page shows.
type Queries struct {
	page   *Page
	series func() []string

	mu         sync.Mutex
	namespaces []string // of the series, at read
	read       time.Time
}

// NewQueries returns the guard of the series whose namespaces series lists, in any order
// and some repeatedly.
func NewQueries(page *Page, series func() []string) *Queries {
	return &Queries{page: page, series: series}
}

// Guard authenticates requests as the page does, and calls next with their viewer.
func (q *Queries) Guard(next func(http.ResponseWriter, *http.Request, api.Viewer)) http.HandlerFunc {
	return q.page.Guard(func(w http.ResponseWriter, r *http.Request, v Viewer) {
		viewer, err := q.viewer(r.Context(), v)
		if err != nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, `{"status":"error","errorType":"unavailable","error":"the API server does not answer a check of the token's rights; try again"}`, http.StatusServiceUnavailable)
			return
		}
		next(w, r, viewer)
	})
}

// viewer returns which namespaces a viewer may read.
func (q *Queries) viewer(ctx context.Context, v Viewer) (api.Viewer, error) {
	var out api.Viewer
	if p := v.Payer(); p.IsNamespace() {
		out.Payer = p // and not a namespace that the account may read besides
	}
	all, err := v.All(ctx)
	if all || err != nil {
		return out, err
	}
	out.Namespaces, out.Unknown, err = v.Readable(ctx, q.allNamespaces(time.Now()))
	if out.Namespaces == nil {
		out.Namespaces = []string{} // none, and not all
	}
	return out, err
}

// namespacesTTL is how long the list of the series' namespaces is used.
const namespacesTTL = 2 * time.Second

// allNamespaces returns the namespaces of the series.
func (q *Queries) allNamespaces(now time.Time) []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now.Sub(q.read) >= namespacesTTL {
		q.namespaces = q.series()
		slices.Sort(q.namespaces)
		q.namespaces, q.read = slices.Compact(q.namespaces), now
	}
	return q.namespaces
}
