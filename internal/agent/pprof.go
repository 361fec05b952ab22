// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
)

// maxProfile bounds a CPU profile.
const maxProfile = 5 * time.Minute

// serveProfile answers /debug/pprof/ with what go tool pprof asks for. It is our
// own, because net/http/pprof costs a megabyte of memory even unused.
func serveProfile(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/debug/pprof/")
	switch name {
	case "":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "profile?seconds=30\ncmdline\n")
		for _, p := range pprof.Profiles() {
			_, _ = fmt.Fprintf(w, "%s?debug=1\n", p.Name())
		}
	case "cmdline":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, strings.Join(os.Args, "\x00"))
	case "profile":
		cpuProfile(w, r)
	default:
		p := pprof.Lookup(name)
		if p == nil {
			http.NotFound(w, r)
			return
		}
		debug, _ := strconv.Atoi(r.FormValue("debug")) // 0, the binary form, if it is no number
		_ = p.WriteTo(w, debug)                        // a client that went away is no error
	}
}

func cpuProfile(w http.ResponseWriter, r *http.Request) {
	d := 30 * time.Second
	if s, err := strconv.Atoi(r.FormValue("seconds")); err == nil && s > 0 {
		d = min(time.Duration(s)*time.Second, maxProfile)
	}
	// The answer takes longer than others may.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(d + 10*time.Second))
	if err := pprof.StartCPUProfile(w); err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	defer pprof.StopCPUProfile()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.Context().Done():
	}
}
