// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The content types of the formats.
const (
	openMetricsVersion     = "1.0.0"
	contentTypeText        = "text/plain; version=0.0.4; charset=utf-8"
	contentTypeOpenMetrics = "application/openmetrics-text; version=" + openMetricsVersion + "; charset=utf-8"
)

// Header values that are the same in every response. net/http does not change
// them.
var (
	contentTypes = [numFormats][]string{{contentTypeText}, {contentTypeOpenMetrics}}
	gzipped      = []string{"gzip"}
	vary         = []string{"Accept, Accept-Encoding"}
	nosniff      = []string{"nosniff"}
)

// scratch is the memory of a response that is built for one request.
type scratch struct {
	body   []byte
	packed bytes.Buffer
}

// ServeHTTP serves the last page, in a format and encoding that the request
// accepts. A page that loses types in OpenMetrics is sent as text if the
// request accepts text, even if it prefers OpenMetrics, as Prometheus does.
// name[] parameters select metrics; a few are always included. Without a page,
// or if the last one is too old, the status is 503.
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
	f, alsoText := negotiate(req.Header["Accept"])
	if alsoText && p.by.lossy {
		f = text
	}
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

// whole returns the whole page. The result is valid until p is released.
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

// send writes the body. It ignores the error of a disconnected client.
func send(w http.ResponseWriter, body []byte) {
	w.Header()["Content-Length"] = []string{strconv.Itoa(len(body))}
	_, _ = w.Write(body)
}

// negotiate returns the format that the client prefers; text if it has no
// preference or accepts neither. alsoText reports whether the client accepts
// text.
func negotiate(accept []string) (f format, alsoText bool) {
	var best struct {
		metrics, text float64
		named         int // how specific the match of text is: */*, text/* or text/plain
	}
	eachOption(accept, func(name, version string, q float64) {
		var named int
		switch name {
		case "application/openmetrics-text":
			if version == "" || version == openMetricsVersion {
				best.metrics = max(best.metrics, q)
			}
			return
		case "text/plain":
			named = 3
		case "text/*":
			named = 2
		case "*/*":
			named = 1
		default:
			return
		}
		if named > best.named {
			best.named, best.text = named, q
		} else if named == best.named {
			best.text = max(best.text, q)
		}
	})
	// At the same quality, a named format wins over a wildcard.
	if best.metrics > 0 && (best.metrics > best.text || best.named < 3 && best.text == best.metrics) {
		return openMetrics, best.text > 0
	}
	return text, true
}

func acceptsGzip(encodings []string) bool {
	best := 0.0
	named := false
	eachOption(encodings, func(name, _ string, q float64) {
		switch {
		case name == "gzip":
			best, named = q, true
		case name == "*" && !named:
			best = q
		}
	})
	return best > 0
}

// eachOption calls f for each comma-separated option of an Accept header with
// its version parameter, if it has one, and its q parameter, which is 1 if it
// is missing or invalid.
func eachOption(values []string, f func(name, version string, q float64)) {
	for _, v := range values {
		for option := range strings.SplitSeq(v, ",") {
			name, params, _ := strings.Cut(option, ";")
			q, version := 1.0, ""
			for p := range strings.SplitSeq(params, ";") {
				p = strings.TrimSpace(p)
				if s, ok := strings.CutPrefix(p, "q="); ok {
					if x, err := strconv.ParseFloat(s, 64); err == nil {
						q = x
					}
				}
				if s, ok := strings.CutPrefix(p, "version="); ok {
					version = strings.Trim(s, `"`)
				}
			}
			f(strings.ToLower(strings.TrimSpace(name)), version, q)
		}
	}
}
