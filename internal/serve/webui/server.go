// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"fmt"
	"net/http"
)

// AddProbes adds /healthz, and /readyz, which succeeds once ready returns true.
func AddProbes(mux *http.ServeMux, ready func() bool) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !ready() {
			http.Error(w, "the API server's objects have not been listed yet", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}
