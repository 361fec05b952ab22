// SPDX-License-Identifier: Apache-2.0

package expo

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The content types of the formats.
const (
	contentTypeText        = "text/plain; version=0.0.4; charset=utf-8"
	contentTypeOpenMetrics = "application/openmetrics-text; version=1.0.0; charset=utf-8"
)

// Header values that are the same in every answer. net/http only reads them.
var (
	contentTypes = [numFormats][]string{{contentTypeText}, {contentTypeOpenMetrics}}
	gzipped      = []string{"gzip"}
	vary         = []string{"Accept, Accept-Encoding"}
	nosniff      = []string{"nosniff"}
)

// scratch is the memory of an answer that is made for one request.
type scratch struct {
	body   []byte
	packed bytes.Buffer
}

// ServeHTTP answers a scrape with the last page, in the format and encoding
// that the request accepts. name[] parameters limit it to these metrics (and
// the few that are always there). It answers 503 while there is no page, and
// when the last one is too old.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	p := e.current()
	if p == nil {
		http.Error(w, "nothing has been collected yet", http.StatusServiceUnavailable)
		return
	}
	defer e.pages.release(p)
	if time.Now().After(p.until) {
		http.Error(w, "the last collection is too old", http.StatusServiceUnavailable)
		return
	}
	f := negotiate(req.Header["Accept"])
	h := w.Header()
	h["Content-Type"] = contentTypes[f]
	h["Vary"] = vary
	h["X-Content-Type-Options"] = nosniff
	zip := acceptsGzip(req.Header["Accept-Encoding"])
	if zip {
		h["Content-Encoding"] = gzipped
	}
	if req.URL.RawQuery != "" {
		if names := req.URL.Query()["name[]"]; len(names) > 0 {
			e.serveSome(w, p, f, zip, names)
			return
		}
	}
	send(w, e.whole(p, f, zip))
}

// whole gives all of a page. What it returns is good until p is released.
func (e *Exporter) whole(p *page, f format, zip bool) []byte {
	if f == text && !zip {
		return p.body
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	body := p.whole(f)
	if !zip {
		return body
	}
	if !p.isPacked[f] {
		p.packed[f].Reset()
		e.packer.pack(&p.packed[f], body)
		p.isPacked[f] = true
	}
	return p.packed[f].Bytes()
}

func (e *Exporter) serveSome(w http.ResponseWriter, p *page, f format, zip bool, names []string) {
	want := make([]bool, len(p.by.families))
	for i := range want {
		want[i] = p.by.families[i].always
	}
	for _, n := range names {
		if i, ok := p.by.byName[n]; ok {
			want[i] = true
		}
	}
	t, _ := e.scratches.Get().(*scratch)
	if t == nil {
		t = &scratch{}
	}
	defer e.scratches.Put(t)
	t.body = p.appendSome(t.body[:0], f, want)
	if !zip {
		send(w, t.body)
		return
	}
	t.packed.Reset()
	e.packer.pack(&t.packed, t.body)
	send(w, t.packed.Bytes())
}

// send writes the body; a client that went away is no error of ours.
func send(w http.ResponseWriter, body []byte) {
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	_, _ = w.Write(body)
}

// negotiate picks the format that the client prefers, the plain one if it has
// no preference.
func negotiate(accept []string) format {
	var qText, qMetrics float64
	eachOption(accept, func(name string, q float64) {
		switch name {
		case "application/openmetrics-text":
			qMetrics = max(qMetrics, q)
		case "text/plain":
			qText = max(qText, q)
		}
	})
	if qMetrics > qText {
		return openMetrics
	}
	return text
}

func acceptsGzip(encodings []string) bool {
	best := 0.0
	named := false
	eachOption(encodings, func(name string, q float64) {
		switch {
		case name == "gzip":
			best, named = q, true
		case name == "*" && !named:
			best = q
		}
	})
	return best > 0
}

// eachOption calls f for each comma-separated option of an Accept header and
// its q parameter, which is 1 where it is left out or makes no sense.
func eachOption(values []string, f func(name string, q float64)) {
	for _, v := range values {
		for option := range strings.SplitSeq(v, ",") {
			name, params, _ := strings.Cut(option, ";")
			q := 1.0
			for p := range strings.SplitSeq(params, ";") {
				if s, ok := strings.CutPrefix(strings.TrimSpace(p), "q="); ok {
					if x, err := strconv.ParseFloat(s, 64); err == nil {
						q = x
					}
				}
			}
			f(strings.ToLower(strings.TrimSpace(name)), q)
		}
	}
}
