// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
)

//go:embed static
var assets embed.FS

// policy lets the page load its own files and nothing else; uPlot sets styles
// of elements through the DOM, which needs no exception.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// NewHandler serves the page at /, its files below /static/, and read-only
// JSON: GET /api/v1/view is a View, GET /api/v1/history?namespace=N&name=M is
// that workload's History (404 for one that is not known).
func NewHandler(src Source) http.Handler {
	static, err := fs.Sub(assets, "static")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	files := http.FileServerFS(static)
	mux := http.NewServeMux()
	mux.Handle("GET /static/", http.StripPrefix("/static/", files))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFileFS(w, r, static, "index.html")
	})
	mux.HandleFunc("GET /api/v1/view", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, src.View())
	})
	mux.HandleFunc("GET /api/v1/history", func(w http.ResponseWriter, r *http.Request) {
		namespace, name := r.FormValue("namespace"), r.FormValue("name")
		h, ok := src.History(namespace, name)
		if !ok {
			writeJSON(w, http.StatusNotFound, map[string]string{
				"error": "no GPUAutoscaler " + namespace + "/" + name + " is known; give namespace and name",
			})
			return
		}
		writeJSON(w, http.StatusOK, h)
	})
	return secure(mux)
}

func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
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
