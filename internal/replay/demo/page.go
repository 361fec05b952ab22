// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"embed"
	"encoding/json"
	"io/fs"
	"net/http"
	"strconv"
)

//go:embed static
var assets embed.FS

// Handler serves the demo's page, which needs the files of the controller's page below
// static/, and its State as state.json, with the points from the parameter from on.
func (d *Demo) Handler() http.Handler {
	static, err := fs.Sub(assets, "static")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(static))
	mux.HandleFunc("GET /state.json", func(w http.ResponseWriter, r *http.Request) {
		from := 0
		if text := r.FormValue("from"); text != "" {
			var err error
			if from, err = strconv.Atoi(text); err != nil || from < 0 {
				http.Error(w, "the parameter from is "+strconv.Quote(text)+": want seconds since the start of the demo", http.StatusBadRequest)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(d.State(from)) // an error means that the client has disconnected
	})
	return mux
}
