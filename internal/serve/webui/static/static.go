// SPDX-License-Identifier: Apache-2.0

// Package static has the files of the page, and serves them with its security headers.
package static

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"
)

// FS has the files as they are written.
//
//go:embed *.html *.css *.js *.svg uplot
var FS embed.FS

// policy allows the page to load its own files only. uPlot sets the styles of
// elements through the DOM, which needs no exception.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// The files that stand for all styles and all scripts that index.html names.
const (
	styleBundle  = "bundle.css"
	scriptBundle = "bundle.js"
)

// The tags of index.html that are bundled, each on its own line.
var (
	styleTag  = regexp.MustCompile(`(?m)^ *<link rel="stylesheet" href="static/([^"]+)">\n`)
	scriptTag = regexp.MustCompile(`(?m)^ *<script defer src="static/([^"]+)"></script>\n`)
)

// file is a file of the page, in memory.
type file struct {
	contentType   string
	plain, zipped []byte // zipped is nil where it is not smaller
	tag           string // of plain
}

// files returns the page's files by their names below /static/, with the bundles and the
// index.html that names them. A browser opens six connections to a server, so a dozen files
// would delay the page.
var files = sync.OnceValue(func() map[string]*file {
	out := map[string]*file{}
	read := func(name string) []byte {
		b, err := fs.ReadFile(FS, name)
		if err != nil {
			panic(err) // the folder is embedded, and index.html is ours
		}
		return b
	}
	_ = fs.WalkDir(FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out[name] = newFile(name, read(name))
		}
		return err
	})
	page := bundle(read("index.html"), styleTag, read, func(all []byte) string {
		out[styleBundle] = newFile(styleBundle, all)
		return "  <link rel=\"stylesheet\" href=\"static/" + styleBundle + "\">\n"
	})
	page = bundle(page, scriptTag, read, func(all []byte) string {
		const strict = "\"use strict\";\n" // that of a file counts at the start of a script only
		out[scriptBundle] = newFile(scriptBundle, append([]byte(strict), all...))
		return "  <script defer src=\"static/" + scriptBundle + "\"></script>\n"
	})
	out["index.html"] = newFile("index.html", page)
	return out
})

// bundle returns a page with one text in the place of tags, made of the contents of the
// files that they name, in their order.
func bundle(page []byte, tags *regexp.Regexp, read func(name string) []byte, text func(all []byte) string) []byte {
	var all []byte
	for _, tag := range tags.FindAllSubmatch(page, -1) {
		all = append(append(all, read(string(tag[1]))...), '\n')
	}
	one := []byte(text(all))
	return tags.ReplaceAllFunc(page, func([]byte) (out []byte) {
		out, one = one, nil
		return out
	})
}

func newFile(name string, content []byte) *file {
	sum := sha256.Sum256(content)
	f := &file{contentType: mime.TypeByExtension(path.Ext(name)), plain: content, tag: hex.EncodeToString(sum[:12])}
	if f.contentType == "" {
		f.contentType = http.DetectContentType(content)
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		panic(err) // the level is valid
	}
	_, _ = z.Write(content) // a buffer takes everything
	_ = z.Close()
	if out.Len() < len(content) {
		f.zipped = out.Bytes()
	}
	return f
}

// ServeHTTP sends the file, or 304 to a client that has it.
func (f *file) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, tag := f.plain, f.tag
	h := w.Header()
	h.Set("Content-Type", f.contentType)
	h.Set("Vary", "Accept-Encoding")
	if f.zipped != nil && AcceptsGzip(r) {
		body, tag = f.zipped, f.tag+"-gzip"
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("ETag", fmt.Sprintf("%q", tag))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
}

// serveFile sends the file that a path below /static/ names.
func serveFile(w http.ResponseWriter, r *http.Request) {
	f := files()[r.PathValue("file")]
	if f == nil {
		http.NotFound(w, r)
		return
	}
	f.ServeHTTP(w, r)
}

// Index is the handler of the page.
func Index() http.Handler { return files()["index.html"] }

// WithFiles serves the page's files below /static/ and everything else by next, with the
// page's security headers: scripts and styles only from files.
func WithFiles(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /static/{file...}", serveFile)
	mux.Handle("/", next)
	return secure(mux)
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

// AcceptsGzip reports whether the client accepts gzip.
func AcceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		if strings.EqualFold(name, "gzip") {
			return strings.ReplaceAll(params, " ", "") != "q=0"
		}
	}
	return false
}
