// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func build(t *testing.T) (dir string, s *site) {
	t.Helper()
	dir = t.TempDir()
	s, err := read(os.DirFS("../../../.."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.write(dir); err != nil {
		t.Fatal(err)
	}
	return dir, s
}

var (
	address = regexp.MustCompile(`(?:href|src)="([^"]*)"`)
	id      = regexp.MustCompile(` id="([^"]*)"`)
)

// Every page is there, and what it names is there too.
func TestSite(t *testing.T) {
	dir, s := build(t)
	if len(s.pages) < 60 || len(s.assets) == 0 {
		t.Fatalf("%d pages, %d images", len(s.pages), len(s.assets))
	}
	for _, at := range s.Sections {
		if len(at.Links) < 4 && at.Title != "Runbooks" || at.Title == "More" && len(at.Links) > 20 {
			t.Errorf("%s of the navigation has %d pages: docs/README.md has a table below each heading", at.Title, len(at.Links))
		}
	}
	ids := map[string]map[string]bool{}
	texts := map[string]string{}
	for _, p := range s.pages {
		b, err := os.ReadFile(filepath.Join(dir, p.target()))
		if err != nil {
			t.Fatal(err)
		}
		texts[p.target()], ids[p.target()] = string(b), map[string]bool{}
		for _, m := range id.FindAllStringSubmatch(string(b), -1) {
			ids[p.target()][m[1]] = true
		}
	}
	for name, text := range texts {
		if strings.Contains(text, "<script>") || strings.Contains(text, " style=") {
			t.Errorf("%s has a script or a style that its policy forbids", name)
		}
		for _, m := range address.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			file, fragment, _ := strings.Cut(m[1], "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if _, err := os.Stat(filepath.Join(dir, to)); err != nil {
				t.Errorf("%s: %s: %v", name, m[1], err)
			} else if fragment != "" && !ids[to][fragment] {
				t.Errorf("%s: %s: no such heading", name, m[1])
			}
		}
	}
}

// llms.txt names each page once, by its Markdown.
func TestLLMs(t *testing.T) {
	dir, s := build(t)
	b, err := os.ReadFile(filepath.Join(dir, "llms.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range s.pages {
		if n := strings.Count(string(b), "]("+p.path+")"); n != 1 {
			t.Errorf("%s is named %d times", p.path, n)
		}
		if _, err := os.Stat(filepath.Join(dir, p.path)); err != nil {
			t.Error(err)
		}
	}
}

func TestLinksThatLeadNowhereAreRefused(t *testing.T) {
	pages := func(link string) fstest.MapFS {
		out := fstest.MapFS{}
		for _, name := range []string{"README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/chart/README.md", "examples/README.md", "docs/README.md"} {
			out[name] = &fstest.MapFile{Data: []byte("# Title & more\n\n## Two words: `x`\n\n## Two words: `x`\n")}
		}
		out["docs/a.md"] = &fstest.MapFile{Data: []byte("# A\n\n[link](" + link + ")\n")}
		return out
	}
	for link, want := range map[string]string{
		"../SECURITY.md#two-words-x-1": `href="../SECURITY.html#two-words-x-1"`,
		"../README.md":                 `href="../index.html"`,
		"../examples":                  `href="../examples/README.html"`,
		"https://kubernetes.io":        `href="https://kubernetes.io"`,
		"b.md":                         "",
		"../SECURITY.md#three":         "",
	} {
		s, err := read(pages(link))
		switch {
		case want == "" && (err == nil || !strings.Contains(err.Error(), "docs/a.md: link "+link)):
			t.Errorf("%s: %v", link, err)
		case want != "" && err != nil:
			t.Errorf("%s: %v", link, err)
		case want != "" && !strings.Contains(string(s.byPath["docs/a.md"].body), want):
			t.Errorf("%s: %s", link, s.byPath["docs/a.md"].body)
		}
	}
}

// The search finds a page in a real browser, under the page's own policy.
func TestSearch(t *testing.T) {
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("GPUPILOT_REQUIRE_CHROMIUM") == "1" {
			t.Fatal("GPUPILOT_REQUIRE_CHROMIUM is 1 and no chromium is in PATH")
		}
		t.Skip("no chromium in PATH: Debian's package chromium has it")
	}
	dir, _ := build(t)
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	// No bound of real time: the page is done once its requests are.
	dom, err := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+t.TempDir(),
		"--virtual-time-budget=20000", "--dump-dom", server.URL+"/docs/objective.html?q=override+freeze").Output()
	if err != nil {
		t.Fatal(err)
	}
	if want := `href="../docs/override.html"`; !strings.Contains(string(dom), `<li><a `+want) {
		_, list, _ := strings.Cut(string(dom), `id="found"`)
		t.Errorf("the search does not find %s: %.600s", want, list)
	}
}
