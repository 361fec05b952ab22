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

// maxProfile limits the time of a CPU profile.
const maxProfile = 5 * time.Minute

// serveProfile serves /debug/pprof/ for go tool pprof. It replaces
// net/http/pprof, which costs a megabyte of memory even if unused.
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
		debug, _ := strconv.Atoi(r.FormValue("debug")) // 0, the binary form, if it is not a number
		_ = p.WriteTo(w, debug)                        // a disconnected client is not an error
	}
}

func cpuProfile(w http.ResponseWriter, r *http.Request) {
	d := 30 * time.Second
	if s, err := strconv.Atoi(r.FormValue("seconds")); err == nil && s > 0 {
		d = min(time.Duration(s)*time.Second, maxProfile)
	}
	// This response takes longer than the server's limit.
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
