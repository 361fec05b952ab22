// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	"github.com/gpupilot/gpupilot/internal/serve/webui/static"
)

// fetch requests a file of the page with headers, which are names and values in pairs.
func fetch(path string, headers ...string) *httptest.ResponseRecorder {
	return ask(New(fixed{}, nil).Handler(), path, headers...)
}

// The page asks for one stylesheet and one script, which have every file of ours.
func TestPageIsThreeFiles(t *testing.T) {
	page, script, style := fetch("/").Body.String(), fetch("/static/bundle.js").Body.String(), fetch("/static/bundle.css").Body.String()
	if strings.Count(page, "<script") != 1 || !strings.Contains(page, `<script defer src="static/bundle.js"></script>`) ||
		strings.Count(page, "stylesheet") != 1 || !strings.Contains(page, `<link rel="stylesheet" href="static/bundle.css">`) {
		t.Errorf("the page begins with\n%.900s", page)
	}
	if !strings.HasPrefix(script, `"use strict";`) {
		t.Errorf("the script is not strict: it begins with %.40q", script)
	}
	err := fs.WalkDir(static.FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(static.FS, name)
		for ext, all := range map[string]string{".js": script, ".css": style} {
			if n := strings.Count(all, string(content)); path.Ext(name) == ext && n != 1 {
				t.Errorf("%s is %d times in its bundle, want once: index.html names it", name, n)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// A client that has a file gets 304, and one that accepts gzip gets less.
func TestFilesAreCachedAndCompressed(t *testing.T) {
	for _, path := range []string{"/", "/static/bundle.js", "/static/bundle.css", "/static/page.css", "/static/icon.svg"} {
		plain, zipped := fetch(path), fetch(path, "Accept-Encoding", "gzip")
		if plain.Code != http.StatusOK || plain.Header().Get("Content-Encoding") != "" || plain.Header().Get("Cache-Control") != "no-cache" {
			t.Fatalf("%s: %d %v", path, plain.Code, plain.Header())
		}
		z, err := gzip.NewReader(zipped.Body)
		if err != nil || zipped.Header().Get("Content-Encoding") != "gzip" || zipped.Header().Get("Vary") != "Accept-Encoding" {
			t.Fatalf("%s: %v, %v", path, err, zipped.Header())
		}
		text, err := io.ReadAll(z)
		if err != nil || !bytes.Equal(text, plain.Body.Bytes()) {
			t.Errorf("%s: %v, %d bytes unzipped, want %d", path, err, len(text), plain.Body.Len())
		}
		for _, w := range []*httptest.ResponseRecorder{plain, zipped} {
			tag := w.Header().Get("ETag")
			if again := fetch(path, "If-None-Match", tag, "Accept-Encoding", w.Header().Get("Content-Encoding")); again.Code != http.StatusNotModified || again.Body.Len() != 0 {
				t.Errorf("%s with %s: %d, %d bytes", path, tag, again.Code, again.Body.Len())
			}
			if w := fetch(path, "If-None-Match", `"other"`); w.Code != http.StatusOK {
				t.Errorf("%s with another tag: %d", path, w.Code)
			}
		}
		if plain.Header().Get("ETag") == zipped.Header().Get("ETag") {
			t.Errorf("%s has one tag for two representations", path)
		}
	}
	for _, path := range []string{"/static/", "/static/nope.js", "/static/uplot/", "/static/../handler.go", "/static/..%2fhandler.go"} {
		if w := fetch(path); w.Code == http.StatusOK {
			t.Errorf("%s: %d, %d bytes", path, w.Code, w.Body.Len())
		}
	}
}
